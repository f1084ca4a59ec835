"""groupby_reduce against loops of NumPy over the elements of each group, in any chunks."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calls import noting, refuse
from support.strategies import FEWER, REAL, chunkings

import dask_coop as dc
from dask_coop.algebra.merges import lowest
from dask_coop.graph import grouped as graph_grouped
from dask_coop.graph import threads as graph_threads


def plain(x: Any) -> Any:
    """Return elements that are not NaN."""
    return x[x == x]


#: What NumPy finds of the elements of a group.
FUNCS: dict[str, Any] = {
    "sum": lambda x: x.sum(dtype="f8" if x.dtype.kind == "f" else None),
    "prod": lambda x: x.prod(dtype="f8" if x.dtype.kind == "f" else None),
    "mean": lambda x: x.mean(dtype="f8"),
    "var": lambda x: x.var(dtype="f8"),
    "std": lambda x: x.std(dtype="f8"),
    "min": np.min,
    "max": np.max,
    "argmin": np.argmin,
    "argmax": np.argmax,
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "median": np.median,
    "quantile": lambda x: np.quantile(x.astype("f8"), 0.3),
}
FUNCS |= {
    f"nan{name}": lambda x, f=f: f(plain(x)) for name, f in FUNCS.items() if "arg" not in name
}
FUNCS |= {
    "nanargmin": np.nanargmin,
    "nanargmax": np.nanargmax,
    "any": np.any,
    "all": np.all,
    "count": lambda x: len(plain(x)),
    "count_nonzero": np.count_nonzero,
}
KWARGS = {"quantile": {"q": 0.3}, "nanquantile": {"q": 0.3}}
#: What groups get without an element, or without one that is not NaN, where that is not NaN.
NOTHING = {"any": 0, "all": 0, "count": 0, "count_nonzero": 0, "prod": 1}
NOTHING |= dict.fromkeys(("argmin", "argmax", "nanargmin", "nanargmax"), -1)
#: Sums and products of no element that there is.
OF_NAN = {"nansum": 0, "nanprod": 1}


def expected(func: str, x: Any, codes: Any, n: int, dtype: Any) -> Any:
    """Return what NumPy finds of each group, along the last axes of `x`."""
    kept = x.shape[: x.ndim - codes.ndim]
    lines, flat = x.reshape(*kept, -1), codes.reshape(-1)
    nothing = NOTHING.get(func, np.nan if dtype.kind == "f" else lowest(dtype))
    result = np.full((*kept, n), nothing, dtype)
    with np.errstate(all="ignore"):
        for at in np.ndindex(kept):
            for group in range(n):
                places = np.flatnonzero(flat == group)
                part = lines[at][places]
                if not part.size:
                    continue
                if func.startswith("nan") and not plain(part).size:
                    result[(*at, group)] = OF_NAN.get(func, nothing)
                    continue
                value = FUNCS[func](part)
                result[(*at, group)] = places[value] if "arg" in func else value
    return result


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Any, Any, int, Any]:
    """Draw an array, codes of its last axes, how many groups there may be, and chunks."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    ndim, n = draw(st.integers(1, len(shape))), draw(st.integers(1, 5))
    dtype, seed = np.dtype(draw(st.sampled_from(REAL))), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2 if dtype.kind == "b" else 9, shape).astype(dtype)
    if dtype.kind == "f":
        x = np.where(rng.random(shape) < 0.2, np.nan, x).astype(dtype)
    codes = rng.integers(-1, n, shape[len(shape) - ndim :])
    return x, codes, n, draw(chunkings(shape))


@pytest.mark.usefixtures("_compiled_groups")
@given(case=grouped(), lazy=st.booleans(), data=st.data())
def test_groups_are_those_of_loops(case: Any, lazy: bool, data: Any) -> None:
    for func in data.draw(st.lists(st.sampled_from([*FUNCS]), min_size=4, max_size=4, unique=True)):
        check(func, case, lazy)


@pytest.mark.parametrize("func", FUNCS)
@given(case=grouped())
@settings(max_examples=5)
def test_each_statistic_is_that_of_loops(func: str, case: Any) -> None:
    check(func, case, False)


def check(func: str, case: Any, lazy: bool) -> None:
    x, codes, n, chunks = case
    array = da.from_array(x, chunks=chunks)
    labels = da.from_array(codes, chunks=array.chunks[x.ndim - codes.ndim :]) if lazy else codes
    result, groups = dc.groupby_reduce(
        array, labels, func=func, expected_groups=range(n), finalize_kwargs=KWARGS.get(func)
    )
    np.testing.assert_array_equal(groups, np.arange(n))
    found = to_numpy(np, result)
    wanted = expected(func, x, codes, n, result.dtype)
    # Sums of small integers are exact; quotients and roots are rounded, in float16 once more.
    rounds = func.endswith(("mean", "var", "std"))
    bound = {2: 2e-3, 4: 3e-7, 8: 1e-13}[result.dtype.itemsize] if rounds else 0
    np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound)


def test_dtypes_are_those_of_flox() -> None:
    wanted = {
        "sum": {"i2": "i8", "u1": "u8", "?": "i8", "f4": "f4", "c8": "c8"},
        "mean": {"i2": "f8", "f4": "f4", "c8": "c8"},
        "std": {"i2": "f8", "f4": "f4"},
        "max": {"i2": "i2", "?": "?", "f4": "f4", "c8": "c8"},
        "first": {"i2": "i2", "f4": "f4"},
        "count": {"f4": "i8", "?": "i8"},
        "argmax": {"f4": "i8"},
        "any": {"f4": "?"},
        "median": {"i2": "f8", "f4": "f4"},
    }
    for func, dtypes in wanted.items():
        for element, dtype in dtypes.items():
            x = da.ones(4, dtype=element, chunks=2)
            result, _ = dc.groupby_reduce(x, [0, 0, 1, 1], func=func)
            assert result.dtype == dtype == result.compute().dtype, (func, element)
    x = da.ones(4, dtype="i4", chunks=2)
    result, _ = dc.groupby_reduce(x, [0, 0, 1, 1], func="sum", fill_value=np.nan)
    assert result.dtype == "f8"
    result, _ = dc.groupby_reduce(x, [0, 0, 1, 1], func="sum", dtype="f4")
    assert result.dtype == "f4" == result.compute().dtype


def test_of_complex_numbers() -> None:
    x = np.array([1 + 2j, 1 + 1j, complex(np.nan, 0), 3j])
    labels = [0, 0, 1, 1]
    for func, wanted in {
        "sum": [2 + 3j, complex(np.nan, 3)],
        "nansum": [2 + 3j, 3j],
        "min": [1 + 1j, complex(np.nan, 0)],
        "nanmax": [1 + 2j, 3j],
        "first": [1 + 2j, complex(np.nan, 0)],
        "nanfirst": [1 + 2j, 3j],
        "var": [0.25, np.nan],
    }.items():
        result, _ = dc.groupby_reduce(da.from_array(x, chunks=3), labels, func=func)
        np.testing.assert_array_equal(to_numpy(np, result), wanted, err_msg=func)


# What is asked for besides.


def test_fill_values() -> None:
    x, labels = da.from_array([1.0, np.nan, 3.0, 4.0], chunks=2), [0, 1, 2, 2]

    def of(func: str, **kwargs: Any) -> Any:
        return dc.groupby_reduce(x, labels, func=func, **kwargs)[0].compute()

    groups = {"expected_groups": range(4)}
    np.testing.assert_array_equal(of("sum", **groups), [1, np.nan, 7, np.nan])
    np.testing.assert_array_equal(of("nansum", **groups), [1, 0, 7, np.nan])
    np.testing.assert_array_equal(of("nansum", fill_value=-1, **groups), [1, -1, 7, -1])
    np.testing.assert_array_equal(of("nansum", min_count=2), [np.nan, np.nan, 7])
    np.testing.assert_array_equal(of("nanmax", fill_value=-1), [1, -1, 4])
    np.testing.assert_array_equal(of("mean", min_count=2, fill_value=9.0), [9, 9, 3.5])
    np.testing.assert_array_equal(of("nanmedian", min_count=2, fill_value=9.0), [9, 9, 3.5])
    np.testing.assert_array_equal(of("count", fill_value=-1, min_count=0, **groups), [1, 0, 2, -1])
    for func in ("sum", "nanmedian", "nanmax"):
        with pytest.raises(ValueError, match="fill_value is None"):
            of(func, min_count=2)
    with pytest.raises(ValueError, match="is no uint8"):
        dc.groupby_reduce(x.astype("u1"), labels, func="max", fill_value=-1)


@pytest.mark.parametrize("dtype", ["u8", "f4"])
def test_tables_of_which_some_are_few_bytes(xp: Any, dtype: str) -> None:
    # On a GPU small ones go to the host: of one operation, and not of what counts beside it.
    array = np.random.default_rng(3).integers(0, 9, (12_000, 3)).astype(dtype)
    x = to_chunks(xp, array, -1)
    for groups in (range(4), range(6)):
        for func in ("nanmax", "sum"):
            given = {"func": func, "expected_groups": groups, "min_count": 1, "fill_value": 7}
            found, _ = dc.groupby_reduce(x, [1, 2, 3], **given)
            wanted = np.full((12_000, len(groups)), 7.0)
            wanted[:, 1:4] = array
            np.testing.assert_array_equal(to_numpy(xp, found), wanted)


def test_spread_takes_ddof() -> None:
    x, labels = da.from_array([1.0, 3.0, 4.0, 8.0, 1.0], chunks=2), [0, 0, 1, 1, 2]
    (std, mean), _ = dc.groupby_reduce(x, labels, func=["std", "mean"], finalize_kwargs={"ddof": 1})
    np.testing.assert_allclose(std, [math.sqrt(2), math.sqrt(8), np.nan], rtol=1e-15)
    np.testing.assert_array_equal(mean, [2, 6, 1])


def test_variances_lose_no_digits() -> None:
    x = 1e8 + np.random.default_rng(0).normal(size=(3, 4000))
    labels = np.arange(4000) % 7
    result, _ = dc.groupby_reduce(da.from_array(x, chunks=(3, 1500)), labels, func="var")
    wanted = [[np.var(line[labels == g] - 1e8) for g in range(7)] for line in x]
    # Elements of 1e8 are rounded by 1e-8; the textbook's formula would leave no digit.
    np.testing.assert_allclose(result, wanted, rtol=1e-7)


@pytest.mark.parametrize("func", ["sum", "nansum", "mean", "nanmean"])
@pytest.mark.parametrize("layout", ["lines", "one line", "across", "zones"])
def test_long_sums_lose_no_digits(func: str, layout: str) -> None:
    rng = np.random.default_rng(0)
    shape = {"lines": (17, 20_000), "one line": (1, 200_000), "zones": (400, 500)}
    x = rng.random(shape.get(layout, (30_000, 6)))
    if func.startswith("nan"):
        x[rng.random(x.shape) < 0.1] = np.nan
    codes = rng.integers(0, 3, x.shape if layout == "zones" else x.shape[layout != "across"])
    array = da.from_array(x, chunks=tuple(n // 2 + 1 for n in x.shape))
    lines = x[np.newaxis] if layout == "zones" else x
    if layout == "across":
        array, lines = array.T, x.T
    result, _ = dc.groupby_reduce(array, codes, func=func)
    wanted = []
    for line in lines:
        for group in range(3):
            part = plain(line[codes == group])
            wanted.append(math.fsum(part) / (len(part) if func.endswith("mean") else 1))
    # Fours of elements that are neighbours are added up as they are.
    error = np.abs(np.ravel(result.compute()) - wanted) / np.spacing(wanted)
    assert error.max() <= 1


@pytest.mark.parametrize("lazy", [False, True])
def test_long_scans_of_groups_lose_no_digits(lazy: bool) -> None:
    x, labels = np.random.default_rng(0).random(200_000), np.arange(200_000) % 3
    by = da.from_array(labels, chunks=50_000) if lazy else labels
    array = da.from_array(x, chunks=70_000)
    for each in (array, array + 0j):
        result = dc.groupby_scan(each, by, func="cumsum").compute()
        for group in range(3):
            wanted = math.fsum(x[labels == group])
            found = result[labels == group][-1].real
            # The scan of a chunk and what is before it are rounded once each, and so is their sum.
            assert abs(found - wanted) <= 1.5 * np.spacing(wanted), each.dtype


def test_quantiles_have_axes_of_their_own() -> None:
    x = np.random.default_rng(0).random((3, 20))
    labels, q = np.arange(20) % 3, [0.1, 0.5]
    result, _ = dc.groupby_reduce(
        da.from_array(x, chunks=(2, 6)), labels, func="quantile", finalize_kwargs={"q": q}
    )
    assert result.shape == (2, 3, 3)
    wanted = np.stack([np.quantile(x[:, labels == g], q, axis=1) for g in range(3)], -1)
    np.testing.assert_array_equal(result, wanted)


def test_several_statistics_read_once() -> None:
    x, reads = noting(da.ones((3, 8), chunks=(3, 4)))
    results, _ = dc.groupby_reduce(x, [0, 1] * 4, func=["mean", "std", "max", "count"])
    assert isinstance(results, tuple)
    found = dask.compute(*results)
    np.testing.assert_array_equal(found[0], np.ones((3, 2)))
    np.testing.assert_array_equal(found[3], np.full((3, 2), 4))
    assert len(reads) == 2


AFFINE = dc.Monoid(
    "affine",
    lambda f, g: (g[0] * f[0], g[0] * f[1] + g[1]),
    (1.0, 0.0),
    [("a", "f8"), ("b", "f8")],
    lift=lambda x: (0.5 + 0 * x, x),
    finalize=lambda f: f[1],
)


def test_ones_own_monoid() -> None:
    x = np.random.default_rng(0).random((2, 30))
    labels = np.arange(30) % 4
    result, _ = dc.groupby_reduce(
        da.from_array(x, chunks=(2, 7)), labels, func=AFFINE, expected_groups=range(5)
    )
    wanted = np.zeros((2, 5))
    for i, label in enumerate(labels):
        wanted[:, label] = 0.5 * wanted[:, label] + x[:, i]
    np.testing.assert_allclose(result, wanted, rtol=1e-15)
    with pytest.raises(ValueError, match="not commutative"):
        dc.groupby_reduce(x, np.zeros((2, 30)), func=AFFINE)


# Labels.


def test_labels_of_many_kinds() -> None:
    x = da.arange(6, chunks=4)
    dates = np.array(["2020-01", "2020-02", "NaT", "2020-01", "2020-02", "2020-02"], "M8[M]")
    for labels, wanted in {
        (2.5, np.nan, 1.0, 1.0, 2.5, 2.5): ([5, 9], [1.0, 2.5]),
        ("b", "a", "b", "b", "a", "a"): ([10, 5], ["a", "b"]),
        (True, False, True, True, True, False): ([6, 9], [False, True]),
        (-3, 2**40, 2**40, -3, 5, 5): ([3, 9, 3], [-3, 5, 2**40]),
    }.items():
        result, groups = dc.groupby_reduce(x, [*labels], func="sum")
        np.testing.assert_array_equal(result, wanted[0])
        np.testing.assert_array_equal(groups, wanted[1])
    result, groups = dc.groupby_reduce(x, dates, func="sum")
    np.testing.assert_array_equal(result, [3, 10])
    np.testing.assert_array_equal(groups, np.array(["2020-01", "2020-02"], "M8[M]"))
    result, _ = dc.groupby_reduce(x, np.array([*"babbaa"], object), func="sum")
    np.testing.assert_array_equal(result, [10, 5])


def test_order_of_groups() -> None:
    x, labels = da.arange(5, chunks=2), ["c", "a", "c", "b", "a"]
    result, groups = dc.groupby_reduce(x, labels, func="sum", sort=False)
    np.testing.assert_array_equal(groups, ["c", "a", "b"])
    np.testing.assert_array_equal(result, [2, 5, 3])
    expect = {"expected_groups": ["b", "z", "a"], "fill_value": -1}
    result, groups = dc.groupby_reduce(x, labels, func="sum", sort=False, **expect)
    np.testing.assert_array_equal(groups, ["b", "z", "a"])
    np.testing.assert_array_equal(result, [3, -1, 5])
    result, groups = dc.groupby_reduce(x, labels, func="sum", **expect)
    np.testing.assert_array_equal(groups, ["a", "b", "z"])
    np.testing.assert_array_equal(result, [5, 3, -1])


#: Elements that are the identity of an extremum.
ENDS: dict[str, list[Any]] = {
    "?": [False, True],
    "u1": [0, 255],
    "i8": [np.iinfo("i8").min, np.iinfo("i8").max],
    "f8": [-np.inf, np.inf],
    "c16": [complex(-np.inf, -np.inf), complex(np.inf, np.inf)],
}


@pytest.mark.parametrize("dtype", ENDS)
@pytest.mark.parametrize("labels", ["coded", "found", "rows", "coded rows"])
def test_indices_of_extrema_that_are_the_identity(dtype: str, labels: str) -> None:
    # Most chunks have no element of some group.
    codes = np.array([[2, 2, 0, 0, 0, 1, 1, -1], [1, 1, 1, 2, 2, 2, 0, 0]])
    rows, given = labels.endswith("rows"), {"expected_groups": range(3), "fill_value": -1}
    codes = codes if rows else codes.reshape(1, -1)
    by: Any = codes if rows else codes[0]
    by = by if labels == "rows" else da.from_array(by, chunks=2)
    if labels == "found":
        by, given = da.where(by < 0, np.nan, by), {}
    for value in ENDS[dtype]:
        x = np.full(codes.shape, value, dtype)
        array = da.from_array(x if rows else x[0], chunks=2)
        for func in ("argmin", "argmax", "nanargmin", "nanargmax"):
            found, _ = dc.groupby_reduce(array, by, func=func, axis=1 if rows else None, **given)
            parts = zip(x, codes, strict=True)
            wanted = [expected(func, part, own, 3, np.dtype("i8")) for part, own in parts]
            np.testing.assert_array_equal(found.compute(), wanted if rows else wanted[0])


@pytest.mark.parametrize(
    ("shape", "chunks", "ndim"),
    [
        ((0,), ((0, 0),), 1),
        ((0, 4), ((0,), (2, 2)), 1),
        ((0, 4), ((0,), (2, 2)), 2),
        ((3, 0), ((2, 0, 1), (0, 0)), 1),
        ((3, 0), ((2, 0, 1), (0, 0)), 2),
    ],
)
def test_arrays_without_elements(xp: Any, shape: Any, chunks: Any, ndim: int) -> None:
    x = to_chunks(xp, np.zeros(shape), chunks)
    codes = np.zeros(shape[len(shape) - ndim :], "i8")
    # As Dask has it, chunks of labels without elements stay as they are.
    lazy = to_chunks(xp, codes, codes.shape)
    for labels, wanted in ((codes, range(2)), (lazy, range(2)), (lazy, None)):
        n = 2 if wanted else len(np.unique(codes))
        for func in ("sum", "argmax", "first", "nanmin", "median", "quantile"):
            found, _ = dc.groupby_reduce(
                x, labels, func=func, expected_groups=wanted, finalize_kwargs=KWARGS.get(func)
            )
            found = to_numpy(xp, found if wanted else found.compute_chunk_sizes())
            nothing = np.full((*shape[: len(shape) - ndim], n), NOTHING.get(func, np.nan))
            np.testing.assert_array_equal(found, nothing, strict=func != "argmax")
        for func in ("cumsum", "cummax", "bfill", "ffill"):
            for axis in range(len(shape) - ndim, len(shape)):
                result = dc.groupby_scan(x, labels, func=func, axis=axis, expected_groups=wanted)
                assert result.dtype == "f8"
                assert to_numpy(xp, result).shape == shape


@pytest.mark.usefixtures("_compiled_groups")
@given(case=grouped(), data=st.data())
@FEWER
def test_groups_of_lazy_labels_are_found(case: Any, data: Any) -> None:
    x, codes, _, chunks = case
    array = da.from_array(x, chunks=chunks)
    found = np.unique(codes[codes >= 0])
    labels = da.from_array(np.where(codes < 0, np.nan, codes * 3), chunks=2)
    names = [func for func in FUNCS if not func.endswith("quantile")]
    funcs = data.draw(st.lists(st.sampled_from(names), min_size=3, max_size=3, unique=True))
    results, groups = dc.groupby_reduce(array, labels, func=funcs)
    np.testing.assert_array_equal(groups, found * 3)
    for func, result in zip(funcs, dask.compute(*results), strict=True):
        known, _ = dc.groupby_reduce(array, np.where(codes < 0, np.nan, codes), func=func)
        assert result.dtype == known.dtype
        # Variances are combined from other parts.
        bound = {1: 0, 2: 2e-3, 4: 3e-7, 8: 1e-13}[result.dtype.itemsize]
        np.testing.assert_allclose(result, known.compute(), rtol=bound, atol=bound)
    np.testing.assert_equal(results[0].shape, (*x.shape[: x.ndim - codes.ndim], np.nan))


def test_found_groups_of_many_kinds() -> None:
    x = da.arange(6, chunks=4)
    dates = np.array(["2020-01", "2020-02", "NaT", "2020-01", "2020-02", "2020-02"], "M8[M]")
    for labels in (dates, np.array([*"babbaa"]), dates == dates[0], np.arange(6, dtype="u1") % 4):
        result, groups = dc.groupby_reduce(x, da.from_array(labels, chunks=2), func="sum")
        wanted, known = dc.groupby_reduce(x, labels, func="sum")
        np.testing.assert_equal((result.shape, groups.shape), ((np.nan,), (np.nan,)))
        assert groups.dtype == labels.dtype
        np.testing.assert_array_equal(result, wanted)
        np.testing.assert_array_equal(groups, known)
    t = da.from_array(dates.astype("M8[s]"), chunks=4)
    for func in ("nanmin", "nanmean", "count", "last"):
        result, _ = dc.groupby_reduce(t, da.from_array([0, 1, 1, 0, 2, 2], chunks=4), func=func)
        wanted, _ = dc.groupby_reduce(t, [0, 1, 1, 0, 2, 2], func=func)
        np.testing.assert_array_equal(result.compute(), wanted.compute())
    result, groups = dc.groupby_reduce(da.ones((2, 4), chunks=2), da.full(4, np.nan), func="sum")
    assert result.compute().shape == (2, 0)
    assert groups.compute().shape == (0,)
    result, _ = dc.groupby_reduce(x, da.from_array(labels, chunks=2), func=AFFINE)
    np.testing.assert_array_equal(result, dc.groupby_reduce(x, labels, func=AFFINE)[0])
    with pytest.raises(NotImplementedError, match="along all of their axes"):
        dc.groupby_reduce(da.ones((2, 4)), da.zeros((2, 4)), func="sum", axis=1)


def test_found_groups_go_up_a_tree() -> None:
    x, labels = np.arange(1400).reshape(2, 700), np.random.default_rng(1).integers(0, 300, 700)
    array, by = da.from_array(x, chunks=(1, 7)), da.from_array(labels, chunks=7)
    result, groups = dc.groupby_reduce(array, by, func="max")
    np.testing.assert_array_equal(result, dc.groupby_reduce(array, labels, func="max")[0])
    np.testing.assert_array_equal(groups, np.unique(labels))
    tasks = dict(result.__dask_graph__())
    merges = [task for key, task in tasks.items() if "merge" in str(key[0])]
    assert merges
    assert max(len(task.dependencies) for task in merges) <= graph_grouped.FAN_IN
    # Groups are found without the array.
    assert not {array.name} & {key[0] for key in dict(groups.__dask_graph__())}


@pytest.mark.parametrize("lazy", [False, True])
def test_several_labels(lazy: bool) -> None:
    rng = np.random.default_rng(0)
    x, a, b = rng.random((3, 4, 6)), rng.integers(0, 3, (4, 6)), rng.integers(0, 2, (1, 6))
    array = da.from_array(x, chunks=(2, 3, 4))
    labels: list[Any] = [da.from_array(a, chunks=2), b] if lazy else [a, b]
    expect = (range(3), range(2))
    result, *groups = dc.groupby_reduce(array, *labels, func="mean", expected_groups=expect)
    assert [*map(len, groups)] == [3, 2]
    codes = a * 2 + b
    wanted = expected("mean", x, codes, 6, np.dtype("f8")).reshape(3, 3, 2)
    np.testing.assert_allclose(to_numpy(np, result), wanted, rtol=1e-15)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("func", ["sum", "nanargmax", "first", "nanmedian"])
def test_some_axes_of_labels(func: str, lazy: bool) -> None:
    rng = np.random.default_rng(1)
    x, labels = rng.random((2, 3, 4, 5)), rng.integers(-1, 3, (3, 4, 5))
    array = da.from_array(x, chunks=(2, 2, 3, 2))
    by = da.from_array(labels, chunks=2) if lazy else labels
    for axis, order in (((-2,), (0, 1, 3, 2)), ((1, 3), (0, 2, 1, 3)), (3, (0, 1, 2, 3))):
        result, _ = dc.groupby_reduce(
            array, by, func=func, axis=axis, expected_groups=range(3), fill_value=-7
        )
        moved, codes = x.transpose(order), labels.transpose([d - 1 for d in order[1:]])
        reduced = len(np.atleast_1d(axis))
        wanted = np.empty((*moved.shape[: 4 - reduced], 3))
        for at in np.ndindex(codes.shape[: 3 - reduced]):
            part = expected(func, moved[(slice(None), *at)], codes[at], 3, np.dtype("f8"))
            has = np.isin(np.arange(3), codes[at])
            wanted[(slice(None), *at)] = np.where(has, part, -7)
        np.testing.assert_allclose(to_numpy(np, result), wanted, rtol=1e-15)


def test_labels_that_are_broadcast() -> None:
    x = np.random.default_rng(0).random((30, 40))
    labels = np.arange(40)[np.newaxis] % 3
    array = da.from_array(x, chunks=(7, 11))
    for by in (labels, da.from_array(labels, chunks=(1, 9))):
        result, _ = dc.groupby_reduce(array, by, func="sum", expected_groups=range(3))
        np.testing.assert_allclose(result, [x[:, i::3].sum() for i in range(3)], rtol=1e-14)
    result, _ = dc.groupby_reduce(array, labels, func="argmax")
    wanted = [np.where(labels == i, x, -1).argmax() for i in range(3)]
    np.testing.assert_array_equal(result, wanted)


def test_bins() -> None:
    x, labels = da.arange(6, chunks=4), [0.5, 1.0, 2.0, 3.0, np.nan, 7.0]
    for by in (labels, da.from_array(labels, chunks=3)):
        result, groups = dc.groupby_reduce(
            x, by, func="sum", isbin=True, expected_groups=[0, 1, 2.5], fill_value=0
        )
        np.testing.assert_array_equal(result, [1, 2])
        assert len(groups) == 2
    dates = np.array(["2020-01-03", "2020-02-01", "NaT", "2020-02-07", "2021-01-01", "2020-01-31"])
    edges = np.array(["2020-01-01", "2020-02-01", "2020-03-01"], "M8[D]")
    result, _ = dc.groupby_reduce(
        x, dates.astype("M8[D]"), func="sum", isbin=True, expected_groups=edges
    )
    np.testing.assert_array_equal(result, [0 + 1 + 5, 3])


def test_bins_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    x, labels = da.arange(5, chunks=4), [0.5, 1.0, 2.0, 3.0, 0.0]
    for closed, wanted in {"right": [1, 2], "left": [4, 3]}.items():
        bins = pandas.IntervalIndex.from_breaks([0, 1, 3 - 0.5], closed=closed)
        result, groups = dc.groupby_reduce(x, labels, func="sum", expected_groups=bins)
        np.testing.assert_array_equal(result, wanted)
        assert [*groups] == [*bins]
    with pytest.raises(NotImplementedError, match="both"):
        dc.groupby_reduce(
            x, labels, func="sum", expected_groups=pandas.IntervalIndex.from_breaks([0, 1], "both")
        )


# Dates.


def test_dates() -> None:
    x = np.array(["2020-01-03", "2020-01-01", "NaT", "1950-02-02", "2020-01-02", "NaT"], "M8[ns]")
    labels = np.array([0, 0, 1, 1, 0, 2])
    nat = np.datetime64("NaT", "ns")
    array = da.from_array(x, chunks=4)
    for func, wanted in {
        "min": [x[1], nat, nat],
        "max": [x[0], nat, nat],
        "nanmin": [x[1], x[3], nat],
        "nanmax": [x[0], x[3], nat],
        "mean": [x[4], nat, nat],
        "nanmean": [x[4], x[3], nat],
        "first": [x[0], nat, nat],
        "last": [x[4], x[3], nat],
        "nanmedian": [x[4], x[3], nat],
        "count": [3, 1, 0],
        "argmax": [0, 2, 5],
    }.items():
        result, _ = dc.groupby_reduce(array, labels, func=func)
        np.testing.assert_array_equal(to_numpy(np, result), wanted, err_msg=func)
    result, _ = dc.groupby_reduce(
        array, labels, func="nanmin", expected_groups=range(4), fill_value=x[0]
    )
    np.testing.assert_array_equal(result, [x[1], x[3], nat, x[0]])
    with pytest.raises(dc.Refused, match="std does not take dtype datetime64"):
        dc.groupby_reduce(array, labels, func="std")


def test_durations() -> None:
    x = np.array([5, -8, 2**61, 2**61, 2**61, 2**61 + 3], "m8[s]")
    labels = np.array([0, 0, 1, 1, 1, 1])
    array = da.from_array(x, chunks=4)
    mean, _ = dc.groupby_reduce(array, labels, func="mean")
    # Four times 2**61 seconds are more than 64 bits have.
    np.testing.assert_array_equal(mean, np.array([-1, 2**61], "m8[s]"))
    total, _ = dc.groupby_reduce(array[:4], labels[:4], func="sum")
    np.testing.assert_array_equal(total, np.array([-3, 2**62], "m8[s]"))


# Graphs.


def test_daily_means_make_no_table_of_all_days(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    lift = graph_threads.lift_groups_by_threads

    def spy(ops: Any, x: Any, codes: Any, n: int, threads: int) -> Any:
        sizes.append(n)
        return lift(ops, x, codes, n, threads)

    monkeypatch.setattr("dask_coop.graph.grouped.lift_groups_by_threads", spy)
    hours = np.arange(2400)
    x = da.from_array(np.arange(4800.0).reshape(2, 2400), chunks=(2, 100))
    result, days = dc.groupby_reduce(x, hours // 24, func="mean")
    assert len(days) == 100
    # Chunks of 100 hours begin up to five days; blocks of the result have those that begin there.
    assert result.chunks[0] == (2,)
    assert len(result.chunks[1]) == 24
    assert max(result.chunks[1]) <= 5
    wanted = np.arange(4800.0).reshape(2, 100, 24).mean(-1)
    np.testing.assert_array_equal(to_numpy(np, result), wanted)
    assert len(sizes) == 24
    assert max(sizes) <= 6
    # A part of the result takes the chunks that it needs.
    sizes.clear()
    result[:, :3].compute(scheduler="synchronous")
    assert len(sizes) <= 2


def test_groups_that_come_again_share_blocks() -> None:
    # Days of the year, in chunks of a month, for 4 years.
    days = np.tile(np.arange(360), 4)
    x = np.random.default_rng(0).random(1440)
    result, _ = dc.groupby_reduce(da.from_array(x, chunks=30), days, func="sum")
    assert result.chunks == ((30,) * 12,)
    np.testing.assert_allclose(to_numpy(np, result), x.reshape(4, 360).sum(0), rtol=1e-14)
    # Hours of the day are in every chunk.
    result, _ = dc.groupby_reduce(da.from_array(x, chunks=30), np.arange(1440) % 24, func="sum")
    assert result.numblocks == (1,)
    np.testing.assert_allclose(to_numpy(np, result), x.reshape(60, 24).sum(0), rtol=1e-14)


def test_trees_of_many_chunks() -> None:
    x = np.random.default_rng(0).integers(0, 100, (2, 700))
    labels = np.random.default_rng(1).integers(-1, 300, 700)
    result, groups = dc.groupby_reduce(da.from_array(x, chunks=(1, 7)), labels, func="sum")
    wanted = [[line[labels == g].sum() for g in groups] for line in x]
    np.testing.assert_array_equal(to_numpy(np, result), wanted)
    # No task takes more states than FAN_IN.
    tasks = dict(result.__dask_graph__())
    merges = [t for key, t in tasks.items() if "merge" in str(key[0])]
    assert merges
    assert max(len(t.dependencies) for t in merges) <= graph_grouped.FAN_IN


def test_many_groups() -> None:
    n = 50_000
    x, labels = np.ones(3 * n), np.arange(3 * n) % n
    result, _ = dc.groupby_reduce(da.from_array(x, chunks=n), labels, func="sum")
    np.testing.assert_array_equal(result, np.full(n, 3.0))


def test_scans_of_lazy_labels_are_lazy_and_have_names_of_their_own() -> None:
    x, by = da.ones((4, 8), chunks=4), da.from_array(np.arange(8) % 3, chunks=4)
    with dask.config.set(scheduler=refuse):
        first, again = (dc.groupby_scan(x, by, func="bfill") for _ in range(2))
        other = dc.groupby_scan(x, by, func="bfill", expected_groups=[1])
    assert first.name == again.name != other.name


def test_graphs_are_small_on_the_wire() -> None:
    x = da.ones((4, 8), chunks=4)
    assert len(pickle.dumps(dc.groupby_reduce(x, np.arange(8) % 3, func="mean")[0])) < 20_000


def test_threads_make_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_threads, "TILE", 1 << 10)
    rng = np.random.default_rng(0)
    for shape, ndim in (((64, 500), 1), ((40_000,), 1), ((2, 40, 500), 2)):
        x, labels = rng.integers(0, 99, shape), rng.integers(0, 5, shape[len(shape) - ndim :])
        found = []
        for threads in (1, 4):
            with dask.config.set({"coop.threads": threads}):
                results, _ = dc.groupby_reduce(
                    da.from_array(x, chunks=-1), labels, func=["sum", "argmin", "last", "max"]
                )
                found.append(dask.compute(*results))
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)


def test_gpu_and_cpu_find_the_same(xp: Any) -> None:
    x = np.random.default_rng(0).integers(0, 9, (3, 50)).astype("f4")
    labels = np.arange(50) % 4
    funcs = ["sum", "mean", "max", "count", "argmin"]
    results, _ = dc.groupby_reduce(to_chunks(xp, x, (2, 20)), labels, func=funcs)
    for func, result in zip(funcs, results, strict=True):
        np.testing.assert_array_equal(
            to_numpy(xp, result), expected(func, x, labels, 4, result.dtype).astype(result.dtype)
        )


# Errors.


def test_errors_tell_what_to_do() -> None:
    x = da.ones((3, 8), chunks=4)
    labels = np.arange(8)
    for kwargs, kind, match in [
        ({"func": "modal"}, ValueError, "does not know func='modal'; it takes sum"),
        ({"func": []}, ValueError, "empty list"),
        ({"func": "sum", "axis": 0}, ValueError, "axis=0 is to name"),
        ({"func": "sum", "isbin": True}, ValueError, "isbin needs the edges"),
        ({"func": "quantile"}, ValueError, "needs q"),
        ({"func": "sum", "finalize_kwargs": {"ddof": 1}}, TypeError, "no 'ddof' .* takes none"),
        ({"func": "var", "finalize_kwargs": {"q": 1}}, TypeError, "no 'q' .* it takes ddof"),
        ({"func": "var", "finalize_kwargs": {"ddof": "a"}}, TypeError, "a number .* got 'a'"),
        ({"func": "cov", "finalize_kwargs": {"ddof": "a"}, "y": x}, TypeError, "got 'a'"),
        ({"func": "skew", "finalize_kwargs": {"bias": None}}, TypeError, "'bias' .* got None"),
        ({"func": "quantile", "finalize_kwargs": {"q": "a"}}, TypeError, "q of .* got 'a'"),
        ({"func": ["var", "sum"], "finalize_kwargs": {1: 2, "a": 3}}, TypeError, "they take ddof"),
        ({"func": "var", "finalize_kwargs": "ddof"}, TypeError, "maps names .* got 'ddof'"),
        ({"func": AFFINE, "finalize_kwargs": {"q": 1}}, TypeError, "affine takes no 'q'"),
        ({"func": "sum", "expected_groups": ["a"]}, TypeError, "expected_groups are <U1"),
        ({"func": "sum", "expected_groups": [1, 1]}, ValueError, "1.* twice"),
        ({"func": "sum", "expected_groups": ([1], [2])}, ValueError, "groups of 2 labels"),
    ]:
        with pytest.raises(kind, match=match):
            dc.groupby_reduce(x, labels, **kwargs)
    with pytest.raises(ValueError, match=r"labels of shape \(5,\) do not fit"):
        dc.groupby_reduce(x, np.arange(5), func="sum")
    with pytest.raises(ValueError, match="label 1 of several is lazy, so that the groups"):
        dc.groupby_reduce(x, labels, da.arange(8, chunks=4), func="sum")
    with pytest.raises(TypeError, match="needs labels behind the array"):
        dc.groupby_reduce(x, func="sum")
    with pytest.raises(TypeError, match="one is 1"):
        dc.groupby_reduce(x, np.array(["a", 1] * 4, object), func="sum")
    with pytest.raises(dc.Refused, match="does not take dtype complex"):
        dc.groupby_reduce(x.astype("c8"), labels, func="median")
    with pytest.raises(dc.Refused, match="MaskedArray"):
        dc.groupby_reduce(da.ma.masked_equal(x, 0), labels, func="sum")


@pytest.mark.parametrize("func", ["nansum", "mean", "std", "nanmax", "count", "first", "argmin"])
def test_results_are_those_of_flox(func: str) -> None:
    flox = pytest.importorskip("flox")
    rng = np.random.default_rng(0)
    x, labels = rng.random((4, 60)), rng.integers(0, 5, 60)
    kwargs: dict[str, Any] = {"func": func, "expected_groups": np.arange(7), "fill_value": -1}
    wanted, groups = flox.groupby_reduce(x, labels, **kwargs)
    result, found = dc.groupby_reduce(da.from_array(x, chunks=(3, 25)), labels, **kwargs)
    np.testing.assert_array_equal(found, groups)
    np.testing.assert_allclose(result, wanted, rtol=1e-14)
    assert result.dtype == wanted.dtype


# Scans.

SCANS: dict[str, Any] = {
    "cumsum": np.cumsum,
    "nancumsum": np.nancumsum,
    "cumprod": np.cumprod,
    "nancumprod": np.nancumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "logcumsumexp": np.logaddexp.accumulate,
    "ffill": lambda x, axis: filled(x),
    "bfill": lambda x, axis: filled(x[..., ::-1])[..., ::-1],
}


def filled(x: Any) -> Any:
    """Return lines with the last valid element before each gap in it."""
    valid = np.where(x == x, np.arange(x.shape[-1]), 0)
    return np.take_along_axis(x, np.maximum.accumulate(valid, -1), -1)


@pytest.mark.parametrize("func", SCANS)
@given(case=grouped(), lazy=st.sampled_from(["known", "lazy", "coded"]))
@settings(max_examples=20)
def test_scans_of_groups_are_those_of_loops(func: str, case: Any, lazy: str) -> None:
    x, codes, n, chunks = case
    x = x.astype("f8")
    labels: Any = np.where(codes < 0, np.nan, codes)
    array = da.from_array(x, chunks=chunks)
    if lazy != "known":
        labels = da.from_array(labels, chunks=2)
    groups = range(n) if lazy == "coded" else None
    result = dc.groupby_scan(array, labels, func=func, expected_groups=groups)
    wanted = np.full(x.shape, np.nan)
    for at in np.ndindex(codes.shape[:-1]):
        for group in range(5):
            here = (..., *at, codes[at] == group)
            with np.errstate(all="ignore"):
                wanted[here] = SCANS[func](x[here], -1)
    assert result.chunks == tuple(tuple(size for size in sizes if size) for sizes in chunks)
    assert result.dtype == "f8"
    # Sums of small integers, products and extrema are exact.
    bound = 1e-14 if func == "logcumsumexp" else 0
    np.testing.assert_allclose(to_numpy(np, result), wanted, rtol=bound)


@pytest.mark.parametrize("lazy", [False, True])
def test_scans_of_groups_have_the_dtypes_of_scans(lazy: bool) -> None:
    labels = np.array([1, 0, 1, 1, 0])
    by = da.from_array(labels, chunks=2) if lazy else labels
    for func in SCANS:
        for dtype in ("?", "i2", "u8", "f4", "c8", "m8[s]", "M8[D]"):
            if dtype[0] == "M" and func not in ("cummax", "cummin", "ffill", "bfill"):
                continue
            if dtype[0] == "m" and (func.endswith(("prod", "exp")) or func == "nancumsum"):
                continue
            if dtype[0] == "c" and func in ("cummax", "cummin", "logcumsumexp"):
                continue
            x = da.from_array(np.array([1, 0, 3, 1, 2], "i8").astype(dtype), chunks=3)
            result, plain = dc.groupby_scan(x, by, func=func), getattr(dc, func)(x, axis=0)
            assert result.dtype == plain.dtype == result.compute().dtype, (func, dtype)
            own = getattr(dc, func)(x[labels == 1], axis=0)
            np.testing.assert_array_equal(result.compute()[labels == 1], own.compute())
    x = da.from_array(np.array([1.5, np.nan, 2.5, 1.5, 3.5]), chunks=2)
    result = dc.groupby_scan(x, by, func="nancumsum", dtype="i8")
    np.testing.assert_array_equal(result, [1, 0, 3, 4, 3])
    assert result.dtype == "i8"


def test_scans_of_labels_that_have_no_run_move_no_element_out_of_its_chunk() -> None:
    def of_chunk(x: Any) -> Any:
        assert x.shape == (1, 8)
        return x

    x = np.random.default_rng(0).integers(0, 9, (2, 8 * 40))
    labels = np.random.default_rng(1).integers(0, 3, 8 * 40)
    array = da.from_array(x, chunks=(1, 8)).map_blocks(of_chunk, dtype="i8")
    result = dc.groupby_scan(array, labels, func="cumsum")
    wanted = sum(np.cumsum(np.where(labels == g, x, 0), 1) * (labels == g) for g in range(3))
    np.testing.assert_array_equal(result, wanted)
    # A chunk's result is made of the chunks before it, and of no other.
    assert len(result.blocks[0, :1].__dask_graph__().cull([(result.name, 0, 0)])) < 8


def test_scans_along_another_axis() -> None:
    x = np.random.default_rng(0).integers(0, 9, (3, 4, 5))
    labels = np.random.default_rng(1).integers(0, 2, (4, 5))
    result = dc.groupby_scan(da.from_array(x, chunks=2), labels, func="cumsum", axis=1)
    parts = [np.cumsum(np.where(labels == g, x, 0), 1) * (labels == g) for g in (0, 1)]
    np.testing.assert_array_equal(to_numpy(np, result), parts[0] + parts[1])
    result = dc.groupby_scan(da.from_array(x[:, 0], chunks=2), [0, 1, 0, 1, 1], func=AFFINE)
    assert result.shape == (3, 5)
    np.testing.assert_allclose(result[:, 3], 0.5 * x[:, 0, 1] + x[:, 0, 3])


def test_scans_of_runs_need_no_tables() -> None:
    x = da.ones((2, 100), chunks=(2, 10))
    runs, mixed = np.arange(100) // 24, np.arange(100) % 7
    for by, has_tables in ((runs, False), (mixed, True)):
        layers = dc.groupby_scan(x, by, func="cumsum").__dask_graph__().layers
        assert any("cumsum-merge" in name for name in layers) is has_tables
    x = da.from_array([1.0, np.nan, np.nan, 2.0, np.nan, 5.0], chunks=2)
    result = dc.groupby_scan(x, [0, 0, 1, 1, 1, 2], func="bfill")
    np.testing.assert_array_equal(result, [1, np.nan, 2, 2, np.nan, 5])


def test_ones_own_monoid_scans_groups_of_known_labels() -> None:
    x, labels = np.random.default_rng(0).random((2, 9)), np.arange(9) % 2
    result = dc.groupby_scan(da.from_array(x, chunks=(1, 2)), labels, func=AFFINE).compute()
    np.testing.assert_allclose(result[:, 2], 0.5 * x[:, 0] + x[:, 2], rtol=1e-15)
    with pytest.raises(dc.Refused, match="by a Monoid takes labels that are known"):
        dc.groupby_scan(x, da.from_array(labels, chunks=2), func=AFFINE)


def test_scans_refuse_what_they_do_not_know() -> None:
    x = da.ones((3, 8), chunks=4)
    with pytest.raises(ValueError, match="does not know func='diff'; it takes cumsum"):
        dc.groupby_scan(x, np.arange(8), func="diff")
    with pytest.raises(ValueError, match="label 1 of several is lazy"):
        dc.groupby_scan(x, np.arange(8), da.arange(8), func="cumsum")
    with pytest.raises(ValueError, match="axis=0 is not an axis of the labels"):
        dc.groupby_scan(x, np.arange(8), func="cumsum", axis=0)


def test_graphs_grow_with_the_chunks_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, within = [], graph_grouped._within
    monkeypatch.setattr(graph_grouped, "_within", lambda *args: calls.append(args) or within(*args))
    x = da.ones(600, chunks=2)
    result, _ = dc.groupby_reduce(x, np.arange(600) // 2, func="sum")
    assert result.numblocks == (300,)
    assert len(calls) < 5 * 300
    np.testing.assert_array_equal(result.compute(), np.full(300, 2.0))


def test_tables_of_large_chunks_and_of_small_ones_meet(xp: Any) -> None:
    # Of CuPy chunks, large tables stay on the GPU.
    array = np.random.default_rng(4).integers(0, 9, (18_000, 3)).astype("u8")
    x, labels = to_chunks(xp, array, ((3000, 15_000), (2, 1))), np.array([0, 2, 1])
    for func in ("argmax", "sum", "min"):
        found = to_numpy(xp, dc.groupby_reduce(x, labels, func=func)[0])
        expected = array[:, [0, 2, 1]]
        expected = np.broadcast_to([0, 2, 1], array.shape) if func == "argmax" else expected
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("func", ["nanmean", "nanstd", "nanmax", "nanargmax"])
def test_large_tables_of_neighbouring_groups_with_gaps(xp: Any, func: str, axis: int) -> None:
    """Groups of one or two elements across chunks, of which many have none."""
    rng = np.random.default_rng(3)
    array = rng.standard_normal((200, 60, 40)).astype("f4")
    array[rng.random(array.shape) < 0.05] = np.nan
    array = np.ascontiguousarray(np.moveaxis(array, 0, axis))
    labels = np.sort(np.repeat(rng.choice(500, 110, replace=False), 2)[:200])
    chunks = tuple(70 if i == axis else 30 for i in range(3))
    x = to_chunks(xp, array, chunks)
    expected = np.arange(500)
    lazy, _ = dc.groupby_reduce(
        da.moveaxis(x, axis, -1), labels, func=func, expected_groups=expected, fill_value=-7
    )
    found = to_numpy(xp, lazy)
    lines = np.moveaxis(array, axis, -1)
    want = np.full((*lines.shape[:-1], 500), -7.0)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for group in np.unique(labels):
            inside = np.flatnonzero(labels == group)
            elements = lines[..., inside].astype("f8")
            if func == "nanargmax":
                best = np.argmax(np.where(np.isnan(elements), -np.inf, elements), -1)
                value = inside[best]
            else:
                value = getattr(np, func)(elements, axis=-1)
            want[..., group] = np.where(np.isnan(elements).all(-1), -7, value)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("func", ["skew", "kurtosis", "nanskew"])
def test_moments_of_chunks_without_groups(func: str) -> None:
    x = da.arange(12.0, chunks=4)
    labels = np.concatenate([np.full(4, np.nan), np.arange(8) % 2])
    lazy, _ = dc.groupby_reduce(x, da.from_array(labels, chunks=4), func=func)
    known, _ = dc.groupby_reduce(x[4:], labels[4:], func=func)
    np.testing.assert_array_equal(lazy.compute(), known.compute())
    none, _ = dc.groupby_reduce(x, np.full(12, 7), func=func, expected_groups=[0, 1])
    assert np.isnan(none.compute()).all()


def test_groups_that_one_chunk_has_wait_as_results() -> None:
    """Only the states of groups that two chunks share are kept for the task of the other chunk."""
    x, labels = da.ones((3, 40), chunks=(3, 10)), np.arange(40) // 4

    def lifted(result: Any) -> list[Any]:
        graph = dict(result.__dask_graph__())
        return [*dask.get(graph, [key for key in graph if "lift" in str(key)])]

    tables = lifted(dc.groupby_reduce(x, labels, func="std")[0])
    assert [table.result.shape for table in tables] == [(3, 2)] * 4
    fields = [field for table in tables for state in table.states for field in state]
    assert {field.shape for field in fields} == {(3, 1)}
    # Several functions make their results of the same states.
    both, _ = dc.groupby_reduce(x, labels, func=["std", "max"])
    assert not any(hasattr(table, "result") for table in lifted(both[0]))


def test_a_large_chunk_and_a_small_one_have_a_group_in_common(xp: Any) -> None:
    labels = np.r_[np.arange(40_000), 39_999, 40_000, 40_001]
    x = to_chunks(xp, np.ones(40_003), ((40_000, 3),))
    # On a GPU the table of the large chunk stays there, and that of the other is on the host.
    sums, _ = dc.groupby_reduce(x, labels, func="sum")
    np.testing.assert_array_equal(to_numpy(xp, sums), np.bincount(labels))


def test_groups_are_told_apart_in_keys() -> None:
    x, labels = da.arange(12, chunks=5), da.arange(12, chunks=5) % 4
    lists = [
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [0, 1, 2],
        np.arange(4, dtype="u1"),
        [0, 2, 1, 3],
        [0, 1, 2, 4],
    ]
    names = {
        dc.groupby_reduce(x, labels, func="sum", expected_groups=groups, sort=False)[0].name
        for groups in (*lists, [0, 1, 2, 3])
    }
    assert len(names) == len(lists)
    many = np.arange(300_000)
    total, found = dc.groupby_reduce(x, labels, func="sum", expected_groups=many, fill_value=-1)
    np.testing.assert_array_equal(found, many)
    np.testing.assert_array_equal(total.compute()[:5], [12, 15, 18, 21, -1])
