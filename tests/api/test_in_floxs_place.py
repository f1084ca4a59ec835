"""Calls as flox's give what flox gives, of each kind that its own tests have, or are refused.

Those tests are in flox's sdist alone: ``make upstream`` runs all of them with ours in its place.
"""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import upstream
from support.calls import refuse
from support.processes import printed

import dask_coop as dc
from dask_coop.api import flox_calls
from dask_coop.errors import Refused

flox = pytest.importorskip("flox")
pandas = pytest.importorskip("pandas")

FLOAT = sorted(
    name
    for name in flox_calls._REDUCTIONS
    # flox fails on modes.
    if not any(word in name for word in ("arg", "quantile", "mode"))
)

#: What a call may ask for besides, by the kinds of labels.
EXPECTED: dict[str, list[Any]] = {
    "numbers": [
        {"expected_groups": [0, 1, 2, 5]},
        {"expected_groups": np.array([3, 1, 7]), "sort": False},
        {"expected_groups": pandas.Index([1, 0, 2])},
        {"expected_groups": pandas.Index([1, 0, 2]), "sort": False},
        {"expected_groups": (np.array([2, 0]),)},
        {"expected_groups": pandas.IntervalIndex.from_breaks([-1, 0, 2, 3], closed="left")},
        {"expected_groups": pandas.IntervalIndex.from_breaks([-1, 0, 2, 3])},
        {"expected_groups": [0, 1.5, 3, 9], "isbin": True},
    ],
    "codes": [{"expected_groups": pandas.RangeIndex(6)}],
    "words": [{"expected_groups": ["d", "z", "a"]}],
}


def compare(x: Any, labels: Any, lazy: bool, **kwargs: Any) -> None:
    """Call flox with arrays of NumPy, ours with chunks of them, and compare all that comes back."""
    wanted, names = flox.groupby_reduce(x, labels, **{"engine": "numpy", **kwargs})
    array = da.from_array(x, chunks=tuple(max(1, n // 2 + 1) for n in x.shape))
    by = da.from_array(labels, chunks=3) if lazy else labels
    result, groups = flox_calls.groupby_reduce(array, by, **kwargs)
    found, own = dask.compute(result, groups, scheduler="synchronous")
    assert found.dtype == wanted.dtype == result.dtype
    assert type(own) is type(names)
    assert own.dtype == names.dtype
    np.testing.assert_array_equal(own, names)
    bound = 1e-6 if found.dtype == "f4" else 1e-12
    said = f"{x!r}, {labels!r}, {kwargs}"
    np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound, err_msg=said)


@pytest.mark.parametrize("func", FLOAT)
def test_results_are_those_of_flox(func: str) -> None:
    rng = np.random.default_rng(FLOAT.index(func))
    for _ in range(12):
        x, labels, lazy, kwargs = draw_call(rng, func)
        compare(x, labels, lazy, func=func, **kwargs)


def draw_call(rng: np.random.Generator, func: str) -> tuple[Any, Any, bool, dict[str, Any]]:
    """Draw an array, labels, whether these are lazy, and what is asked for besides."""
    kind, dtype = rng.choice(["numbers", "codes", "words"]), rng.choice(["f8", "f4", "i8", "i2"])
    shape = [(12,), (3, 12), (2, 3, 8)][rng.integers(3)]
    x = rng.integers(0, 5, shape).astype(dtype)
    if dtype[0] == "f":
        x[rng.random(shape) < 0.25] = np.nan
    # First and last of several axes are refused.
    ndim = 1 if func.endswith(("first", "last")) else int(rng.integers(1, len(shape) + 1))
    labels: Any = rng.integers(0, 4, shape[-ndim:])
    if kind == "numbers" and rng.random() < 0.5:
        labels = np.where(labels == 3, np.nan, labels)
    if kind == "words":
        labels = np.array([*"abcd"])[labels]
    choices = [{}, *EXPECTED[kind]]
    kwargs = dict(choices[rng.integers(len(choices))])
    # Without a fill value the results of missing groups differ by flox's engines.
    kwargs["fill_value"] = False if func in ("any", "all") else [np.nan, -1, 7][rng.integers(3)]
    if func not in ("any", "all") and rng.random() < 0.5:
        kwargs["min_count"] = int(rng.integers(1, 3))
    if func.endswith(("var", "std")):
        kwargs["finalize_kwargs"] = {"ddof": int(rng.integers(2))}
    if kwargs.get("expected_groups") is not None and ndim > 1 and rng.random() < 0.5:
        kwargs["axis"] = -1
    return x, labels, bool(rng.random() < 0.4), kwargs


def test_several_quantiles() -> None:
    x, labels = np.random.default_rng(0).random((3, 12)), np.arange(12) % 3
    for q in (0.3, [0.3], (0.2, 0.7)):
        for func in ("quantile", "nanquantile"):
            compare(x, labels, False, func=func, finalize_kwargs={"q": q}, engine="flox")


def test_of_indices() -> None:
    x, labels = np.random.default_rng(0).random((3, 12)), np.arange(12) % 3
    for func in ("argmax", "nanargmin"):
        for lazy in (False, True):
            compare(x, labels, lazy, func=func)
            compare(x, labels, lazy, func=func, expected_groups=[0, 1, 2, 9], fill_value=-1)


# flox casts NaN to integers.
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_what_is_missing_of_any_dtype() -> None:
    from flox.xrdtypes import NA

    labels, groups = np.array([0, 2, 3, 3, 3]), ([0, 1, 2, 3],)
    dates = np.arange(5).astype("M8[D]")
    for x in (np.arange(5.0), dates, dates - dates[0], np.arange(5.0, dtype="f4")):
        for func in ("first", "last", "min", "nanmax"):
            array = da.from_array(x, chunks=2)
            kwargs: dict[str, Any] = {"func": func, "fill_value": NA, "expected_groups": groups}
            wanted, _ = flox.groupby_reduce(x, labels, **kwargs)
            result, _ = flox_calls.groupby_reduce(array, labels, **kwargs)
            assert result.dtype == wanted.dtype
            np.testing.assert_array_equal(result, wanted)
    for func, x, more in [
        ("count", np.arange(5.0), {}),
        ("sum", np.arange(5), {}),
        ("max", np.arange(5), {"dtype": "f4"}),
    ]:
        with pytest.raises(Refused):
            flox_calls.groupby_reduce(x, labels, func=func, fill_value=NA, **more)


@pytest.mark.parametrize("func", ["first", "last", "nanfirst"])
@pytest.mark.parametrize("dtype", ["i2", "u1", "i8"])
def test_integers_become_floats_where_groups_are_missing(func: str, dtype: str) -> None:
    from flox.xrdtypes import NA

    x = da.from_array(np.arange(12, dtype=dtype).reshape(2, 6), chunks=3)
    # In flox each group is in one chunk.
    labels = np.array([0, 2, 2, 3, 4, 3])
    for groups in ([0, 1, 2, 3, 4], [0, 2, 3, 4]):
        kwargs: dict[str, Any] = {"func": func, "fill_value": NA, "expected_groups": groups}
        wanted, _ = flox.groupby_reduce(x, labels, **kwargs)
        result, _ = flox_calls.groupby_reduce(x, labels, **kwargs)
        assert result.dtype == wanted.dtype == result.compute().dtype
        assert (result.dtype == dtype) == (len(groups) == 4)
        np.testing.assert_array_equal(result, wanted)
    kwargs = {"fill_value": NA, "expected_groups": range(5)}
    with pytest.raises(Refused, match="depends on its chunks"):
        flox_calls.groupby_reduce(x, labels, func="max", **kwargs)
    with pytest.raises(Refused, match="by lazy labels may return"):
        flox_calls.groupby_reduce(x, da.from_array(labels, chunks=3), func=func, **kwargs)


@pytest.mark.parametrize("func", ["sum", "nanprod"])
@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_sums_of_groups_without_elements(func: str, dtype: str) -> None:
    x, labels = da.from_array(np.arange(8, dtype=dtype).reshape(2, 4), chunks=2), [3, 1, 1, 3]
    both = np.array([labels, labels])
    lazy = da.from_array(labels, chunks=2)
    kwargs = {"func": func, "fill_value": np.nan, "min_count": 0}
    for by, axis in ((lazy, None), (both, -1), (da.from_array(both, chunks=2), None)):
        for given in ([0, 1, 3], [1, 3]):
            more = {"expected_groups": given, "axis": axis, **kwargs}
            wanted, _ = flox.groupby_reduce(x, by, **more)
            result, _ = flox_calls.groupby_reduce(x, by, **more)
            assert result.dtype == wanted.dtype == result.compute().dtype
            np.testing.assert_array_equal(result, wanted)
    with pytest.raises(Refused, match="depends on its chunks"):
        flox_calls.groupby_reduce(x, labels, expected_groups=[0, 1, 3], **kwargs)
    result, _ = flox_calls.groupby_reduce(x, labels, expected_groups=[1, 3], **kwargs)
    np.testing.assert_array_equal(result, getattr(np, func)([x[:, 1:3], x[:, ::3]], axis=-1).T)


def test_nan_is_false_where_flox_has_numbagg(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = da.from_array(np.array([np.nan, 0, 0]), chunks=2), [0, 0, 1]
    monkeypatch.setattr("flox.core.HAS_NUMBAGG", True)
    with pytest.raises(Refused, match="NaN is false there"):
        flox_calls.groupby_reduce(x, labels, func="any")
    result, _ = flox_calls.groupby_reduce(x, labels, func="any", engine="numpy")
    np.testing.assert_array_equal(result, [True, False])


def test_hints_change_nothing() -> None:
    x, labels = da.from_array(np.random.default_rng(0).random(12), chunks=3), np.arange(12) % 3
    wanted, _ = flox.groupby_reduce(x.compute(), labels, func="sum")
    for hint in (
        {"method": "cohorts"},
        {"method": "blockwise"},
        {"engine": "numpy"},
        {"reindex": True},
        {"reindex": flox.ReindexStrategy(blockwise=False)},
    ):
        result, _ = flox_calls.groupby_reduce(x, labels, func="sum", **hint)
        np.testing.assert_allclose(result, wanted, rtol=1e-14)


def test_labels_as_others_have_them() -> None:
    xarray = pytest.importorskip("xarray")
    labels = np.array(["a", "b", "a", "b"], object)
    x = da.arange(4, chunks=2)
    for by in (labels, pandas.Series([3, 4, 3, 4]), [3, 4, 3, 4], xarray.DataArray([0, 1, 0, 1])):
        wanted, names = flox.groupby_reduce(np.arange(4), np.asarray(by), func="sum")
        result, groups = flox_calls.groupby_reduce(x, by, func="sum")
        np.testing.assert_array_equal(result, wanted)
        assert groups.dtype == names.dtype
        np.testing.assert_array_equal(groups, names)
    by = xarray.DataArray(da.from_array([0, 1, 0, 1], chunks=2))
    result, groups = flox_calls.groupby_reduce(xarray.DataArray(x), by, func="sum")
    assert isinstance(groups, da.Array)
    np.testing.assert_array_equal(result, [2, 4])


def test_nothing_is_computed_by_a_call() -> None:
    with dask.config.set(scheduler=refuse):
        x, labels = da.ones(8, chunks=2), da.from_array(np.arange(8) % 3, chunks=4)
        flox_calls.groupby_reduce(x, labels, func="nanmean")
        flox_calls.groupby_scan(x, labels, func="ffill")
        flox_calls.groupby_reduce(x, np.arange(8) % 3, func="nanmedian")


# Scans.


@pytest.mark.parametrize("func", ["cumsum", "nancumsum", "ffill", "bfill"])
def test_scans_are_those_of_flox(func: str) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("f8", "f4", "i2", "u8", "?"):
        if func.endswith("fill") and dtype[0] != "f":
            continue
        x = rng.integers(0, 5, (2, 12)).astype(dtype)
        if dtype[0] == "f":
            x[rng.random(x.shape) < 0.4] = np.nan
        for labels in (np.arange(12) % 3, np.arange(12) // 5, np.array([*"abc"] * 4)):
            wanted = flox.groupby_scan(x, labels, func=func)
            array = da.from_array(x, chunks=(1, 5))
            for by in (labels, da.from_array(labels, chunks=5)):
                result = flox_calls.groupby_scan(array, by, func=func, method="blelloch")
                assert result.dtype == wanted.dtype
                assert result.chunks == array.chunks
                np.testing.assert_array_equal(result, wanted)
    # In flox's scans what has no label is a group as well.
    x = np.array([1, np.nan, 3, np.nan, 5, np.nan])
    labels = np.array([np.nan, np.nan, 0, 1, 0, np.nan])
    result = flox_calls.groupby_scan(da.from_array(x, chunks=2), labels, func=func, axis=(-1,))
    np.testing.assert_array_equal(result, flox.groupby_scan(x, labels, func=func))


@pytest.mark.parametrize("dtype", ["i2", "f8"])
def test_groups_of_xarray_are_as_without(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests before may have used up the room for reasons.
    monkeypatch.setattr("dask_coop.api.call.report._calls", Counter())
    xr = pytest.importorskip("xarray")
    days = pandas.to_datetime(["2020-01-01", "2020-01-01", "2020-01-03", "2020-01-06"])
    data = np.arange(12, dtype=dtype).reshape(4, 3)
    if dtype == "f8":
        data[::3, 1] = np.nan
    x = xr.DataArray(data, dims=("time", "y"), coords={"time": days, "y": [3, 2, 1]})
    x = x.chunk(time=2, y=2)

    def calls() -> list[Any]:
        by_day, bins = x.resample(time="1D"), x.groupby_bins("y", [0, 1, 1.5, 9])
        firsts = [by_day.first(), by_day.last(), bins.first(), x.groupby("y").last()]
        sums = [of.sum(..., skipna=skipna) for of in (bins, by_day) for skipna in (None, False)]
        return [*firsts, *sums, bins.prod(), bins.sum(min_count=1), x.groupby("y").cumsum()]

    wanted = calls()
    with dc.installed():
        found = calls()
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        xr.testing.assert_identical(ours.compute(), theirs.compute())
    assert any("a group without elements" in str(row) for row in dc.report())


def test_elements_that_are_alone_keep_their_nan() -> None:
    x = np.where(np.random.default_rng(0).random((4, 3)) < 0.5, np.nan, 1.0)
    array = da.from_array(x, chunks=2)
    for by in (np.array([7, 3, 5]), np.array([*"bca"]), np.array([1, 1, 2])):
        result = flox_calls.groupby_scan(array, by, func="nancumsum")
        np.testing.assert_array_equal(result, flox.groupby_scan(array, by, func="nancumsum"))
    for labels in (np.zeros((4, 1), "i8"), np.zeros(1, "i8")):
        wanted = flox.groupby_scan(array[:, :1], labels, func="nancumsum")
        result = flox_calls.groupby_scan(array[:, :1], labels, func="nancumsum")
        np.testing.assert_array_equal(result, wanted)


# What is left to flox.


def test_what_is_not_served_is_refused() -> None:
    from flox.aggregations import mean

    x, labels = da.ones((2, 8), chunks=4), np.arange(8) % 2
    both, lazy = np.tile(labels, (2, 1)), da.from_array(labels, chunks=4)
    sparse = flox.ReindexStrategy(blockwise=False, array_type=flox.ReindexArrayType.SPARSE_COO)
    for by, kwargs, match in [
        ((labels,), {"func": mean}, "must be a name, got an object of type Aggregation"),
        ((labels,), {"func": "nunique"}, "no reduction 'nunique'"),
        ((labels,), {"func": "logsumexp"}, "no reduction 'logsumexp'"),
        ((labels,), {"func": ["sum", "mean"]}, "of type list"),
        ((labels,), {"func": "sum", "reindex": sparse}, "not sparse"),
        ((labels,), {"func": "argmax", "reindex": True}, "does not reindex"),
        ((both,), {"func": "first"}, "along one axis, not along 2"),
        ((both,), {"func": "nanlast", "axis": (0, 1)}, "along one axis, not along 2"),
        ((da.from_array(both, chunks=4),), {"func": "sum", "axis": 1}, "all of their axes"),
        ((labels, lazy), {"func": "sum"}, "label 1 of several is lazy"),
        ((labels[:3],), {"func": "sum"}, "do not fit"),
        ((labels,), {"func": "quantile"}, "needs q"),
        ((labels,), {"func": "sum", "expected_groups": (None, None)}, "groups of 2 labels"),
    ]:
        with pytest.raises(Refused, match=match):
            flox_calls.groupby_reduce(x, *by, **kwargs)
    for element, kwargs in [
        ("?", {"func": "max", "fill_value": np.nan}),
        ("?", {"func": "first", "dtype": "f8"}),
        ("c16", {"func": "nanvar"}),
        ("m8[s]", {"func": "median", "dtype": "f8"}),
        ("O", {"func": "sum"}),
    ]:
        with pytest.raises(Refused):
            flox_calls.groupby_reduce(x.astype(element), labels, **kwargs)
    for kwargs in (
        {"func": "cumprod"},
        {"func": "cumsum", "engine": "flox"},
        {"func": "cumsum", "axis": (0, 1)},
        {"func": "cumsum", "axis": 0},
        {"func": "ffill", "array": x.astype("M8[s]")},
    ):
        with pytest.raises(Refused):
            flox_calls.groupby_scan(kwargs.pop("array", x), labels, **kwargs)


@pytest.mark.parametrize("name", ["groupby_reduce", "groupby_scan"])
def test_signatures_are_those_of_flox(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(of, name)).parameters for of in (flox_calls, flox))
    assert {key: (one.kind, one.default) for key, one in ours.items()} == {
        key: (one.kind, one.default) for key, one in theirs.items()
    }


def test_flox_is_not_imported() -> None:
    code = "import sys, dask_coop.api.flox_calls; sys.exit('flox' in sys.modules)"
    printed("-c", code)


# The tool that runs flox's own tests.


def test_a_suite_is_judged_by_what_differs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "test_sums.py").write_text(
        "import numpy\nimport pytest\n\n\n"
        "def test_same(): assert numpy.sum([1, 2]) == 3\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_other(n): assert numpy.sum([n]) == n\n"
        "def test_broken(): assert False\n"
    )
    (tmp_path / "three.py").write_text(
        "import json\nimport numpy\nnumpy.sum = lambda x: 3\n"
        "with open('report-1.json', 'w') as file:\n"
        "    json.dump({'served': {'sum': 1}, 'refused': {}}, file)\n"
    )
    suite = upstream.Suite(
        "sums",
        (),
        lambda folder: folder,
        ("test_sums.py",),
        {"test_other[1]": "it is three", "test_same": "none"},
        "three",
    )
    outcome = upstream.run(suite, tmp_path)
    assert outcome.counts == {"passed": 1, "failed": 3}
    assert outcome.served == {"sum": 1}
    new, gone = upstream.judge(suite, outcome.failed, whole=True)
    assert new == ["test_sums.py::test_other[2]", "test_sums.py::test_broken"]
    assert gone == ["test_same"]
    alone = upstream.run(suite, tmp_path, with_ours=False)
    assert {*alone.failed} == {"test_sums.py::test_broken"}
