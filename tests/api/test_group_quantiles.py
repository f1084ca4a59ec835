"""Medians and quantiles of groups by lazy labels, against NumPy's of each group's elements."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.calls import refuse
from support.strategies import chunkings

import dask_coop as dc
from dask_coop.algebra.group_digits import count_rounds
from dask_coop.api.groups import quantiles
from dask_coop.graph import group_selection

NUMBERS = ("i1", "u2", "i4", "u8", "i8", "f2", "f4", "f8")
CALLS: list[tuple[str, Any]] = [
    ("median", None),
    ("nanmedian", None),
    ("quantile", {"q": 0.3}),
    ("nanquantile", {"q": [0.9, 0.0, 0.5, 1.0]}),
    ("quantile", {"q": [0.2], "method": "hazen"}),
]


@pytest.fixture(params=["sorted", "counted", "whole"])
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count digits and sort what is left, count all digits, or gather whole arrays."""
    monkeypatch.setattr(quantiles, "_SMALL", 2**40 if request.param == "whole" else -1)
    if request.param == "counted":
        monkeypatch.setattr(group_selection, "FEW", -1)


def elements(dtype: Any, shape: Any, seed: int = 0) -> Any:
    """Return elements of all magnitudes, many of them equal, some of them NaN or infinite."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "mM":
        x = rng.integers(-(10**12), 10**12, shape).astype(dtype)
        x[rng.random(shape) < 0.02] = np.array("NaT", dtype)
        return x
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.3, limits.max, x).astype(dtype)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)).astype(dtype)
    for value, chance in ((0.0, 0.1), (-0.0, 0.1), (np.inf, 0.05), (-np.inf, 0.05), (np.nan, 0.03)):
        x[rng.random(shape) < chance] = value
    return x


def wanted(func: str, x: Any, labels: Any, groups: Any, kwargs: Any, nothing: Any) -> Any:
    """Return what NumPy finds of the elements of each group, along the last axes of `x`."""
    find: Any = getattr(np, func)
    kept = x.shape[: x.ndim - labels.ndim]
    x, found = x.reshape(*kept, -1), []
    options = dict(kwargs or {})
    q = np.asarray(options.pop("q", 0.5), "f8")
    arguments = () if func.endswith("median") else (q,)
    shape = (*(q.shape if arguments else ()), *kept)
    for group in groups:
        of_group = x[..., (labels == group).reshape(-1)]
        if of_group.shape[-1]:
            found.append(find(of_group, *arguments, axis=-1, **options))
        else:
            found.append(np.full(shape, nothing))
    return np.stack(found, -1)


def assert_found(
    xp: Any, x: Any, labels: Any, sizes: Any, func: str, kwargs: Any, groups: Any = None
) -> None:
    lazy = to_chunks(xp, x, sizes)
    by = to_chunks(xp, labels, lazy.chunks[x.ndim - labels.ndim :])
    result, names = dc.groupby_reduce(
        lazy, by, func=func, expected_groups=groups, finalize_kwargs=kwargs
    )
    if groups is None:
        groups = np.unique(labels[labels == labels])
        computed = dask.compute(names)[0]
        np.testing.assert_array_equal(getattr(computed, "get", lambda: computed)(), groups)
        result = result.compute_chunk_sizes()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = wanted(func, x, labels, groups, kwargs, np.nan)
    np.testing.assert_array_equal(to_numpy(xp, result), expected.astype(result.dtype))


@pytest.mark.each(2)
@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize(("func", "kwargs"), CALLS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_each_element_has_a_label(xp: Any, dtype: str, func: str, kwargs: Any) -> None:
    x = elements(dtype, (60, 50))
    labels = np.random.default_rng(1).integers(-2, 20, x.shape).astype("f4")
    labels[labels == -2] = np.nan
    assert_found(xp, x, labels, (17, 20), func, kwargs, np.arange(22))
    assert_found(xp, x.reshape(-1), labels.reshape(-1), 700, func, kwargs, np.array([3, 19, 40]))
    assert_found(xp, x, labels, (60, 13), func, kwargs)


@pytest.mark.parametrize(("func", "kwargs"), CALLS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_labels_along_one_axis(xp: Any, dtype: str, func: str, kwargs: Any) -> None:
    x = elements(dtype, (5, 3, 200))
    labels = np.random.default_rng(1).integers(-1, 7, 200)
    assert_found(xp, x, labels, (2, 3, 30), func, kwargs, np.arange(9))
    assert_found(xp, x, labels, (5, 1, 200), func, kwargs)
    assert_found(xp, x, np.sort(labels), (5, 1, 70), func, kwargs, np.arange(7)[::-1].copy()[::-1])
    assert_found(xp, x, np.tile(labels, (3, 1)), (2, 2, 70), func, kwargs)


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("func", ["median", "nanmedian"])
@pytest.mark.parametrize("dtype", ["?", "m8[s]"])
def test_truths_and_durations(dtype: str, func: str) -> None:
    x, labels = elements(dtype, 2000), np.random.default_rng(1).integers(-1, 30, 2000)
    numbers = x.astype("i8") if dtype == "?" else x
    lazy, by = da.from_array(x, chunks=300), da.from_array(labels, chunks=300)
    found, _ = dc.groupby_reduce(lazy, by, func=func, expected_groups=range(30))
    known, _ = dc.groupby_reduce(lazy, labels, func=func, expected_groups=range(30))
    np.testing.assert_array_equal(found, known)
    if dtype == "?":
        expected = wanted(func, numbers, labels, range(30), None, np.nan)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("_by")
def test_dates() -> None:
    x, labels = elements("M8[s]", (30, 70)), np.random.default_rng(1).integers(-1, 9, (30, 70))
    lazy, by = da.from_array(x, chunks=(30, 20)), da.from_array(labels, chunks=(30, 20))
    for func, kwargs in (("median", None), ("nanquantile", {"q": [0.1, 0.7], "method": "lower"})):
        for groups in (np.arange(11), None):
            options = {"func": func, "expected_groups": groups, "finalize_kwargs": kwargs}
            found, known = (dc.groupby_reduce(lazy, label, **options)[0] for label in (by, labels))
            assert found.dtype == known.dtype == "M8[s]"
            np.testing.assert_array_equal(found.compute(), known.compute())


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan, 7.0])
def test_elements_that_are_all_alike(xp: Any, value: float) -> None:
    x, labels = np.full(3000, value), np.arange(3000) % 4
    x[::700] = 1
    for func, kwargs in (("median", None), ("nanquantile", {"q": [0.1, 0.9]})):
        assert_found(xp, x, labels, 500, func, kwargs, np.arange(5))


@pytest.mark.usefixtures("_by")
def test_more_groups_than_planned(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_selection, "ENTRIES", 1 << 10)
    x, labels = elements("f8", 20_000), np.random.default_rng(1).integers(0, 3000, 20_000)
    for groups in (np.arange(3001), None):
        assert_found(xp, x, labels, 6000, "nanquantile", {"q": [0.3, 0.6]}, groups)
    monkeypatch.setattr(group_selection, "_UNKNOWN", 1)
    assert_found(xp, x, labels, 6000, "median", None)


@pytest.mark.usefixtures("_by")
def test_results_without_enough_elements(xp: Any) -> None:
    x, labels = np.array([1.0, np.nan, np.nan, 4, 5, 6, 7]), np.array([0, 0, 1, 2, 2, 2, 4])
    lazy, by = to_chunks(xp, x, 3), to_chunks(xp, labels, 3)
    for func in ("median", "nanmedian"):
        for options in ({}, {"fill_value": -1.0}, {"fill_value": 9, "min_count": 2}):
            given_ = {"func": func, "expected_groups": range(6), **options}
            found, known = (dc.groupby_reduce(lazy, label, **given_)[0] for label in (by, labels))
            assert found.dtype == known.dtype
            np.testing.assert_array_equal(to_numpy(xp, found), to_numpy(xp, known))
    result, _ = dc.groupby_reduce(lazy, by, func="median", expected_groups=[0], min_count=5)
    with pytest.raises(ValueError, match="Filling is required but fill_value is None"):
        result.compute(scheduler="synchronous")


@pytest.mark.usefixtures("_by")
def test_no_groups_and_no_elements(xp: Any) -> None:
    x, labels = to_chunks(xp, np.arange(6.0), 4), to_chunks(xp, np.full(6, np.nan), 4)
    for groups, size in (([], 0), (None, 0), ([1, 2], 2)):
        result, _ = dc.groupby_reduce(x, labels, func="median", expected_groups=groups)
        result = result.compute_chunk_sizes() if groups is None else result
        found = to_numpy(xp, result)
        assert found.shape == (size,)
        assert np.isnan(found).all()
    nothing = to_chunks(xp, np.zeros(0), 0)
    for label in (to_chunks(xp, np.zeros(0), 0), np.zeros(0)):
        result, _ = dc.groupby_reduce(nothing, label, func="median", expected_groups=[1])
        assert np.isnan(to_numpy(xp, result)).tolist() == [True]


@pytest.mark.usefixtures("_by")
def test_several_labels_and_bins(xp: Any) -> None:
    x, rng = elements("f4", (40, 30)), np.random.default_rng(3)
    a, b = rng.integers(0, 3, x.shape), rng.random(x.shape)
    lazy = to_chunks(xp, x, (15, 10))
    by = [to_chunks(xp, label, (15, 10)) for label in (a, b)]
    options: Any = {"expected_groups": (range(3), [0.0, 0.5, 0.9]), "isbin": (False, True)}
    for func in ("median", "nanmedian"):
        found, known = (
            dc.groupby_reduce(lazy, *labels, func=func, **options)[0] for labels in (by, (a, b))
        )
        assert found.shape == (3, 2)
        np.testing.assert_array_equal(to_numpy(xp, found), to_numpy(xp, known))


@pytest.mark.usefixtures("_by")
def test_words_are_labels() -> None:
    x, words = np.arange(300.0), np.array([*"abc"])[np.random.default_rng(0).integers(0, 3, 300)]
    lazy, by = da.from_array(x, chunks=70), da.from_array(words, chunks=70)
    found, groups = dask.compute(*dc.groupby_reduce(lazy, by, func="median"))
    assert groups.tolist() == [*"abc"]
    np.testing.assert_array_equal(found, [np.median(x[words == word]) for word in "abc"])


@pytest.mark.usefixtures("_by")
@given(data=st.data())
def test_any_chunks_of_any_layout(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    seed, ndim = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(1, len(shape)))
    x = elements(data.draw(st.sampled_from(NUMBERS)), shape[::-1], seed).T
    labels = np.random.default_rng(seed).integers(-1, 3, shape[len(shape) - ndim :])
    func, kwargs = data.draw(st.sampled_from(CALLS))
    groups = data.draw(st.sampled_from([None, np.arange(4)]))
    lazy = da.from_array(x, chunks=data.draw(chunkings(shape)))
    by = da.from_array(labels, chunks=2)
    options = {"func": func, "expected_groups": groups, "finalize_kwargs": kwargs}
    found, known = (dc.groupby_reduce(lazy, label, **options)[0] for label in (by, labels))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if groups is None:
            return np.testing.assert_array_equal(
                found.compute(scheduler="sync"),
                dc.groupby_reduce(
                    lazy, labels, **{**options, "expected_groups": np.unique(labels)}
                )[0].compute(scheduler="sync"),
            )
        np.testing.assert_array_equal(
            found.compute(scheduler="sync"), known.compute(scheduler="sync")
        )
    return None


def test_unknown_sizes_along_kept_axes(xp: Any) -> None:
    x = np.random.default_rng(0).random((20, 30))
    lazy = to_chunks(xp, x, (6, 10))
    lazy = lazy[dc.any(lazy > 0.5, axis=1)]
    labels = np.arange(30) % 3
    for by in (labels, to_chunks(xp, labels, 10)):
        result, _ = dc.groupby_reduce(lazy, by, func="median", expected_groups=range(3))
        expected = wanted("median", x, labels, range(3), None, np.nan)
        np.testing.assert_array_equal(to_numpy(xp, result.compute_chunk_sizes()), expected)


def test_nothing_is_computed_and_chunks_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "_SMALL", -1)
    x = da.from_array(np.arange(48.0).reshape(6, 8), chunks=(2, 4))
    with dask.config.set(scheduler=refuse):
        result, _ = dc.groupby_reduce(x, x % 3, func="median", expected_groups=range(3))
        (row,) = [r for r in dc.explain(result) if r.operation == "groupby-median"]
        assert row.method.startswith("digits by group, counted over 6 chunks; ")
        again, _ = dc.groupby_reduce(x, x % 3, func="median", expected_groups=range(3))
        assert again.name == result.name
        lines, _ = dc.groupby_reduce(x, x[0] % 3, func="median", expected_groups=range(3))
        (row,) = [r for r in dc.explain(lines) if r.operation == "groupby-median"]
        assert row.method == "1 block of whole lines; 1 task"


@pytest.mark.parametrize(
    ("dtype", "n", "wanted", "rounds"),
    [("f4", 12, 2, 3), ("f8", 12, 2, 5), ("f8", 1000, 2, 7), ("f8", 10**6, 2, 16), ("i1", 5, 2, 1)],
)
def test_how_many_rounds_there_are(dtype: str, n: int, wanted: int, rounds: int) -> None:
    assert count_rounds(np.dtype(dtype), n, wanted, 1 << 20) == rounds
