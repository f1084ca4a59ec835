"""Covariances, correlations and lines by group, against pandas, SciPy and fractions."""

from __future__ import annotations

import warnings
from fractions import Fraction
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import chunkings

import dask_coop as dc

pd = pytest.importorskip("pandas", reason="the judge of covariances by group is pandas")
stats = pytest.importorskip("scipy.stats", reason="the judge of lines is SciPy")

LINES = ["slope", "intercept", "corr", "pvalue", "stderr", "intercept_stderr"]
NAMES = ["cov", *LINES]
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


def variables(*shape: int, gaps: bool = True) -> tuple[Any, Any]:
    """Return two variables that depend on each other."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    y = 3 - 2 * x + rng.normal(size=shape)
    if gaps:
        x[rng.random(shape) < 0.1], y[rng.random(shape) < 0.1] = np.nan, np.nan
    return x, y


def judged(x: Any, y: Any, alternative: str = "two-sided") -> list[float]:
    """Return the statistics of pairs without NaN, by pandas and SciPy."""
    table = pd.DataFrame({"x": x, "y": y, "by": 0})
    cov = table.groupby("by")["x"].cov(table["y"])[0]
    corr = table.groupby("by")["x"].corr(table["y"])[0]
    valid = ~(np.isnan(x) | np.isnan(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        line = stats.linregress(x[valid], y[valid], alternative)
    assert np.isclose(line.rvalue, corr, **CLOSE)
    of_line = line.slope, line.intercept, corr, line.pvalue, line.stderr, line.intercept_stderr
    return [cov, *of_line]


@pytest.mark.usefixtures("_compiled_groups")
@pytest.mark.parametrize("chunks", [(6, 200), (2, 37), (1, 3)], ids=str)
@pytest.mark.parametrize("label", ["known", "lazy", "found"])
def test_groups_are_those_of_pandas_and_scipy(xp: ModuleType, chunks: Any, label: str) -> None:
    x, y = variables(6, 200)
    by = np.random.default_rng(1).integers(-1, 4, 200)
    labels = by if label == "known" else da.from_array(by, chunks=60)
    expected = None if label == "found" else range(4)
    got, groups = dc.groupby_reduce(
        to_chunks(xp, x, chunks),
        labels,
        func=[f"nan{name}" for name in NAMES],
        y=to_chunks(xp, y, (3, 50)),
        expected_groups=expected,
    )
    got = dask.compute(*got, scheduler="synchronous")
    (groups,) = dask.compute(groups)
    first = int(label == "found")
    assert groups[first:].tolist() == [0, 1, 2, 3]
    for line in range(6):
        for group in range(4):
            want = judged(x[line, by == group], y[line, by == group])
            values = [float(array[line, group + first]) for array in got]
            np.testing.assert_allclose(values, want, **CLOSE)


@settings(deadline=None)
@given(st.data())
def test_any_chunks_have_the_same_results(xp: ModuleType, data: st.DataObject) -> None:
    x, y = variables(3, 40)
    x[1], y[2] = 0.1, 1 / 3
    by = np.arange(120).reshape(3, 40) % 7 % 3
    sides = data.draw(chunkings(x.shape)), data.draw(chunkings(x.shape))
    func = data.draw(st.sampled_from(NAMES).map("nan{}".format))
    options = {"axis": data.draw(st.sampled_from([None, 1])), "fill_value": np.nan}
    want, _ = dc.groupby_reduce(da.from_array(x), by, func=func, y=y, **options)
    labels = da.from_array(by, chunks=17) if data.draw(st.booleans()) else by
    got, _ = dc.groupby_reduce(
        to_chunks(xp, x, sides[0]),
        labels,
        func=func,
        y=to_chunks(xp, y, sides[1]),
        expected_groups=[0, 1, 2],
        **options,
    )
    np.testing.assert_allclose(to_numpy(xp, got), want.compute(), rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("_compiled_groups")
@pytest.mark.parametrize("chunks", [400, 31, 1])
def test_a_large_offset_costs_no_digits(xp: ModuleType, chunks: int) -> None:
    x, y = (v + 1e9 for v in variables(400, gaps=False))
    by = np.arange(400) % 3
    (cov, slope), _ = dc.groupby_reduce(
        to_chunks(xp, x, chunks), by, func=["cov", "slope"], y=to_chunks(xp, y, chunks)
    )
    cov, slope = to_numpy(xp, cov), to_numpy(xp, slope)
    for group in range(3):
        d, e = (_deviations(v[by == group]) for v in (x, y))
        products = sum(a * b for a, b in zip(d, e, strict=True))
        assert abs(cov[group] / float(products / (len(d) - 1)) - 1) < 1e-12
        assert abs(slope[group] / float(products / sum(a * a for a in d)) - 1) < 1e-12


def _deviations(values: Any) -> list[Fraction]:
    exact = [Fraction(float(value)) for value in values]
    mean = sum(exact) / len(exact)
    return [value - mean for value in exact]


@pytest.mark.parametrize("func", NAMES)
def test_nan_and_infinity_spoil_their_own_group(xp: ModuleType, func: str) -> None:
    x, y = variables(20, gaps=False)
    x[2], y[5], x[3] = np.nan, np.nan, np.inf
    by = np.arange(20) % 4
    for name, spoiled in ((func, [1, 2, 3]), (f"nan{func}", [3])):
        got, _ = dc.groupby_reduce(to_chunks(xp, x, 5), by, func=name, y=to_chunks(xp, y, 5))
        assert np.flatnonzero(np.isnan(to_numpy(xp, got))).tolist() == spoiled


@pytest.mark.usefixtures("_compiled_groups")
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e9 + 0.1, 1e100])
@pytest.mark.parametrize("n", [3, 10, 1000])
def test_elements_that_do_not_vary(xp: ModuleType, value: float, n: int) -> None:
    same, other = np.full(n, value), np.random.default_rng(2).random(n)
    by, chunks = np.zeros(n, int), n // 3
    for x, y, slope in ((same, other, np.nan), (other, same, 0)):
        got, _ = dc.groupby_reduce(to_chunks(xp, x, chunks), by, func=["corr", "slope"], y=y)
        values = [to_numpy(xp, array)[0] for array in got]
        np.testing.assert_array_equal(values, [np.nan, slope])


def test_few_pairs_and_other_fill_values(xp: ModuleType) -> None:
    x, by = np.array([0.0, 1, 3, 4, np.nan, 7]), np.array([0, 0, 0, 1, 1, 2])
    arguments = to_chunks(xp, x, 4), by
    y = to_chunks(xp, x * 2, 4)
    options: dict[str, Any] = {"y": y, "expected_groups": range(4)}
    for func, least, want in (
        ("cov", 0, [14 / 3, np.nan, np.nan, -7]),
        ("cov", 2, [14 / 3, -7, -7, -7]),
        ("nancov", 1, [14 / 3, np.nan, np.nan, -7]),
        ("nancov", 3, [14 / 3, -7, -7, -7]),
        ("nancov", 4, [-7, -7, -7, -7]),
    ):
        for labels in (by, da.from_array(by, chunks=4)):
            got, _ = dc.groupby_reduce(
                arguments[0], labels, func=func, fill_value=-7, min_count=least, **options
            )
            np.testing.assert_allclose(to_numpy(xp, got), want)
    got, _ = dc.groupby_reduce(*arguments, func="cov", finalize_kwargs={"ddof": 0}, **options)
    np.testing.assert_allclose(to_numpy(xp, got), [28 / 9, np.nan, 0, np.nan])
    got, _ = dc.groupby_reduce(*arguments, func="cov", finalize_kwargs={"ddof": 3}, **options)
    assert np.isnan(to_numpy(xp, got)[1:]).all()


@pytest.mark.parametrize("alternative", ["less", "greater"])
def test_alternatives(xp: ModuleType, alternative: str) -> None:
    x, y = variables(60, gaps=False)
    (p, slope), _ = dc.groupby_reduce(
        to_chunks(xp, x, 13),
        np.arange(60) % 2,
        func=["pvalue", "slope"],
        y=y if xp is np else to_chunks(xp, y, 13),
        finalize_kwargs={"alternative": alternative},
    )
    want = [judged(x[i::2], y[i::2], alternative) for i in range(2)]
    np.testing.assert_allclose(to_numpy(xp, p), [row[4] for row in want], **CLOSE)
    np.testing.assert_allclose(to_numpy(xp, slope), [row[1] for row in want], **CLOSE)


@pytest.mark.parametrize("dtypes", ["?i2", "u1f4", "f2f2", "i8f8"])
def test_dtypes(xp: ModuleType, dtypes: str) -> None:
    x, y = (np.random.default_rng(3).integers(0, 2, (2, 90)) * 3).astype("f8")
    x, y = x.astype(dtypes[:-2]), (y + np.arange(90)).astype(dtypes[-2:])
    by = np.arange(90) % 4
    got, _ = dc.groupby_reduce(to_chunks(xp, x, 20), by, func="cov", y=to_chunks(xp, y, 30))
    want = [np.cov(x[by == i].astype("f8"), y[by == i].astype("f8"))[0, 1] for i in range(4)]
    assert got.dtype == "f8"
    np.testing.assert_allclose(to_numpy(xp, got), want, **CLOSE)
    narrow, _ = dc.groupby_reduce(
        to_chunks(xp, x, 20), by, func="cov", y=to_chunks(xp, y, 30), dtype="f4"
    )
    np.testing.assert_allclose(to_numpy(xp, narrow), np.float32(want), rtol=1e-6)


def test_either_array_is_broadcast(xp: ModuleType) -> None:
    x, y = np.arange(50.0) ** 2, variables(4, 50)[1]
    by = np.arange(50) % 3
    line, many = to_chunks(xp, x, 20), to_chunks(xp, y, (2, 17))
    slope, _ = dc.groupby_reduce(line, by, func="nanslope", y=many)
    other, _ = dc.groupby_reduce(many, by, func="nanslope", y=line)
    assert slope.chunks[0] == other.chunks[0] == (2, 2)
    slope, other = to_numpy(xp, slope), to_numpy(xp, other)
    for i in range(4):
        for group in range(3):
            inside = (by == group) & ~np.isnan(y[i])
            a, b = x[inside], y[i, inside]
            np.testing.assert_allclose(slope[i, group], stats.linregress(a, b).slope, **CLOSE)
            np.testing.assert_allclose(other[i, group], stats.linregress(b, a).slope, **CLOSE)


def test_other_statistics_of_complex_numbers_stay() -> None:
    # Their elements are counted by the loops that count pairs.
    x = np.array([1, 2j, np.nan, 4])
    got, _ = dc.groupby_reduce(da.from_array(x, chunks=3), [0, 0, 1, 1], func=["count", "mean"])
    np.testing.assert_array_equal(got[0].compute(), [2, 1])
    np.testing.assert_array_equal(got[1].compute(), [0.5 + 1j, np.nan])


def test_what_pairs_refuse() -> None:
    x, by = da.ones(6, chunks=2), np.arange(6) % 2
    with pytest.raises(TypeError, match="func='cov' takes pairs; pass the second array as y="):
        dc.groupby_reduce(x, by, func="cov")
    with pytest.raises(ValueError, match="got func='mean'; statistics of one array take no y"):
        dc.groupby_reduce(x, by, func=["cov", "mean"], y=x)
    with pytest.raises(ValueError, match="alternative must be"):
        dc.groupby_reduce(x, by, func="pvalue", y=x, finalize_kwargs={"alternative": "more"})
    with pytest.raises(TypeError, match="slope takes no 'ddof'"):
        dc.groupby_reduce(x, by, func="slope", y=x, finalize_kwargs={"ddof": 1})
    with pytest.raises(ValueError, match=r"y of shape \(3,\) does not fit an array of shape"):
        dc.groupby_reduce(x, by, func="cov", y=x[:3])
    with pytest.raises(TypeError, match="complex"):
        dc.groupby_reduce(x, by, func="cov", y=x * 1j)
    with pytest.raises(TypeError, match="MaskedArray"):
        dc.groupby_reduce(x, by, func="cov", y=da.ma.masked_greater(x, 3))


def test_pairs_of_unknown_sizes_are_refused() -> None:
    x = da.from_array(np.array([1.0, -9, -9, -9, 5, 6, 7, 8]), chunks=4)
    y, some = da.arange(8.0, chunks=4), x[x > -5]
    with pytest.raises(ValueError, match="needs known chunk sizes"):
        dc.groupby_reduce(some, [0] * 4 + [1] * 4, func="cov", y=y)
    for call in (lambda: dc.average(some, weights=y), lambda: dc.crosstab(some, y)):
        with pytest.raises(ValueError, match="where one of the lengths is unknown"):
            call()
