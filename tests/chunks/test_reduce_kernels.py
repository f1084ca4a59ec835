"""Every kernel of kernel_reduce.cuh against the NumPy chunks, by shapes that choose it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.sums import KERNEL_SHAPES

from dask_coop.algebra.central_moments import moments_up_to
from dask_coop.algebra.monoids import (
    ANY,
    ARGMAX,
    ARGMIN,
    MEAN,
    MINMAX,
    MOMENTS,
    NANMAX,
    NANMIN,
    PROD,
    SUM,
    VAR,
)
from dask_coop.algebra.operation import Operation, bind
from dask_coop.chunks.numpy import backend as reference

pytestmark = pytest.mark.gpu


def lift(op: Any, x: Any, axes: tuple[int, ...], where: Any = None) -> list[Any]:
    from dask_coop.chunks.cupy import backend

    return [
        field if isinstance(field, np.ndarray | np.generic) else field.get()
        for field in backend.lift(op, x, axes, where)
    ]


def numbers(dtype: Any, size: int) -> Any:
    rng = np.random.default_rng(size)
    if dtype.kind == "c":
        return (rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(size).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, size).astype(dtype)


@pytest.mark.parametrize("kernel", KERNEL_SHAPES)
@pytest.mark.parametrize("name", ["?", "u1", "f2", "i4", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(
    "monoid", [SUM, MINMAX, ARGMIN, ARGMAX, ANY, MEAN, VAR, MOMENTS], ids=lambda m: m.name
)
def test_every_kernel_agrees_with_numpy(cp: Any, monoid: Any, name: str, kernel: str) -> None:
    dtype = np.dtype(name)
    if dtype.kind not in monoid.kinds:
        pytest.skip(f"{monoid.name} does not take {dtype}")
    op = bind(monoid, dtype, dtype, monoid.name)
    for shape, axes in KERNEL_SHAPES[kernel]:
        if monoid.positional and 1 < len(axes) < len(shape):
            continue
        size = int(np.prod(shape))
        for offset in (0, 1):
            host = numbers(dtype, size + offset)
            x = cp.asarray(host)[offset:].reshape(shape)
            expected = reference.lift(op, host[offset:].reshape(shape), axes)
            for field, a, b in zip(op.monoid.fields, lift(op, x, axes), expected, strict=True):
                assert a.dtype == np.asarray(b).dtype
                exact = a.dtype.kind in "biu" or field.role == "element"
                # The reference sums in another order.
                bound = 0 if exact else 1e-13 * max(size, 1)
                np.testing.assert_allclose(
                    a, np.broadcast_to(b, a.shape), 1e-11 * (not exact), bound
                )


@pytest.mark.parametrize("kernel", KERNEL_SHAPES)
@pytest.mark.parametrize("name", ["?", "u1", "f2", "i4", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("monoid", [SUM, ANY, NANMIN, NANMAX, MEAN, VAR], ids=lambda m: m.name)
def test_every_kernel_takes_a_mask(cp: Any, monoid: Any, name: str, kernel: str) -> None:
    dtype = np.dtype(name)
    if dtype.kind not in monoid.kinds:
        pytest.skip(f"{monoid.name} does not take {dtype}")
    for skipna in (False, True):
        op = bind(monoid, dtype, dtype, monoid.name, skipna)
        for shape, axes in KERNEL_SHAPES[kernel]:
            size = int(np.prod(shape))
            host = numbers(dtype, size).reshape(shape)
            if dtype.kind in "fc" and skipna and size:
                host.reshape(-1)[:: 1 + size // 7] = np.nan
            mask = np.random.default_rng(1).random(shape) < 0.7
            expected = reference.lift(op, host, axes, mask)
            found = lift(op, cp.asarray(host), axes, mask)
            for field, a, b in zip(op.monoid.fields, found, expected, strict=True):
                assert a.dtype == np.asarray(b).dtype
                exact = a.dtype.kind in "biu" or field.role == "element"
                bound = 0 if exact else 1e-13 * max(size, 1)
                np.testing.assert_allclose(
                    a, np.broadcast_to(b, a.shape), 1e-11 * (not exact), bound
                )


@pytest.mark.parametrize("name", ["?", "i4", "f2", "f8"])
@pytest.mark.parametrize("shape", [(300_001,), (999, 130), (5, 6000), (3, 4, 7)])
def test_powers_agree_with_numpy(cp: Any, name: str, shape: tuple[int, ...]) -> None:
    dtype, monoid = np.dtype(name), moments_up_to(4)
    op = Operation(monoid, dtype, np.dtype("f8"))
    host = numbers(dtype, int(np.prod(shape))).reshape(shape)
    for axes in ((0,), tuple(range(len(shape)))):
        found, expected = lift(op, cp.asarray(host), axes), reference.lift(op, host, axes)
        for a, b in zip(found, expected, strict=True):
            scale = np.max(np.abs(b), initial=1)
            np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), 1e-11, 1e-11 * scale)


@pytest.mark.parametrize("shape", [(5_000_003,), (300_001, 5), (999, 4096)])
def test_results_do_not_change_from_run_to_run_nor_with_what_runs_beside(
    cp: Any, shape: tuple[int, ...]
) -> None:
    op = bind(SUM, np.dtype("f8"), np.dtype("f8"), "sum")
    x = cp.asarray(np.random.default_rng(0).standard_normal(shape))
    (expected,) = lift(op, x, (0,))

    def repeat(_: int) -> list[bytes]:
        with cp.cuda.Stream(non_blocking=True):
            return [np.asarray(lift(op, x, (0,))[0]).tobytes() for _ in range(50)]

    cp.cuda.runtime.deviceSynchronize()
    with ThreadPoolExecutor(8) as pool:
        found = {result for results in pool.map(repeat, range(16)) for result in results}
    assert found == {np.asarray(expected).tobytes()}


def test_products_wrap_as_numpys(cp: Any) -> None:
    op = bind(PROD, np.dtype("i4"), np.dtype("i8"), "prod")
    host = np.random.default_rng(0).integers(1, 4, (70_001, 3)).astype("i4")
    np.testing.assert_array_equal(lift(op, cp.asarray(host), (0,))[0], np.prod(host, 0))
