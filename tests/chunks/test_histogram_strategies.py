"""Every strategy of the histogram of CuPy chunks counts as NumPy does, for every dtype."""

from __future__ import annotations

import importlib
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import missing_for_gpu

from dask_coop.algebra.bins import find_bins
from dask_coop.algebra.strategies import HISTOGRAM, MULTICHUNK

STRATEGIES = tuple(name for name in HISTOGRAM if name != MULTICHUNK)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
@pytest.mark.parametrize("limits", [(0, 1), (-3.7, 1e5), (5, 5), (1e-30, 2e-30), (-7, 9)])
@pytest.mark.parametrize("n", [1, 10, 1000, 4097])
def test_edges_on_a_line_are_numpys(dtype: str, limits: Any, n: int) -> None:
    try:
        bins = find_bins(n, limits, np.dtype(dtype))
    except ValueError:
        pytest.skip("NumPy refuses so many bins")
    if bins.line is not None:
        step, start = bins.line
        edges = (np.arange(n) * step + start).astype(bins.edges.dtype)
        np.testing.assert_array_equal(edges, bins.edges[:-1])
    else:
        assert limits == (1e-30, 2e-30)


def test_any_edges_are_not_a_line() -> None:
    assert find_bins([0, 1, 3], None, np.dtype("f8")).line is None


@pytest.fixture(name="cuda")
def _cuda() -> Any:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    return importlib.import_module("dask_coop.chunks.cupy.histogram_strategies")


def count(cuda: Any, x: Any, bins: Any, weights: Any = None, **options: Any) -> Any:
    import cupy

    is_float = weights is not None and weights.dtype.kind == "f"
    table = cupy.zeros(bins.n, "f8" if is_float else "i8")
    on_device = cupy.asarray(weights) if weights is not None else None
    cuda.count(cupy.asarray(x), on_device, bins, table, **options)
    return cupy.asnumpy(table)


def objection(cuda: Any, x: Any, bins: Any, strategy: str) -> Any:
    """Say why a strategy is not for such samples and bins; "" if it is."""
    gpu = cuda.device(0)
    lookup = cuda.look_up(gpu, x.dtype, bins)
    case = cuda._Case(gpu, bins.n, x.size, x.itemsize, lookup.finder.kind, lookup.staged)
    return cuda._objection(case, strategy, False)


def samples(dtype: str, size: int, seed: int = 0) -> Any:
    """Return samples of which some lie on edges, some outside, some are not numbers."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind != "f":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -1000), min(info.max, 1000), size).astype(dtype)
    x = rng.normal(0.5, 0.4, size).astype(dtype)
    x[::7] = np.round(x[::7] * 64) / 64
    x[::1001] = np.nan
    x[1::1001] = np.inf
    x[2::1001] = -np.inf
    return x


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_edges(cuda: Any, strategy: str) -> None:
    x = samples("f4", 100_000)
    rng = np.random.default_rng(1)
    for n in (1, 2, 300, 40_000):
        edges = np.sort(rng.random(n + 1)).astype("f4")
        edges[n // 2] = edges[n // 2 + 1]
        bins = find_bins(edges, None, x.dtype)
        if objection(cuda, x, bins, strategy):
            continue
        expected, _ = np.histogram(x, edges)
        np.testing.assert_array_equal(count(cuda, x, bins, strategy=strategy), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_samples_that_are_all_equal(cuda: Any, strategy: str) -> None:
    x = np.full(3_000_001, 0.3, "f4")
    x[1_000_000:1_500_000] = 0.7
    for n in (10, 50_000, 70_000, 200_000):
        bins = find_bins(n, (0, 1), x.dtype)
        if objection(cuda, x, bins, strategy):
            continue
        expected, _ = np.histogram(x, n, (0, 1))
        np.testing.assert_array_equal(count(cuda, x, bins, strategy=strategy), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("limits", [(0, 10), (0, 9), (-20, 20), (-0.3, 11.4), (1000, 1001)])
def test_samples_on_edges(cuda: Any, limits: Any, dtype: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 11, 50_000).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[::3] = rng.choice([-0.0, 0.1, 0.3, -20, -0.3, 11.4, 1000, 1000.5], x[::3].size)
    for n in (10, 40, 90, 100, 128, 1000, 100_000):
        if limits == (1000, 1001) and dtype == "f4" and n == 100_000:
            continue  # NumPy refuses so many bins
        bins = find_bins(n, limits, x.dtype)
        if np.dtype(dtype).kind == "f":
            x[1::3] = rng.choice(bins.edges, x[1::3].size)
            x[2::9] = np.nextafter(
                x[2::9], rng.choice([-np.inf, np.inf], x[2::9].size).astype(dtype)
            )
        expected, _ = np.histogram(x, n, limits)
        np.testing.assert_array_equal(count(cuda, x, bins), expected, f"{n} bins")


@pytest.mark.gpu
def test_edges_that_are_far_apart_or_infinite(cuda: Any) -> None:
    x = samples("f8", 10_000)
    for edges in (
        [-np.inf, 0, 0.5, np.inf],
        [-1e308, 0.1, 0.2, 1e308],
        [0, 0, 0, 0.5, 0.5, 1, 1, 1],
        [0, 1e-300, 1],
        [0.5, 0.5],
    ):
        bins = find_bins(edges, None, x.dtype)
        expected, _ = np.histogram(x, edges)
        np.testing.assert_array_equal(count(cuda, x, bins), expected)
    wide = np.array([-(2**63), -1, 0, 5, 2**62, 2**63 - 1])
    bins = find_bins(wide, None, wide.dtype)
    np.testing.assert_array_equal(count(cuda, wide, bins), np.histogram(wide, wide)[0])


@pytest.mark.gpu
def test_every_strategy_is_for_something(cuda: Any) -> None:
    gpu = cuda.Device("sm_90", 132, 232_448, True)
    sizes = (1 << 16, 1 << 22, 1 << 30)
    ns = (16, 57_000, 65_536, 114_688, 131_072, 200_000, 262_144, 1 << 20, 1 << 24, 1 << 25)
    chosen = set()
    for finder in ("guessed", "searched"):
        for itemsize in (1, 4):
            for size in sizes:
                for n in ns:
                    case = cuda._Case(gpu, n, size, itemsize, finder)
                    chosen.add(cuda._choose(case, weighted=False))
    # "distributed" loses to one of these on an H100; docs/strategies.md tells by how much.
    assert chosen == {"bytes", "shared", "packed", "split", "partition", "global"}


@pytest.mark.gpu
def test_what_is_chosen_fits_smaller_gpus(cuda: Any) -> None:
    for arch, shared_bytes in (("sm_75", 64 << 10), ("sm_86", 99 << 10), ("sm_80", 163 << 10)):
        gpu = cuda.Device(arch, 40, shared_bytes, False)
        for n in (10, 10_000, 25_000, 70_000, 1 << 20, 1 << 25):
            for size in (1 << 16, 1 << 28):
                chosen = cuda._choose(cuda._Case(gpu, n, size, 4, "guessed"), weighted=False)
                assert chosen != "distributed"
                assert chosen != "partition" or arch == "sm_80"


@pytest.mark.gpu
def test_sorted_samples_in_several_slabs(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LISTS_BYTES", 1 << 19)
    x = np.sort(samples("f4", 1_000_003))
    bins = find_bins(500_000, (0, 1), x.dtype)
    expected, _ = np.histogram(x, 500_000, (0, 1))
    np.testing.assert_array_equal(count(cuda, x, bins, strategy="partition"), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("weight", ["?", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("strategy", ["shared", "split", "global"])
def test_weights(cuda: Any, strategy: str, weight: str) -> None:
    x = samples("f4", 200_003)
    rng = np.random.default_rng(2)
    weights = rng.normal(0, 30, x.size)
    weights = (abs(weights) if np.dtype(weight).kind in "bu" else weights).astype(weight)
    more = () if strategy == "shared" else (65_536, 100_000)
    for n in (1, 2048, 19_000, *more):
        bins = find_bins(n, (0, 1), x.dtype)
        result = count(cuda, x, bins, weights, strategy=strategy)
        inside = (x >= 0) & (x <= 1)
        index = np.minimum(np.searchsorted(bins.edges, x[inside], "right") - 1, n - 1)
        if np.dtype(weight).kind != "f":
            expected = np.zeros(n, "i8")
            np.add.at(expected, index, weights[inside].astype("i8"))
            np.testing.assert_array_equal(result, expected)
        else:
            wide = weights[inside].astype(np.longdouble)
            expected, size = np.zeros(n, wide.dtype), np.zeros(n, wide.dtype)
            np.add.at(expected, index, wide)
            np.add.at(size, index, abs(wide))
            assert (abs(result - expected) <= 1e-15 * size).all()
            np.testing.assert_array_equal(
                result, count(cuda, x, bins, weights, strategy=strategy), "another run"
            )


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["shared", "split", "global"])
def test_weights_that_are_not_finite(cuda: Any, strategy: str) -> None:
    x = np.array([0.1, 0.3, 0.3, 0.5, 0.7, 0.7, 0.9], "f4")
    weights = np.array([1, np.inf, 2, np.nan, np.inf, -np.inf, 5e-324])
    bins = find_bins(5, (0, 1), x.dtype)
    expected, _ = np.histogram(x, 5, (0, 1), weights=weights)
    result = count(cuda, x, bins, weights, strategy=strategy)
    np.testing.assert_array_equal(result[:4], [1, np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(expected[:3], [1, np.inf, np.nan])
    assert result[4] == pytest.approx(0, abs=1e-18)
    tiny = np.full(7, 5e-320)
    assert count(cuda, x, bins, tiny, strategy=strategy).sum() == pytest.approx(3.5e-319, rel=1e-3)


def exact(x: Any, weights: Any, n: int) -> tuple[Any, Any]:
    """Return sums of weights by bin of [0, 1], and of their sizes."""
    wide = weights.astype(np.longdouble)
    expected, size = np.zeros(n, wide.dtype), np.zeros(n, wide.dtype)
    at = np.minimum((x.astype("f8") * n).astype(int), n - 1)
    np.add.at(expected, at, wide)
    np.add.at(size, at, abs(wide))
    return expected, size


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["shared", "split", "global"])
@pytest.mark.parametrize("samples_of", ["equal", "half equal", "runs", "sorted", "few"])
def test_weights_of_samples_that_are_alike(cuda: Any, samples_of: str, strategy: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.random(700_001).astype("f4")
    match samples_of:
        case "equal":
            x[:] = 0.3
        case "half equal":
            x[rng.random(x.size) < 0.5] = 0.3
        case "runs":
            x = np.repeat(x[: x.size // 5 + 1], 5)[: x.size]
        case "sorted":
            x.sort()
        case "few":
            x = (x * 3).round().astype("f4") / 4
    more = () if strategy == "shared" else (65_536,)
    for weight in ("f4", "f8", "i4"):
        weights = (rng.normal(100, 200, x.size) * rng.choice([1, 1e-4, 0], x.size)).astype(weight)
        for n in (8, 4096, 16_384, *more):
            result = count(cuda, x, find_bins(n, (0, 1), x.dtype), weights, strategy=strategy)
            expected, size = exact(x, weights, n)
            assert (abs(result - expected) <= 1e-15 * size).all()


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["shared", "split", "global"])
@pytest.mark.parametrize("weight", ["f4", "f8"])
def test_weights_that_are_heavier_than_those_that_were_looked_at(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, weight: str, strategy: str
) -> None:
    monkeypatch.setattr(cuda, "_LOOKED_AT", 1000)
    rng = np.random.default_rng(7)
    x = rng.random(200_000).astype("f4")
    for heavy in (3.0, 3e3, 3e8, 3e30):
        weights = rng.normal(size=x.size).astype(weight)
        weights[777::4001] = heavy
        bins = find_bins(64, (0, 1), x.dtype)
        result = count(cuda, x, bins, weights, strategy=strategy)
        expected, size = exact(x, weights, 64)
        assert (abs(result - expected) <= 1e-15 * size).all()
        # Nothing but zeros told what is heavy.
        weights[np.arange(x.size) % 4001 != 777] = 0
        result = count(cuda, x, bins, weights, strategy=strategy)
        np.testing.assert_array_equal(result, exact(x, weights, 64)[0].astype("f8"))


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["shared", "split", "global"])
@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_weights_that_are_not_aligned_as_their_samples(
    cuda: Any, dtype: str, strategy: str
) -> None:
    import cupy

    rng = np.random.default_rng(8)
    x, weights = rng.integers(0, 9, 5000).astype(dtype), rng.integers(0, 9, 5000).astype("f4")
    samples_there, weights_there = cupy.asarray(x), cupy.asarray(weights)
    bins = find_bins(9, (0, 9), x.dtype)
    for begin, other, size in product(range(5), range(5), (1, 2, 3, 6, 4321)):
        table = cupy.zeros(bins.n)
        parts = samples_there[begin : begin + size], weights_there[other : other + size]
        cuda.count(*parts, bins, table, strategy=strategy)
        part = x[begin : begin + size].astype(int)
        expected = np.bincount(part, weights[other : other + size], 9)
        np.testing.assert_array_equal(cupy.asnumpy(table), expected, f"{begin} {other} {size}")


@pytest.mark.gpu
def test_a_strategy_that_cannot_be_had_says_why(cuda: Any) -> None:
    x = samples("f4", 10)
    with pytest.raises(ValueError, match="takes the chunks of a Node or a collective together"):
        count(cuda, x, find_bins(5, (0, 1), x.dtype), strategy=MULTICHUNK)
    with pytest.raises(ValueError, match=r"takes up to \d+ bins here, not 1000000"):
        count(cuda, x, find_bins(1_000_000, (0, 1), x.dtype), strategy="shared")
    with pytest.raises(ValueError, match="takes samples of 1 byte, not 4"):
        count(cuda, x, find_bins(5, (0, 1), x.dtype), strategy="bytes")
    with pytest.raises(ValueError, match="does not take weights"):
        count(cuda, x, find_bins(5, (0, 1), x.dtype), x, strategy="packed")
