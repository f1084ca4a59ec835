"""Sums and running sums in float64 are held to exact arithmetic, for any chunking."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import dask.array as da
import numpy as np
import pytest
from support.loops import compile_from

import dask_coop as dc
from dask_coop import chunks

#: Half an ulp is what rounding takes; the rest is what partial sums of many elements may be off by.
SUM_ULPS = 0.75


@pytest.fixture(autouse=True, params=["loops", "numpy"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sum NumPy chunks of any size by Numba's loops, or by NumPy."""
    if request.param == "loops":
        pytest.importorskip("numba")
    compile_from(monkeypatch, {"loops": 1, "numpy": math.inf}[request.param])
    name: str = request.param
    return name


def uniform(n: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(n)


def chunked(xp: Any, x: Any, sizes: Any) -> Any:
    return da.from_array(xp.asarray(x), chunks=sizes, asarray=False)


def computed(lazy: Any) -> Any:
    return chunks.asarray(lazy.compute(scheduler="synchronous"), "numpy")


def ulps(found: Any, exact: Fraction) -> float:
    """Return how far a float is from an exact number, in units of the last place of that."""
    return abs(float((Fraction(float(found)) - exact) / Fraction(float(np.spacing(float(exact))))))


def exact_sum(x: Any) -> Fraction:
    """Return a sum to some 2**-105 of itself."""
    parts = np.ravel(x).tolist()
    total = math.fsum(parts)
    return Fraction(total) + Fraction(math.fsum([-total, *parts]))


SAME_SIGN = {
    "uniform": uniform(100_003),
    # Ones and what is nothing beside one of them, at random.
    "unlike": np.where(uniform(70_001, 1) < 0.5, 1.0, 1e-16),
    "equal": np.full(80_000, 0.1),
    "falling": np.exp(-uniform(50_000, 2) * 60),
    "short": uniform(37),
}


@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("name", SAME_SIGN)
def test_a_sum_is_the_exact_one_rounded(xp: Any, loops: str, name: str, count: int) -> None:
    x = SAME_SIGN[name]
    lazy = chunked(xp, x, -(-x.size // count))
    # Pairs are rounded as they are there, which costs what is too small beside its neighbour.
    bound = 1.5 if loops == "numpy" and name == "unlike" else SUM_ULPS
    exact = exact_sum(x)
    assert ulps(computed(dc.sum(lazy)), exact) <= bound
    assert ulps(computed(dc.sum(-lazy)), -exact) <= bound
    assert ulps(computed(dc.nansum(lazy)), exact) <= bound
    # And then divided, which rounds again.
    for mean in (dc.mean, dc.nanmean):
        assert ulps(computed(mean(lazy)), exact / x.size) <= bound + 1


def test_chunks_of_any_sizes_give_the_same_sum(xp: Any) -> None:
    x, rng = uniform(20_000, 3), np.random.default_rng(4)
    exact = exact_sum(x)
    for _ in range(10):
        cuts = np.sort(rng.integers(0, x.size, rng.integers(0, 40)))
        sizes = np.diff([0, *cuts, x.size]).tolist()
        assert ulps(computed(dc.sum(chunked(xp, x, (tuple(sizes),)), split_every=3)), exact) <= 0.75


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1), (1, 2), (0, 2)])
def test_sums_along_axes(xp: Any, axis: Any) -> None:
    x = uniform((6, 700, 9), 5)
    axes = axis if isinstance(axis, tuple) else (axis,)
    lines = np.moveaxis(x, axes, range(-len(axes), 0))
    exact = [exact_sum(lines[at]) for at in np.ndindex(lines.shape[: 3 - len(axes)])]
    for array in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
        for sizes in ((6, 700, 9), (2, 300, 9), (6, 100, 4)):
            for function, times in ((dc.sum, 1), (dc.mean, np.prod([x.shape[d] for d in axes]))):
                found = computed(function(chunked(xp, array, sizes), axis=axis))
                errors = [
                    ulps(a, b / int(times)) for a, b in zip(found.ravel(), exact, strict=True)
                ]
                assert max(errors) <= (SUM_ULPS if times == 1 else SUM_ULPS + 1)


def test_what_is_broadcast_is_summed() -> None:
    x = np.broadcast_to(uniform((300, 1), 5), (300, 200))
    for axis in (0, 1, None):
        for array in (x, x.T):
            found = computed(dc.sum(chunked(np, array, array.shape), axis=axis))
            np.testing.assert_allclose(found, np.sum(array, axis), 1e-13)


@pytest.mark.parametrize("dtype", ["f2", "f4", "i4", "u8", "?"])
def test_other_elements_are_summed_in_float64(xp: Any, dtype: str) -> None:
    x = (uniform(30_000, 6) * (2 if dtype[0] != "u" else 2.0**62)).astype(dtype)
    exact = exact_sum(x.astype("f8"))
    assert ulps(computed(dc.sum(chunked(xp, x, 900), dtype="f8")), exact) <= SUM_ULPS
    assert ulps(computed(dc.sum(chunked(xp, x, 900), dtype="c16")).real, exact) <= SUM_ULPS


def test_complex_numbers_masks_nan_and_a_start(xp: Any) -> None:
    z = uniform(30_000, 7) + 1j * uniform(30_000, 8)
    keep = uniform(z.size, 9) < 0.5
    lazy, mask = chunked(xp, z, 1000), chunked(xp, keep, 1000)
    total = computed(dc.sum(lazy, where=mask, initial=3 - 4j))
    assert ulps(total.real, exact_sum(z.real[keep]) + 3) <= SUM_ULPS
    assert ulps(total.imag, exact_sum(z.imag[keep]) - 4) <= SUM_ULPS + 0.25
    mean = computed(dc.mean(lazy, where=mask))
    assert ulps(mean.real, exact_sum(z.real[keep]) / int(keep.sum())) <= SUM_ULPS + 1
    z[::3] = np.nan
    lazy = chunked(xp, z, 1000)
    left = ~np.isnan(z)
    for function in (dc.nansum, dc.nanmean):
        found, times = computed(function(lazy)), 1 if function is dc.nansum else int(left.sum())
        assert ulps(found.imag, exact_sum(z.imag[left]) / times) <= SUM_ULPS + (times > 1)
        found = computed(function(lazy.real, where=mask))
        times = 1 if function is dc.nansum else int((left & keep).sum())
        assert ulps(found, exact_sum(z.real[left & keep]) / times) <= SUM_ULPS + (times > 1)


def test_mixed_signs_are_as_good_as_the_sum_of_sizes(xp: Any) -> None:
    x = np.random.default_rng(10).standard_normal(60_000) * np.exp(uniform(60_000, 11) * 40)
    exact, sizes = exact_sum(x), exact_sum(abs(x))
    for count in (1, 50):
        found = computed(dc.sum(chunked(xp, x, x.size // count)))
        assert abs(Fraction(float(found)) - exact) <= sizes / 2**53


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_infinities_nan_and_overflow_are_numpys(xp: Any) -> None:
    inf, nan, big = np.inf, np.nan, np.finfo("f8").max
    cases = [
        [1, inf, 2, 3],
        [inf, -inf, 1, 2],
        [1, nan, inf, 4],
        [-inf, -inf, 1, 2],
        [big, big, 1, 2],
        [big, 1, -1, 0],
        [big, -big, 1, 2],
        [-0.0, -0.0, -0.0, -0.0],
        [0.0, -0.0, 5e-324, -5e-324],
    ]
    for case in cases:
        x = np.array(case)
        for size in (4, 1):
            for array, expected in ((x, np.sum(x)), (x + 1j, np.sum(x + 1j))):
                found = computed(dc.sum(chunked(xp, array, size)))
                np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(computed(dc.mean(chunked(xp, x, size))), np.mean(x))
    assert not np.signbit(computed(dc.sum(chunked(xp, np.full(4, -0.0), 2))))
    assert computed(dc.sum(chunked(xp, np.empty(0), 1))) == 0
    assert np.isnan(computed(dc.mean(chunked(xp, np.empty(0), 1))))


#: The most that a running sum of numbers of one sign may be off by.
SCAN_ULPS = 16


def running_sum(x: Any) -> Any:
    """Return the running sums of a line, rounded, and what rounding has left of each."""
    pairs, total, rest = [], 0.0, 0.0
    for value in x.tolist():
        parts = total, rest, value
        total = math.fsum(parts)
        rest = math.fsum((*parts, -total))
        pairs.append((total, rest))
    return np.array(pairs).reshape(-1, 2).T


def running_sums(x: Any, axis: int, heads: Any = None) -> Any:
    """Return those of all lines, which restart at head flags, behind a first axis of two."""
    lines = np.moveaxis(x, axis, -1)
    flags = np.zeros(lines.shape, "?")
    if heads is not None:
        flags[:] = heads if heads.ndim == 1 else np.moveaxis(heads, axis, -1)
    sums = np.empty((2, *lines.shape))
    for at in np.ndindex(lines.shape[:-1]):
        parts = np.split(lines[at], np.flatnonzero(flags[at]))
        sums[(slice(None), *at)] = np.concatenate([running_sum(part) for part in parts], 1)
    return np.moveaxis(sums, -1, axis + 1)


def scan_errors(found: Any, exact: Any) -> Any:
    """Return how far running sums are off, in ulps."""
    totals, rests = exact
    with np.errstate(invalid="ignore"):
        return abs((found - totals) - rests) / np.spacing(abs(totals) + np.finfo("f8").tiny)


UNIFORM = uniform(60_000, 20)
EXACT = running_sum(UNIFORM)


@pytest.mark.parametrize("method", ["reduce-then-scan", "sequential", "recompute"])
@pytest.mark.parametrize("count", [1, 10, 300])
def test_every_running_sum_is_close(xp: Any, method: str, count: int) -> None:
    lazy = chunked(xp, UNIFORM, -(-UNIFORM.size // count))
    for function in (dc.cumsum, dc.nancumsum):
        found = computed(function(lazy, method=method))
        assert scan_errors(found, EXACT).max() <= SCAN_ULPS
    backwards = computed(dc.cumsum(lazy[::-1], method=method, reverse=True))[::-1]
    assert scan_errors(backwards, EXACT).max() <= SCAN_ULPS
    before = computed(dc.cumsum(lazy, method=method, exclusive=True))
    assert before[0] == 0
    assert scan_errors(before[1:], EXACT[:, :-1]).max() <= SCAN_ULPS
    longer = computed(dc.cumsum(lazy, method=method, include_initial=True))
    assert longer[0] == 0
    assert scan_errors(longer[1:], EXACT).max() <= SCAN_ULPS


@pytest.mark.parametrize("name", ["equal", "unlike", "falling"])
def test_running_sums_of_other_numbers_of_one_sign(xp: Any, name: str) -> None:
    x = SAME_SIGN[name][:30_000]
    for size in (x.size, 4001, (1, 17, x.size - 18)):
        found = computed(dc.cumsum(chunked(xp, x, (size,) if isinstance(size, tuple) else size)))
        assert scan_errors(found, running_sum(x)).max() <= SCAN_ULPS


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums_along_axes(xp: Any, axis: int) -> None:
    x = uniform((90, 130), 21)
    exact, flat = running_sums(x, axis), running_sum(x.ravel())
    for array in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
        for sizes in ((90, 130), (7, 130), (90, 11), (40, 50)):
            lazy = chunked(xp, array, sizes)
            found = computed(dc.cumulative_sum(lazy, axis=axis))
            assert scan_errors(found, exact).max() <= SCAN_ULPS
            assert scan_errors(computed(dc.cumsum(lazy)), flat).max() <= SCAN_ULPS


@pytest.mark.parametrize("shape", [(9000,), (30, 300), (300, 30)])
@pytest.mark.parametrize("share", [0.3, 0.002])
def test_running_sums_of_segments(xp: Any, shape: tuple[int, ...], share: float) -> None:
    x, axis = uniform(shape, 22), int(np.argmax(shape))
    for of in (shape, (shape[axis],)):
        heads = uniform(of, 23) < share
        exact = running_sums(x, axis, heads)
        for sizes in (shape, tuple(-(-n // 7) for n in shape)):
            lazy = chunked(xp, x, sizes)
            flags = chunked(xp, heads, sizes if of == shape else sizes[axis])
            for method in ("reduce-then-scan", "sequential"):
                found = computed(dc.cumsum(lazy, axis=axis, segments=flags, method=method))
                assert scan_errors(found, exact).max() <= SCAN_ULPS


@pytest.mark.parametrize("dtype", ["f2", "f4", "i4", "c8"])
def test_running_sums_of_other_elements(xp: Any, dtype: str) -> None:
    x = (uniform(20_000, 24) * 50).astype(dtype)
    found = computed(dc.cumsum(chunked(xp, x, 3000), dtype="c16" if dtype == "c8" else "f8"))
    assert scan_errors(found.real, running_sum(x.real.astype("f8"))).max() <= SCAN_ULPS


def test_running_sums_of_complex_numbers_without_nan(xp: Any) -> None:
    z = uniform(20_000, 25) + 1j * uniform(20_000, 26)
    z[::5] = np.nan
    found = computed(dc.nancumsum(chunked(xp, z, 3000)))
    kept = np.where(np.isnan(z), 0, z)
    for part, expected in ((found.real, kept.real), (found.imag, kept.imag)):
        assert scan_errors(part, running_sum(expected))[1:].max() <= SCAN_ULPS


def test_running_sums_of_mixed_signs_are_as_good_as_those_of_sizes(xp: Any) -> None:
    x = np.random.default_rng(27).standard_normal(20_000)
    totals, rests = running_sum(x)
    sizes = running_sum(abs(x))[0]
    for size in (x.size, 700):
        found = computed(dc.cumsum(chunked(xp, x, size)))
        assert (abs((found - totals) - rests) / np.spacing(sizes)).max() <= SCAN_ULPS


@pytest.mark.filterwarnings("ignore:.*encountered")
def test_running_sums_that_are_not_finite_are_numpys(xp: Any) -> None:
    rng, big = np.random.default_rng(28), np.finfo("f8").max
    # Chunks of one element where the values are.
    ones = (*[1] * 10, 135, *[1] * 20, 115, *[1] * 20)
    for values in ([np.inf], [-np.inf], [np.nan], [np.inf, -np.inf], [big], [big, -big / 2]):
        x = rng.integers(-9, 9, 300).astype("f8")
        for start in (3, 150, 290):
            y = x.copy()
            y[start : start + len(values)] = values
            for array in (y, y + 1j):
                expected = np.cumsum(array)
                for size in (300, 60, (ones,)):
                    found = computed(dc.cumsum(chunked(xp, array, size)))
                    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
                    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_running_sums_of_negative_zeros_on_the_host_are_numpys() -> None:
    for x in (np.full(20, -0.0), np.array([-0.0, -0.0, 0.0, -0.0, 1.0, -1.0, -0.0])):
        for size in (x.size, 3):
            found = computed(dc.cumsum(chunked(np, x, size), method="sequential"))
            np.testing.assert_array_equal(np.signbit(found), np.signbit(np.cumsum(x)))


def test_running_sums_are_the_same_bits_every_time(xp: Any) -> None:
    lazy = chunked(xp, UNIFORM, 7000)
    first, second = (computed(dc.cumsum(lazy)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


LARGE = uniform(3_000_000, 29)


@cache
def sums_of_large() -> tuple[Fraction, Any, Any]:
    """Return the exact sum of `LARGE`, its running sum after each thousand, and all of them.

    These are long doubles, which between the thousands have seen few additions.
    """
    # Blocks are exact in integers: no sum of them needs more bits than there are.
    scaled = (LARGE * 2.0**53).astype("u8").astype("O")
    ends = np.add.accumulate(np.add.reduceat(scaled, np.arange(0, LARGE.size, 1000)))
    base = np.r_[0, ends[:-1].astype(np.longdouble) / 2**53][:, np.newaxis]
    running = base + np.add.accumulate(LARGE.reshape(-1, 1000), 1, dtype=np.longdouble)
    return exact_sum(LARGE), [Fraction(int(end), 2**53) for end in ends], running


@pytest.mark.parametrize("count", [1, 10, 300])
def test_three_million_numbers(xp: Any, count: int) -> None:
    lazy = chunked(xp, LARGE, -(-LARGE.size // count))
    total, ends, running = sums_of_large()
    assert ulps(computed(dc.sum(lazy)), total) <= SUM_ULPS
    found = computed(dc.cumsum(lazy))
    for at, end in zip(range(999, LARGE.size, 1000), ends, strict=True):
        assert ulps(found[at], end) <= SCAN_ULPS
    if np.finfo(np.longdouble).nmant > 60:
        errors = abs(found.reshape(running.shape) - running) / np.spacing(running.astype("f8"))
        assert errors.max() <= SCAN_ULPS


@pytest.mark.parametrize("dtype", ["<f2", ">f2"])
def test_halves_of_either_byte_order_are_summed_and_scanned(dtype: str) -> None:
    x = np.array([0.5, np.nan, 2.0], dtype)
    lazy = da.from_array(x, chunks=2)
    assert computed(dc.nansum(lazy, dtype="f8")) == 2.5
    np.testing.assert_array_equal(computed(dc.nancumsum(lazy, dtype="f8")), [0.5, 0.5, 2.5])


@pytest.mark.parametrize("dtype", ["f8", "i8", "c16"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_variance_far_from_zero_keeps_its_digits(xp: Any, axis: Any, dtype: str) -> None:
    rng = np.random.default_rng(12)
    x = (1e12 + rng.normal(size=(300, 200)) * (1 if dtype != "i8" else 50)).astype(dtype)
    if dtype == "c16":
        x += 1j * x.real[::-1]
    keep = rng.random(x.shape) < 0.9
    # Chunks of which nothing counts.
    keep[:40, :2], keep[:40, 2:] = True, False
    for where in (True, keep):
        parts = [x.real, x.imag] if dtype == "c16" else [x]
        # Which is exact, and then so are means of 64 bits.
        wide = [(part - 10**12).astype("g") for part in parts]
        expected = sum(part.var(axis, where=where, ddof=1) for part in wide)
        for sizes in ((300, 200), (20, 30), (7, 200)):
            lazy = chunked(xp, x, sizes)
            found = computed(dc.var(lazy, axis, where=where, ddof=1))
            # The squares are added up as they are.
            np.testing.assert_allclose(found, expected.astype("f8"), 1e-14)
            of_chunks = computed(dc.nanstd(lazy, axis, where=where, ddof=1))
            np.testing.assert_allclose(of_chunks, np.sqrt(expected).astype("f8"), 1e-14)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_gap_longer_than_a_block_costs_no_digits(xp: Any, axis: int) -> None:
    x = 1e8 + np.random.default_rng(13).normal(size=(20_000, 3))
    x[100:15_000] = np.nan
    there = (x[~np.isnan(x[:, 0])] - 1e8).astype("g")
    x = x if axis == 0 else x.T
    lazy = chunked(xp, x, x.shape)
    variance, fourth = there.var(0), ((there - there.mean(0)) ** 4).mean(0)
    np.testing.assert_allclose(computed(dc.nanvar(lazy, axis)), variance.astype("f8"), 1e-14)
    found = computed(dc.kurtosis(lazy, axis, nan_policy="omit"))
    np.testing.assert_allclose(found, (fourth / variance**2 - 3).astype("f8"), 1e-6)
    described = computed(dc.describe(lazy, axis).var)
    np.testing.assert_allclose(described, variance.astype("f8"), 1e-7)
