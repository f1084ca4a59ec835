"""The histogram of an array that lies on several GPUs: what fits, and that it counts as NumPy."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.compiled import report_of

from dask_coop.algebra.bins import Integers, find_bins
from dask_coop.chunks.cupy.partition import STRETCH
from dask_coop.cuda import compiler
from dask_coop.cuda.programs import histogram, multichunk

#: Shared memory that a block may have, of an H200, an A100 and a T4.
SHARED_BYTES = (232_448, 166_912, 65_536)


@pytest.mark.parametrize("shared_bytes", SHARED_BYTES)
@pytest.mark.parametrize("staged", [0, 4096])
def test_counters_fill_the_shared_memory(shared_bytes: int, staged: int) -> None:
    room = shared_bytes - multichunk.HISTOGRAM_STATIC_BYTES - staged
    plain, packed = room // 4 - 1, (room // 4 - 32) * 2
    for bins, expected in (
        (1, (False, staged + 8)),
        (plain, (False, staged + 4 * (plain + 1))),
        (plain + 1, (True, staged + 4 * ((plain + 2) // 2 + 32))),
        (packed, (True, staged + packed * 2 + 128)),
        (packed + 1, None),
    ):
        assert multichunk.fit_counters(bins, shared_bytes, staged) == expected


def test_an_h200_counts_57344_bins_in_32_bits_and_114688_in_16() -> None:
    assert multichunk.fit_counters(57_344, 232_448) == (False, 4 * 57_345)
    assert multichunk.fit_counters(114_688, 232_448) == (True, 2 * 114_688 + 128)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_a_block_takes_little_shared_memory_besides(arch: str, packed: bool) -> None:
    find = histogram.finder("guessed", np.dtype("f4"), np.dtype("f4"))
    said = report_of(
        multichunk.histogram(find, packed), replace(compiler._options(arch), ptxas_options="-v")
    )
    (static,) = re.findall(r"(\d+) bytes smem", said)
    assert int(static) <= multichunk.HISTOGRAM_STATIC_BYTES


class Gpus:
    """Some GPUs that count in one launch."""

    def __init__(self, count: int | None = None) -> None:
        import cupy

        from dask_coop.cuda.team import Team

        self.cuda = importlib.import_module("dask_coop.chunks.cupy.histogram_strategies")
        self.cupy = cupy
        self.ordinals = range(count or min(16, cupy.cuda.runtime.getDeviceCount()))
        self.team = Team(self.ordinals, 10.0)
        if len(self.ordinals) > 1 and self.team.objection:
            pytest.skip(self.team.objection)

    def put(self, ordinal: int, values: Any) -> Any:
        """Return a copy of a NumPy array on a GPU."""
        with self.cupy.cuda.Device(ordinal):
            return self.cupy.asarray(values)

    def work(self, ordinal: int, chunks: list[Any], blocks: int, rng: Any) -> tuple[Any, Any]:
        """Return a GPU's Work, its chunks cut at random, and what that points to."""
        stretches = []
        for number, chunk in enumerate(chunks):
            cuts = np.sort(rng.integers(0, chunk.size + 1, rng.integers(2, 2 * blocks + 3)))
            for begin, end in zip([0, *cuts], [*cuts, chunk.size], strict=True):
                start = chunk.data.ptr + int(begin) * chunk.itemsize
                stretches.append((start, 0, end - begin, begin, number))
        inner = np.sort(rng.integers(0, len(stretches) + 1, blocks - 1))
        first = np.array([0, *inner, len(stretches)], "i4")
        listed = np.array(stretches or [(0,) * 5], STRETCH).view("u1")
        kept = self.put(ordinal, listed), self.put(ordinal, first)
        work = np.zeros((), multichunk.WORK)
        work["stretches"], work["first"] = (array.data.ptr for array in kept)
        return work, kept

    def count(self, chunks: list[list[Any]], bins: Any, blocks: int, rng: Any) -> Any:
        """Return the histogram of every GPU's chunks, which are NumPy's."""
        ordinals, put = self.ordinals, self.put
        how = self.cuda.multichunk_histogram(ordinals, chunks[0][0].dtype, bins)
        there = [[put(d, chunk) for chunk in chunks[d]] for d in ordinals]
        work = [self.work(d, there[d], blocks, rng) for d in ordinals]
        tables = [put(d, np.zeros(bins.n, "u8")) for d in ordinals]
        pointers = np.array([table.data.ptr for table in tables], "u8")
        lists = [put(d, pointers) for d in ordinals]
        out = put(0, np.full(bins.n, 77, "u8"))

        def arguments(rank: int, peers: Any, epoch: Any) -> list[Any]:
            addresses = np.uint64(lists[rank].data.ptr), np.uint64(out.data.ptr)
            return [work[rank][0], peers, epoch, *how.lookups[rank].arguments, *addresses]

        threads, shared = histogram.THREADS, how.shared
        self.team.launch(how.source, blocks, threads, shared, ordinals, arguments, "a test")
        return self.cupy.asnumpy(out)


@pytest.fixture(name="gpus", scope="module")
def _gpus() -> Any:
    return Gpus()


def samples(rng: Any, dtype: str, size: int) -> Any:
    if np.dtype(dtype).kind != "f":
        return rng.integers(0, 101, size).astype(dtype)
    x = rng.normal(0.5, 0.4, size).astype(dtype)
    x[::7] = np.round(x[::7] * 64) / 64
    x[::1001], x[1::1001], x[2::1001] = np.nan, np.inf, -np.inf
    return x


def chunked(rng: Any, gpus: Any, dtype: str, sizes: tuple[int, ...]) -> list[list[Any]]:
    """Return chunks of some sizes for every GPU: of the second, none."""
    return [
        [samples(rng, dtype, size) for size in (sizes if d != 1 else ())] for d in gpus.ordinals
    ]


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "u4", "i8", "u8"])
def test_gpus_count_as_numpy(gpus: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    limits = (0, 1) if np.dtype(dtype).kind == "f" else (3, 101)
    for n in (1000, 10, 1) if dtype == "f2" else (58_000, 1000, 10, 1, 100_000):
        bins = find_bins(n, limits, np.dtype(dtype))
        if multichunk.fit_counters(n, gpus.cuda.device(0).shared_bytes) is None:
            continue
        chunks = chunked(rng, gpus, dtype, (100_003, 0, 1, 5, 70_000))
        whole = np.concatenate([chunk for row in chunks for chunk in row])
        expected, _ = np.histogram(whole, **bins.numpy_arguments())
        for blocks in (7, 1):
            np.testing.assert_array_equal(gpus.count(chunks, bins, blocks, rng), expected, str(n))


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
@pytest.mark.parametrize("n", [40_000, 3])
def test_gpus_count_between_any_edges(gpus: Any, n: int) -> None:
    rng = np.random.default_rng(1)
    bins = find_bins(np.sort(rng.random(n + 1)).astype("f4"), None, np.dtype("f4"))
    chunks = chunked(rng, gpus, "f4", (200_001, 17))
    whole = np.concatenate([chunk for row in chunks for chunk in row])
    expected, _ = np.histogram(whole, bins.edges)
    np.testing.assert_array_equal(gpus.count(chunks, bins, 9, rng), expected)


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
def test_gpus_count_integers(gpus: Any) -> None:
    rng = np.random.default_rng(2)
    chunks = chunked(rng, gpus, "i4", (200_001, 17))
    whole = np.concatenate([chunk for row in chunks for chunk in row])
    counted = gpus.count(chunks, Integers(101), 9, rng)
    np.testing.assert_array_equal(counted, np.bincount(whole, minlength=101))


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
@pytest.mark.parametrize("n", [58_000, 70_000])
def test_a_block_counts_more_than_32_bits(gpus: Any, n: int) -> None:
    rng = np.random.default_rng(3)
    alone = Gpus(1)
    # A stretch has fewer than 2^31 of them.
    x = [np.zeros((1 << 30) + 1, "u1")] * 5
    bins = find_bins(n, (0, 1), np.dtype("u1"))
    counted = alone.count([x], bins, 1, rng)
    assert counted[0] == 5 * x[0].size
    assert not counted[1:].any()


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
def test_too_many_bins_are_for_other_kernels(gpus: Any) -> None:
    bins = find_bins(200_000, (0, 1), np.dtype("f4"))
    dtype = np.dtype("f4")
    assert gpus.cuda.multichunk_histogram(gpus.ordinals, dtype, bins) is None
