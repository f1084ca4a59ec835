"""to_hist against the histograms' own fill: the same counts, to the last sample."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable
from typing import Any

import boost_histogram as bh
import dask
import dask.array as da
import hist
import numpy as np
import pytest
from conftest import to_chunks
from hypothesis import given
from hypothesis import strategies as st
from support.calls import refuse
from support.processes import printed

import dask_coop as dc
from dask_coop.errors import pip_install

LOG, SQRT = bh.axis.transform.log, bh.axis.transform.sqrt
RNG = np.random.default_rng(5)

AXES = {
    "plain": bh.axis.Regular(50, 0, 1),
    "one bin": bh.axis.Regular(1, -1, 3),
    "uneven limits": bh.axis.Regular(7, -1, 0.3),
    "wide": bh.axis.Regular(1000, -1e-3, 1e5),
    "far from zero": bh.axis.Regular(10, -1e10, 1),
    "nearly no width": bh.axis.Regular(10, 1, 1 + 1e-15),
    "huge": bh.axis.Regular(10, 0, 1e300),
    "without overflow": bh.axis.Regular(50, 0, 1, overflow=False),
    "without underflow": bh.axis.Regular(50, 0, 1, underflow=False),
    "without flow": bh.axis.Regular(9, 0.1, 1, underflow=False, overflow=False),
    "log": bh.axis.Regular(12, 0.1, 1000, transform=LOG),
    "sqrt from zero": bh.axis.Regular(13, 0, 10, transform=SQRT),
    "sqrt": bh.axis.Regular(13, 2, 10, transform=SQRT),
    "variable": bh.axis.Variable([0, 0.1, 0.5, 7]),
    "variable without overflow": bh.axis.Variable([0, 0.1, 0.7], overflow=False),
    "infinite": bh.axis.Variable([-np.inf, 0.1, 0.5, np.inf]),
    "hist's": hist.axis.Regular(20, -2, 2, name="x", label="x [m]"),
}


ONES, PLAIN = da.ones(4, chunks=2), AXES["plain"]


def around(axis: Any) -> Any:
    """Return what lies at the edges of an axis, a few floats beside them, between and far off."""
    parts = [axis.edges]
    for way in (-np.inf, np.inf):
        beside = axis.edges
        for _ in range(4):
            beside = np.nextafter(beside, way)
            parts.append(beside)
    finite = axis.edges[np.isfinite(axis.edges)]
    parts.append(RNG.uniform(finite[0], finite[-1], 500))
    parts.append([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -5e-324, 1e308, -1e308, -1, 2])
    return RNG.permutation(np.concatenate(parts))


def filled(bins: Any, *samples: Any, **given: Any) -> Any:
    """Return what the histogram's own ``fill`` makes of an empty copy."""
    found = bins.copy()
    found.fill(*samples, **given)
    return found


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "u1"])
def test_counts_are_those_of_fill_to_the_last_sample(xp: Any, name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = around(AXES[name])
        x = x.astype(dtype) if dtype[0] == "f" else np.nan_to_num(x).clip(0, 200).astype(dtype)
    found = dc.to_hist(to_chunks(xp, x, 100), AXES[name]).compute()
    empty = (hist.Hist if name == "hist's" else bh.Histogram)(AXES[name])
    assert type(found) is type(empty)
    assert found == filled(empty, x)


@pytest.mark.parametrize("name", ["plain", "log", "variable"])
def test_compiled_loops_find_the_same_bins(name: str) -> None:
    x = np.tile(around(AXES[name]), 200)
    assert x.size > 1 << 16
    lazy, w = da.from_array(x, chunks=-1), RNG.integers(0, 9, x.size)
    assert dc.to_hist(lazy, AXES[name]).compute() == filled(bh.Histogram(AXES[name]), x)
    weighed = bh.Histogram(AXES[name], storage=bh.storage.Weight())
    assert dc.to_hist(lazy, AXES[name], w).compute() == filled(weighed, x, weight=w)


FINITE = st.floats(-1e15, 1e15)


@given(
    limits=st.tuples(FINITE, FINITE).filter(lambda pair: pair[0] < pair[1]),
    n=st.integers(1, 40),
    flow=st.fixed_dictionaries({"underflow": st.booleans(), "overflow": st.booleans()}),
)
def test_any_regular_axis_is_counted_as_by_fill(limits: Any, n: int, flow: Any) -> None:
    axis = bh.axis.Regular(n, *limits, **flow)
    x = around(axis)
    assert dc.to_hist(x, axis).compute() == filled(bh.Histogram(axis), x)


@pytest.mark.parametrize("dtype", ["?", "u1", "i4", "u8", "i8"])
@pytest.mark.parametrize("flow", [{}, {"overflow": False}, {"underflow": False}])
def test_integers(xp: Any, dtype: str, flow: Any) -> None:
    x = RNG.integers(0, 2 if dtype == "?" else 12, 70).astype(dtype)
    axis = bh.axis.Integer(1, 9, **flow)
    found = dc.to_hist(to_chunks(xp, x, 30), axis).compute()
    assert found == filled(bh.Histogram(axis), x)


def test_integers_beyond_those_of_axes_are_below_or_above() -> None:
    x = np.array([-(2**40), 2**62, 3, 2**32 + 1])
    found = dc.to_hist(x, bh.axis.Integer(1, 4)).compute()
    assert found.values(flow=True).tolist() == [1, 0, 0, 1, 2]


def test_bool_on_an_axis_of_its_own(xp: Any) -> None:
    x = np.array([True, False, True])
    found = dc.to_hist(to_chunks(xp, x, 2), hist.axis.Boolean(name="passed")).compute()
    assert found.values().tolist() == [1, 2]
    assert found.axes[0].name == "passed"


# Weights and storages.


@pytest.mark.parametrize("dtype", ["f8", "f4", "i2", "?"])
def test_weights_add_up_to_sums_and_their_squares_to_variances(xp: Any, dtype: str) -> None:
    x, w = RNG.normal(size=300), RNG.integers(-4, 5, 300).astype(dtype)
    axis = bh.axis.Regular(8, -2, 2)
    arrays = [to_chunks(xp, each, size) for each, size in ((x, 80), (w, 90))]
    found = dc.to_hist(arrays[0], axis, weights=arrays[1]).compute()
    # Sums of small integers are exact.
    assert found == filled(bh.Histogram(axis, storage=bh.storage.Weight()), x, weight=w)
    np.testing.assert_array_equal(
        found.variances(), np.histogram(x, 8, (-2, 2), weights=w.astype("f8") ** 2)[0]
    )


def test_weights_of_narrow_floats_are_squared_in_float64(xp: Any) -> None:
    w = np.array([0.1, 300, 7], "f2")
    axis = bh.axis.Regular(1, -1, 1)
    found = dc.to_hist(to_chunks(xp, w * 0, 2), axis, to_chunks(xp, w, 2)).compute()
    assert found.variances()[0] == (w.astype("f8") ** 2).sum()


@pytest.mark.parametrize("storage", ["Double", "Int64", "AtomicInt64", "Unlimited", "Weight"])
def test_each_storage_that_adds_up(storage: str) -> None:
    x, w = RNG.normal(size=300), RNG.integers(0, 5, 300)
    empty = bh.Histogram(bh.axis.Regular(8, -2, 2), storage=getattr(bh.storage, storage)())
    lazy = da.from_array(x, chunks=80)
    found = dc.to_hist(lazy, empty).compute()
    assert found.storage_type is getattr(bh.storage, storage)
    assert found == filled(empty, x)
    assert dc.to_hist(lazy, empty, w).compute() == filled(empty, x, weight=w)


def test_what_is_filled_is_a_copy_that_keeps_all_it_had() -> None:
    before = hist.Hist.new.Reg(5, 0, 1, name="x", label="x [m]").Weight()
    before.name = "detector"
    before.fill([0.1, 0.5], weight=[2, 3])
    copy = before.copy()
    found = dc.to_hist(da.ones(7, chunks=3) / 4, before, da.ones(7, chunks=3) / 2).compute()
    assert before == copy
    assert isinstance(found, hist.Hist)
    assert (found.name, found.axes[0].name, found.axes[0].label) == ("detector", "x", "x [m]")
    assert found.values().tolist() == [2, 3.5, 3, 0, 0]
    assert found.variances().tolist() == [4, 1.75, 9, 0, 0]


def test_masked_samples_and_those_of_masked_weights_count_nowhere() -> None:
    x = np.ma.array([0.1, 0.1, 0.6, 5], mask=[1, 0, 0, 0])
    w = np.ma.array([1, 2, 4, 8], mask=[0, 0, 1, 0])
    arrays = [da.from_array(each, chunks=2, asarray=False) for each in (x, w)]
    axis = bh.axis.Regular(2, 0, 1)
    assert dc.to_hist(arrays[0], axis).compute().values(flow=True).tolist() == [0, 1, 1, 1]
    weighted = dc.to_hist(arrays[0], axis, arrays[1]).compute()
    assert weighted.values(flow=True).tolist() == [0, 2, 0, 8]
    assert weighted.variances(flow=True).tolist() == [0, 4, 0, 64]


@pytest.mark.parametrize("axis", [PLAIN, bh.axis.Regular(50, 0, 1, growth=True)])
def test_sums_of_weights_have_no_variances_without_a_place_for_them(axis: Any) -> None:
    empty = bh.Histogram(axis)
    assert dc.to_hist(ONES / 2, empty, ONES).compute().variances() is None
    assert dc.to_hist(ONES / 2, empty).compute().variances() is not None


# Several axes.


def points() -> list[Any]:
    return [RNG.normal(size=200), RNG.integers(0, 9, 200), RNG.random(200).astype("f4")]


SEVERAL = [
    bh.axis.Regular(5, -1, 1),
    bh.axis.Integer(2, 6, overflow=False),
    bh.axis.Regular(4, 0.1, 1, transform=LOG),
]


def test_an_axis_for_each_coordinate(xp: Any) -> None:
    arrays, w = points(), RNG.integers(0, 9, 200)
    empty = bh.Histogram(*SEVERAL, storage=bh.storage.Weight())
    lazy = [to_chunks(xp, x, size) for x, size in zip(arrays, (70, 50, 70), strict=True)]
    assert dc.to_hist(lazy, SEVERAL).compute() == filled(bh.Histogram(*SEVERAL), *arrays)
    found = dc.to_hist(lazy, empty, to_chunks(xp, w, 64)).compute()
    assert found == filled(empty, *arrays, weight=w)


def test_coordinates_of_more_dimensions_and_columns_of_one_array(xp: Any) -> None:
    x = RNG.normal(size=(30, 2))
    axes, empty = SEVERAL[:1] * 2, bh.Histogram(*SEVERAL[:1] * 2)
    expected = filled(empty, *x.T)
    assert dc.to_hist(to_chunks(xp, x, (7, 1)), axes).compute() == expected
    square = [to_chunks(xp, column.reshape(5, 6), 4) for column in x.T]
    assert dc.to_hist(square, axes).compute() == expected
    assert dc.to_hist(square[0], axes[0]).compute() == filled(bh.Histogram(axes[0]), x[:, 0])


# Lazy, and not.


def test_what_comes_back_is_lazy_and_makes_one_graph() -> None:
    x = da.random.default_rng(0).random(100, chunks=10)
    with dask.config.set(scheduler=refuse):
        first, again = (dc.to_hist(x, AXES["plain"], x) for _ in range(2))
        other = dc.to_hist(x, AXES["wide"], x)
    assert first.key == again.key != other.key
    assert dask.is_dask_collection(first)
    # A read for the sums and one for their squares, and what is made of both.
    assert len([key for key in dict(first.dask) if "to_hist" in str(key)]) == 2 * (10 + 1) + 1
    both, total = dask.compute(first, x.sum())
    assert both.sum(flow=True).value == pytest.approx(total)


def test_the_histogram_survives_a_pickle_of_its_graph() -> None:
    lazy = dc.to_hist(da.arange(10, chunks=4), bh.axis.Integer(0, 5))
    assert pickle.loads(pickle.dumps(lazy)).compute() == lazy.compute()


def test_chunks_of_unknown_sizes_are_counted() -> None:
    x = da.random.default_rng(0).random(100, chunks=10)
    some = x[x > 0.5]
    found = dc.to_hist(some, AXES["plain"], some).compute()
    values = x.compute()
    values = values[values > 0.5]
    expected = filled(
        bh.Histogram(AXES["plain"], storage=bh.storage.Weight()), values, weight=values
    )
    np.testing.assert_allclose(found.values(), expected.values())
    assert found.values(flow=True)[0] == 0


# Errors.


#: Axes that are not filled, and what is said of them.
STRANGE = [
    (10, r"Regular\(50, 0, 1\).* got 10"),
    ([0.0, 1.0], r"Variable\(edges\).* got \[0.0"),
    ([], r"got \[\]"),
    (bh.axis.StrCategory(["a"]), r"StrCategory\(\['a'\]\) .* float64; .*by .astype\('str'\)"),
    (bh.axis.IntCategory([3]), r"IntCategory\(\[3\]\) samples of dtype float64"),
    (bh.axis.Variable([0, 1, 2], growth=True), "depend on the order of samples; use Regular"),
    (bh.axis.Integer(0, 4), r"Integer\(0, 4\) samples of .* float64; .*by .astype\('i8'\)"),
    (bh.Histogram(PLAIN, storage=bh.storage.Mean()), "Mean needs values=, the numbers"),
    (bh.Histogram(), "an axis or more"),
]
TURNING = bh.axis.Regular(4, 0, 1, circular=True)
WHOLE = bh.Histogram(PLAIN, storage=bh.storage.Int64())
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *((lambda axis=axis: dc.to_hist(ONES, axis), TypeError, words) for axis, words in STRANGE),
    (
        lambda: dc.to_hist([ONES, ONES], [PLAIN, bh.axis.Boolean()]),
        TypeError,
        r"Boolean\(\) samples of dtype float64",
    ),
    (
        lambda: dc.to_hist(ONES, WHOLE, ONES),
        TypeError,
        "Int64 does not take weights of dtype float64; take Double or Weight",
    ),
    (lambda: dc.to_hist(ONES, PLAIN, ONES * 1j), TypeError, "must be real"),
    (lambda: dc.to_hist(ONES * 1j, PLAIN), TypeError, "dtype complex128"),
    (lambda: dc.to_hist([ONES], [PLAIN] * 2), ValueError, "for each of 2 axes, got 1"),
    (lambda: dc.to_hist([ONES], [TURNING] * 2), ValueError, "for each of 2 axes, got 1"),
    (lambda: dc.to_hist([ONES, ONES[1:]], [TURNING] * 2), ValueError, "coordinates should have"),
    (lambda: dc.to_hist(ONES, WHOLE, values=ONES), TypeError, "Int64 takes no values=; take Mean"),
    (lambda: dc.to_hist(ONES, PLAIN, values=ONES * 1j), TypeError, "must be real numbers"),
    (lambda: dc.to_hist({"x": ONES}, PLAIN, "w"), ValueError, "no column 'w', only"),
    (
        lambda: dc.to_hist({"x": ONES}, [hist.axis.Regular(2, 0, 1, name="y")]),
        ValueError,
        "no column 'y', only",
    ),
    (
        # Without a list around it, too, although an axis can be iterated over.
        lambda: dc.to_hist({"x": ONES, "z": ONES}, hist.axis.Regular(2, 0, 1, name="y")),
        ValueError,
        "sample has no column 'y', only",
    ),
    (
        lambda: dc.to_hist({"x": ONES}, [hist.axis.Regular(2, 0, 1, name="x"), PLAIN]),
        ValueError,
        "all have a name, or none has",
    ),
    (lambda: dc.to_hist(ONES, PLAIN, ONES[1:]), ValueError, "same shape as sample"),
    (lambda: dc.histogram(ONES, PLAIN), TypeError, "dask_coop.to_hist"),
    (lambda: dc.histogram2d(ONES, ONES, [PLAIN] * 2), TypeError, "dask_coop.to_hist"),
    (lambda: dc.histogram(ONES, WHOLE), TypeError, "to_hist"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_what_is_refused_says_what_to_do(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_without_boost_histogram_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = dc.to_hist(da.ones(4, chunks=2), AXES["plain"])
    monkeypatch.setitem(sys.modules, "boost_histogram", None)
    with pytest.raises(ImportError, match=re.escape(pip_install("hist"))):
        dc.to_hist(da.ones(4, chunks=2), 10)
    # Nor is it on a worker.
    with pytest.raises(ImportError, match=re.escape(pip_install("hist"))):
        lazy.compute(scheduler="synchronous")


def test_other_histograms_do_without_it() -> None:
    code = (
        "import sys; sys.modules['boost_histogram'] = None\n"
        "import dask.array as da, dask_coop as dc\n"
        "print(dc.histogram(da.arange(9, chunks=3), 3)[0].compute())"
    )
    assert printed("-c", code) == "[3 3 3]\n"
