"""Blocks of a result that are on GPUs are copied into one host array, where they belong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu
from dask.array import core
from distributed import Client
from support.host_cupy import backend
from support.host_cupy.gpus import FakeGpus

import dask_coop as dc
from dask_coop import chunks
from dask_coop.graph import transfer

X = np.random.default_rng(17).integers(-9, 9, (12, 10, 3)).astype("f4")


@pytest.fixture
def _gpus() -> Iterator[None]:
    """Have threads work on a GPU that is made up."""
    with backend.in_cupys_place(FakeGpus(1)), dc.installed(chunks="cupy"):
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the host arrays that results are joined in; nothing else may join blocks."""
    arrays: list[Any] = []

    def empty(kind: str, shape: Any, dtype: Any) -> Any:
        arrays.append(np.empty(shape, dtype))
        return arrays[-1]

    def refuse(*_: Any) -> None:
        raise AssertionError("blocks are copied once more")

    monkeypatch.setattr(chunks, "empty_on_host", empty)
    for name in ("concatenate3", "concatenate", "_concatenate2"):
        monkeypatch.setattr(core, name, refuse)
    return arrays


@pytest.mark.usefixtures("_gpus")
@pytest.mark.parametrize("sizes", [(5, 10, 3), (12, 10, 3), (5, 3, 2), ((0, 7, 5), (10, 0), 1)])
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_blocks_become_one_array(made: list[Any], sizes: Any, scheduler: str) -> None:
    x = da.from_array(X, sizes)
    for axis in range(3):
        made.clear()
        result = dc.cumsum(x, axis=axis).compute(scheduler=scheduler)
        np.testing.assert_allclose(result, X.cumsum(axis, dtype="f4"), rtol=1e-5)
        assert len(made) == 1
        assert result is made[0]
        assert result.flags.writeable


@pytest.mark.usefixtures("_gpus")
def test_results_of_one_call_are_arrays_of_their_own(made: list[Any]) -> None:
    x = da.from_array(X, (5, 3, 2))
    lazy = dc.cumsum(x, axis=0)
    first, again, largest = dask.compute(lazy, lazy + 1, dc.max(x, 1))
    np.testing.assert_array_equal(first + 1, again)
    np.testing.assert_array_equal(largest, X.max(1))
    assert len(made) == 3
    assert not np.shares_memory(first, again)
    # Blocks of a persisted array are not those of results.
    kept = lazy.persist()
    one = kept.compute()
    one += 1
    np.testing.assert_array_equal(kept.compute(), first)


@pytest.mark.usefixtures("_gpus")
def test_chunks_of_unknown_sizes_are_joined(made: list[Any]) -> None:
    x = da.from_array(X.reshape(-1), 100)
    chosen = dc.cumsum(dc.to_gpu(x)[x > 0])
    assert math.isnan(chosen.shape[0])
    expected = X.reshape(-1)[X.reshape(-1) > 0].cumsum()
    np.testing.assert_allclose(chosen.compute(), expected, rtol=1e-4)
    assert len(made) == 1


def test_other_blocks_are_left_to_dask() -> None:
    with backend.in_cupys_place(FakeGpus(1)):
        there = [backend.from_numpy(block) for block in np.split(X, 2)]
        other = [there[0], there[1].astype("f8")]
        for blocks in (
            other,
            [there[0], np.ma.masked_less(X[6:], 0)],
            [there[0], there[1][:, :3]],
        ):
            each = [np.asarray(b) if not np.ma.isMaskedArray(b) else b for b in blocks]
            nested = [[[block]] for block in blocks]
            if blocks[1].shape == there[1].shape:
                result = transfer.join_on_host(nested)
                np.testing.assert_array_equal(result, np.ma.concatenate(each))
                assert isinstance(result, np.ma.MaskedArray) == np.ma.isMaskedArray(each[1])
            else:
                with pytest.raises(ValueError, match="broadcast"):
                    transfer.join_on_host(nested)
        mixed = transfer.join_on_host([[[there[0]]], [[X[6:]]]])
        np.testing.assert_array_equal(mixed, X)
        scalar = transfer.join_on_host([backend.from_numpy(np.float32(2))])
        assert scalar == 2
        assert type(scalar) is not backend.Held
        assert transfer.join_on_host([]).size == 0
        host = [[[X[:6]]], [[X[6:]]]]
        np.testing.assert_array_equal(transfer.join_on_host(host), X)


@pytest.mark.usefixtures("_gpus")
def test_a_worker_joins_blocks(made: list[Any]) -> None:
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with Client(processes=False, **options):
        result = dc.cumsum(da.from_array(X, (5, 10, 3)), axis=0).compute()
    np.testing.assert_allclose(result, X.cumsum(0), rtol=1e-5)
    assert len(made) == 1


@pytest.mark.gpu
@pytest.mark.skipif(bool(missing_for_gpu()), reason="needs a GPU")
@pytest.mark.parametrize("sizes", [(500, 3000), (4000, 700), (900, 800)])
def test_results_of_a_gpu_become_one_array(made: list[Any], sizes: tuple[int, int]) -> None:
    host = np.random.default_rng(17).integers(-9, 9, (4000, 3000)).astype("f4")
    with dc.installed(chunks="cupy"):
        result = dc.cumsum(da.from_array(host, sizes), axis=0).compute()
    np.testing.assert_array_equal(result, host.cumsum(0))
    assert result is made[0]
