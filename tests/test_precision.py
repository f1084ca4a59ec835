"""Sums and running sums in float64 are held to exact arithmetic, for any chunking."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop import chunks
from dask_coop.chunks import adding

#: Half an ulp is what rounding takes; the rest is what partial sums of many elements may be off by.
SUM_ULPS = 0.75


@pytest.fixture(autouse=True, params=["loops", "numpy"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sum NumPy chunks of any size by Numba's loops, or by NumPy."""
    if request.param == "loops":
        pytest.importorskip("numba")
    worth = {"loops": 1, "numpy": 1 << 60}[request.param]
    monkeypatch.setattr(adding, "WORTH_COMPILING", worth)
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
