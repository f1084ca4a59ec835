"""Chunks that are made of parts of others by one task each: like Dask's rechunk."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_coop as dc
from dask_coop.graph import layers
from dask_coop.graph.layers import rechunked


def cut(rng: np.random.Generator, length: int) -> tuple[int, ...]:
    """Return random lengths that add up to `length`, some of them zero."""
    ends = np.sort(rng.integers(0, length + 1, rng.integers(0, 6)))
    return tuple(np.diff([0, *ends, length]).tolist())


@pytest.mark.parametrize("seed", range(40))
def test_elements_and_chunks_are_those_of_dask(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 12, rng.integers(1, 4)))
    host = rng.integers(-99, 99, shape).astype(rng.choice(["f4", "i8", "?", "c16", "M8[s]"]))
    before, after = (tuple(cut(rng, n) for n in shape) for _ in range(2))
    # Dask's own rechunk fails on empty chunks.
    wanted = da.from_array(host).rechunk(after) if all(map(all, after)) else None
    x = da.concatenate([da.from_array(host)]) if seed % 2 else da.from_array(host)
    x = x.rechunk(tuple(tuple(n for n in of if n) for of in before))
    y = rechunked(x, after)
    assert y.chunks == (after if wanted is None else wanted.chunks)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.compute(scheduler="sync"), host)
    for index in np.ndindex(y.numblocks):
        assert y.blocks[index].compute(scheduler="sync").shape == y.blocks[index].shape


def test_chunks_that_are_empty_are_left_out() -> None:
    x = da.from_array(np.arange(7), chunks=((3, 0, 2, 0, 0, 2, 0),))
    assert x.numblocks == (7,)
    y = rechunked(x, ((3, 0, 4),))
    np.testing.assert_array_equal(y.compute(scheduler="sync"), np.arange(7))


def test_there_is_a_task_for_each_chunk() -> None:
    x = da.ones((400, 400), chunks=(4, 200))
    y = rechunked(x, ((400,), (4,) * 100))
    assert len(y.dask.layers[y.name]) == 100
    assert len(y.__dask_graph__()) == 300


def test_chunks_keep_the_order_of_their_memory() -> None:
    x = da.from_array(np.arange(600.0).reshape(60, 10), chunks=(6, 10)).T
    y = rechunked(x, ((5, 5), (60,)))
    (block,) = dask.get(dict(y.dask), [(y.name, 0, 0)])
    assert block.flags.f_contiguous
    np.testing.assert_array_equal(block, np.arange(600.0).reshape(60, 10)[:, :5].T)


def test_chunks_of_another_dtype_become_what_is_declared() -> None:
    def other(block: Any, block_id: Any = None) -> Any:
        return block.astype("f8" if block_id[0] else "i2") + (0.5 if block_id[0] else 0)

    x = da.zeros(20, chunks=5, dtype="f4").map_blocks(other, dtype="f4", meta=np.empty(0, "f4"))
    y = rechunked(x, ((7, 13),))
    for block in (y.blocks[0], y.blocks[1]):
        assert block.compute(scheduler="sync").dtype == "f4"
    np.testing.assert_array_equal(y.compute(scheduler="sync"), [0] * 5 + [0.5] * 15)


@pytest.mark.parametrize("declared", [True, False])
def test_masks_stay(declared: bool) -> None:
    host = np.ma.masked_array(np.arange(20.0), np.arange(20) % 3 == 0)
    x = da.from_array(host, chunks=6)
    if not declared:
        x._meta = np.empty(0)
    found = rechunked(x, ((5, 15),)).compute(scheduler="sync")
    np.testing.assert_array_equal(np.ma.getmaskarray(found), host.mask)
    np.testing.assert_array_equal(found.compressed(), host.compressed())


def test_strings_of_different_lengths_are_whole() -> None:
    x = da.concatenate([da.from_array(np.array(["a", "b"])), da.from_array(np.array(["long"]))])
    np.testing.assert_array_equal(rechunked(x, ((3,),)).compute(scheduler="sync"), x.compute())


def test_clusters_get_dasks_rechunk() -> None:
    x = da.arange(40, chunks=4)
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None):
        y = rechunked(x, ((10,) * 4,))
        assert y.name.startswith("rechunk-merge")
        np.testing.assert_array_equal(y.compute(), np.arange(40))


def test_very_many_parts_are_left_to_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    x = da.arange(100, chunks=10)
    assert rechunked(x, ((7,) * 14 + (2,),)).name.startswith("rechunk-")
    monkeypatch.setattr(layers, "MOST_PARTS", 20)
    y = rechunked(x, ((7,) * 14 + (2,),))
    assert y.name.startswith("rechunk-merge")
    np.testing.assert_array_equal(y.compute(scheduler="sync"), np.arange(100))


def test_quantiles_of_many_chunks_have_few_tasks() -> None:
    x = da.random.default_rng(0).random((1000, 4, 500), chunks=(10, 2, 250))
    lazy = dc.median(x, axis=0)
    assert len(dask.optimize(lazy)[0].__dask_graph__()) < 4 * x.npartitions
    np.testing.assert_allclose(lazy.compute(), np.median(x.compute(), 0))
