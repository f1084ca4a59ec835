"""Dask's `to_backend` on real GPUs: by pinned memory, with the results that Dask's own gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.dispatch import to_cupy_dispatch, to_numpy_dispatch
from support.processes import python

import dask_coop as dc
from dask_coop.graph.transfer import take_over

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("node")]

RNG = np.random.default_rng(17)
CUBE = RNG.normal(size=(70, 111, 203))
#: Most are larger than a buffer.
HOSTS = {
    "C order": CUBE,
    "Fortran order": np.asfortranarray(CUBE),
    "reversed": CUBE[::-1],
    "some columns": CUBE[:, :, 3:200],
    "axes in another order": CUBE.transpose(1, 0, 2),
    "big-endian": CUBE.astype(">f8"),
    "big-endian in Fortran order": np.asfortranarray(CUBE.astype(">f4")),
    "complex": CUBE.astype("c16"),
    "bool": CUBE > 0,
    "bytes": RNG.integers(0, 256, 9_000_003).astype("u1"),
    "no axis": np.array(2.5),
    "no element": np.ones((0, 3)),
    "masked": np.ma.masked_greater(CUBE, 1),
    "too wide": CUBE.astype("g"),
    "objects": np.array([None, 1]),
    "dates": np.zeros(3, "M8[s]"),
    "strings": np.array(["a", "b"]),
}


@pytest.fixture(autouse=True)
def _rings() -> Iterator[None]:
    """Begin and end without pinned memory, and know Dask's functions of CuPy."""
    from dask.array.backends import register_cupy

    from dask_coop.cuda import transfer

    register_cupy()
    transfer.close()
    yield
    transfer.close()


def outcome(function: Any, *args: Any, **options: Any) -> tuple[Any, ...]:
    """Return what a call makes or raises, so that it can be compared."""
    try:
        x = function(*args, **options)
    except Exception as error:
        return type(error), str(error)
    host = x if isinstance(x, np.ndarray) else x.get(order="A")
    layout = x.flags.c_contiguous, x.flags.f_contiguous
    return type(x), x.dtype, x.shape, *layout, host.tobytes("A")


def rings() -> int:
    from dask_coop.cuda import transfer

    return len(transfer._rings)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("options", [{}, {"order": "F"}])
def test_results_are_those_of_dask(name: str, options: dict[str, Any]) -> None:
    host = HOSTS[name]
    wanted = outcome(to_cupy_dispatch, host, **options)
    give_back = take_over()
    try:
        assert outcome(to_cupy_dispatch, host, **options) == wanted
    finally:
        give_back()
    if isinstance(wanted[1], str):
        return
    there = to_cupy_dispatch(host)
    for x in (there, there.T, there[::-1] if there.ndim else there):
        wanted = outcome(to_numpy_dispatch, x, **options)
        give_back = take_over()
        try:
            assert outcome(to_numpy_dispatch, x, **options) == wanted
        finally:
            give_back()


def test_within_a_node_chunks_go_through_its_rings() -> None:
    x = da.from_array(CUBE, chunks=(35, 111, 203))
    np.testing.assert_array_equal(x.to_backend("cupy").to_backend("numpy").compute(), CUBE)
    assert rings() == 0
    with dc.Node() as node:
        there = x.to_backend("cupy").persist()
        back = there.to_backend("numpy").compute()
        assert 1 <= rings() <= len(node.devices)
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, CUBE)


def test_dask_may_learn_of_cupy_later(tmp_path: Path) -> None:
    code = """
import dask.array as da
import numpy as np
import dask_coop as dc
from dask.array.backends import register_cupy
from dask.array.dispatch import to_cupy_dispatch, to_numpy_dispatch
from dask_coop.cuda import transfer

host = np.arange(3_000_000.0)
x = da.from_array(host, chunks=1_500_000)
with dc.Node():
    assert np.ndarray not in to_cupy_dispatch._lookup
    there = x.to_backend("cupy").persist()
    assert np.ndarray in to_cupy_dispatch._lookup
    assert transfer._rings
    transfer.close()
    # As other functions of Dask do when they first meet CuPy.
    register_cupy()
    assert not transfer._rings
    back = there.to_backend("numpy").compute()
    assert transfer._rings
assert (back == host).all()
transfer.close()
assert (to_numpy_dispatch(to_cupy_dispatch(host)) == host).all()
assert not transfer._rings
print("done")
"""
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
