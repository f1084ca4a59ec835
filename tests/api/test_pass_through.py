"""What no backend takes goes to Dask's function of the same name, with the same arguments."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import key_split
from support.calls import refuse

import dask_coop as dc

PLAIN = ["sum", "prod", "min", "max", "mean", "var", "std", "any", "all", "argmin", "argmax"]
NAN = ["sum", "prod", "min", "max", "mean", "var", "std", "argmin", "argmax"]
NAMES = [*PLAIN, "ptp", "count_nonzero", *(f"nan{name}" for name in NAN)]


class Quantity(np.ndarray):
    """An array with a meaning that plain arrays would lose."""


def chunked(array: Any) -> da.Array:
    return da.from_array(array, chunks=2)


def quantities() -> da.Array:
    return chunked(np.ones(4)).map_blocks(
        lambda b: b.view(Quantity), dtype="f8", meta=np.empty(0).view(Quantity)
    )


def masked() -> da.Array:
    return da.ma.masked_equal(chunked(np.arange(4)), 1)


def dates() -> da.Array:
    return chunked(np.array(["2020-02-03", "2020-01-01", "NaT", "2021-01-01"], "M8[D]"))


STRANGE = {
    "masked objects": da.ma.masked_equal(chunked(np.array([3, 1, 4, 1], "O")), 4),
    "object": chunked(np.array([3, 1, 4, 1], "O")),
    "longdouble": chunked(np.array([3, 1, np.nan, 1], "g")),
    "dates": dates(),
    "times": chunked(np.array([3, 1, "NaT", 1], "m8[s]")),
    "strings": chunked(np.array(["b", "a", "c", ""])),
    "clongdouble": chunked(np.array([3, 1, 2, 1], "G")),
}


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the name of the lazy result, or the type of the exception, which may be Dask's."""
    try:
        return function(*args, **kwargs).name
    except dc.RefusedByDask as error:
        return type(error.__cause__)
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", STRANGE)
def test_other_kinds_of_array_get_dasks_own_graph(kind: str, name: str) -> None:
    x = STRANGE[kind]
    if kind == "times" and name in ("sum", "mean"):
        return  # which are ours
    assert outcome(getattr(dc, name), x) == outcome(getattr(da, name), x)
    assert outcome(getattr(dc, name), x, axis=0) == outcome(getattr(da, name), x, axis=0)


@pytest.mark.parametrize("name", ["sum", "min", "mean", "argmax", "nansum"])
def test_subclasses_of_ndarray_keep_their_meaning(name: str) -> None:
    x = quantities()
    assert getattr(dc, name)(x).dask.keys() == getattr(da, name)(x).dask.keys()


def test_values_are_numpys() -> None:
    x = dates()
    assert np.isnat(dc.min(x).compute())
    assert dc.nanmin(x).compute() == np.datetime64("2020-01-01")
    assert dc.argmin(x[:2]).compute() == 1
    assert dc.sum(STRANGE["masked objects"]).compute() == 5
    assert dc.max(STRANGE["object"]).compute() == 4
    assert dc.sum(chunked(np.full(3, 1 + 2.0**-60, "g"))).compute().dtype == np.dtype("g")
    assert dc.count_nonzero(STRANGE["strings"]).compute() == 3


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in ("sum", "mean", "nansum", "prod") for dtype in "gGO"),
        *(
            (f"{nan}{name}", dtype)
            for nan in ("", "nan")
            for name in ("var", "std")
            for dtype in ("i4", "c16", "g")
        ),
    ],
)
def test_results_of_other_dtypes_are_dasks(name: str, dtype: str) -> None:
    x = da.ones(4, chunks=2)
    mine, dasks = (outcome(getattr(module, name), x, dtype=dtype) for module in (dc, da))
    assert mine == dasks
    # Only Dask's own sums of objects fail.
    assert isinstance(mine, str) or dtype == "O"


def test_arguments_go_along_wherever_they_stand() -> None:
    x = STRANGE["object"].reshape(2, 2)
    mine = dc.sum(x, 1, keepdims=True, split_every=2)
    assert mine.name == da.sum(x, 1, keepdims=True, split_every=2).name
    assert dc.sum(a=x, axis=0).name == da.sum(x, axis=0).name
    out = da.zeros((2,), dtype="O", chunks=2)
    assert dc.sum(x, axis=0, out=out) is out
    spirals = chunked(np.ones(4, "c16"))
    assert dc.moment(spirals, 3, ddof=1).name == da.moment(spirals, 3, ddof=1).name
    assert dc.norm(chunked(np.ones(4, "g")), 3).compute() == pytest.approx(4 ** (1 / 3))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x: dc.sum(x, where=np.ones(4, bool)), "where"),
        (lambda x: dc.max(x, initial=3), "initial"),
        (lambda x: dc.nanmean(x, where=False), "where"),
        (lambda x: dc.ptp(x, keepdims=True), "keepdims"),
        (lambda x: dc.count_nonzero(x, split_every=2), "split_every"),
    ],
)
def test_arguments_that_dask_has_not_are_refused_by_name(call: Any, argument: str) -> None:
    with pytest.raises(TypeError, match=rf"Quantity.*but has no argument {argument}"):
        call(quantities())
    with pytest.raises(TypeError, match=rf"object.*but has no argument {argument}"):
        call(STRANGE["object"])


def test_arguments_at_their_defaults_are_none() -> None:
    x = STRANGE["object"]
    assert dc.sum(x, where=True, initial=None).name == da.sum(x).name
    assert dc.ptp(x, keepdims=False).name == da.ptp(x).name


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (STRANGE["masked objects"], "describe does not take dtype object"),
        (quantities(), "Quantity"),
        (STRANGE["object"], "describe does not take dtype object"),
        (da.ones(3, dtype="c16"), "describe does not take dtype complex128"),
    ],
)
def test_what_dask_has_no_function_for_is_refused(x: da.Array, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        dc.describe(x)


def test_other_mistakes_stay_our_own() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        dc.sum(da.ones(3), axes=0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        dc.sum()  # type: ignore[call-arg]
    with pytest.raises(np.exceptions.AxisError):
        dc.sum(da.ones(3), axis=2)


SCANS = ["cumsum", "cumprod", "nancumsum", "nancumprod"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "name"),
    # Durations have a running sum of our own.
    [(kind, name) for kind in STRANGE for name in SCANS if (kind, name) != ("times", "cumsum")],
)
def test_scans_of_other_kinds_of_array_are_dasks(kind: str, name: str) -> None:
    x = STRANGE[kind]
    mine, dasks = getattr(dc, name), getattr(da, name)
    assert outcome(mine, x) == outcome(dasks, x, None)
    assert outcome(mine, x, 0) == outcome(dasks, x, 0)
    assert outcome(mine, x, 0, method="blelloch") == outcome(dasks, x, 0, method="blelloch")


def points() -> da.Array:
    return quantities().reshape(2, 2)


#: The calls of a name that both libraries have, with an array that is Dask's.
CALLS = {
    "histogram": lambda m: m.histogram(quantities(), 3, (0, 4))[0],
    "histogram of objects": lambda m: m.histogram(STRANGE["object"], [0, 2, 5])[0],
    "histogram of longdouble": lambda m: m.histogram(STRANGE["longdouble"], bins=3, range=(0, 4))[
        0
    ],
    "weights": lambda m: m.histogram(da.ones(4, chunks=2), 3, (0, 4), weights=quantities())[0],
    "histogram of dates": lambda m: m.histogram(dates(), np.array(["2020", "2022"], "M8[D]"))[0],
    "histogramdd": lambda m: m.histogramdd(points(), 2, [(0, 4)] * 2)[0],
    "histogramdd of parts": lambda m: m.histogramdd((quantities(),) * 2, 2, [(0, 4)] * 2)[0],
    "histogram2d": lambda m: m.histogram2d(quantities(), quantities(), 2, [(0, 4)] * 2)[0],
    "bincount": lambda m: m.bincount(quantities().astype("i8"), minlength=6),
    "digitize": lambda m: m.digitize(quantities(), [1, 2]),
    "digitize objects": lambda m: m.digitize(STRANGE["object"], [1, 2], right=True),
    "digitize what is masked": lambda m: m.digitize(masked(), [1, 2]),
    "transpose": lambda m: m.transpose(points()),
    "matmul": lambda m: m.matmul(points(), points()),
    "matmul of what is masked": lambda m: m.matmul(*[masked().reshape(2, 2)] * 2),
    "matmul of objects": lambda m: m.matmul(STRANGE["object"], STRANGE["object"]),
    "matmul from the left": lambda m: m.matmul(da.ones((2, 2), chunks=1), points()),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_histograms_and_products_of_other_kinds_are_dasks(call: Any) -> None:
    mine, dasks = call(dc), call(da)
    # Dask gives some of its products names of chance.
    assert key_split(mine.name) == key_split(dasks.name)
    assert mine.dask.layers.keys() == dasks.dask.layers.keys() or "matmul" in mine.name
    np.testing.assert_array_equal(mine.compute(), dasks.compute())


def test_defaults_that_dask_has_not_go_along() -> None:
    counts, edges = dc.histogram(quantities(), range=(0, 5))
    assert counts.name == da.histogram(quantities(), 10, (0, 5))[0].name
    assert edges.shape == (11,)
    assert dc.histogramdd(points(), range=[(0, 4)] * 2)[0].shape == (10, 10)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x: dc.cumsum(x, reverse=True), "reverse"),
        (lambda x: dc.cumprod(x, segments=np.ones(4, bool)), "segments"),
        (lambda x: dc.nancumsum(x, include_initial=True), "include_initial"),
        (lambda x: dc.cumulative_sum(x, include_initial=True), "include_initial"),
        (lambda x: dc.cumsum(da.ones(4, chunks=2), segments=x.astype("?")), "segments"),
        (lambda x: dc.histogram(x, flow=True), "flow"),
        (lambda x: dc.transpose(x, contiguous=True), "contiguous"),
        (lambda x: dc.matmul(x, x, semiring="min_plus"), "semiring"),
    ],
)
def test_arguments_of_scans_and_histograms_are_refused_by_name(call: Any, argument: str) -> None:
    with pytest.raises(TypeError, match=rf"Quantity.*but has no argument {argument}"):
        call(quantities())


def test_masked_chunks_are_refused_where_masks_mean_nothing() -> None:
    with pytest.raises(TypeError, match=r"MaskedArray.*but has no argument contiguous"):
        dc.transpose(masked(), contiguous=True)
    with pytest.raises(TypeError, match=r"matmul.*MaskedArray.*but has no argument semiring"):
        dc.matmul(masked(), masked(), semiring="min_plus")


@pytest.mark.parametrize("name", ["cummax", "cummin", "logcumsumexp"])
def test_scans_that_dask_has_not_stay_refused(name: str) -> None:
    with pytest.raises(TypeError, match="Quantity"):
        getattr(dc, name)(quantities())


def test_integers_that_numpy_does_not_count_are_refused_at_once() -> None:
    for kind in ("object", "longdouble", "dates"):
        with pytest.raises(TypeError, match="bincount takes bool and integers"):
            dc.bincount(STRANGE[kind])


class Duck(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that is none of NumPy's: all that it knows is to hand on what it is asked."""

    __array_priority__ = 20

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        for name in ("shape", "dtype", "ndim", "size"):
            setattr(self, name, getattr(self.array, name))

    def __getitem__(self, index: Any) -> Duck:
        return Duck(self.array[index])

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return Duck(function(*_undress(args), **_undress(kwargs)))

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return Duck(getattr(ufunc, method)(*_undress(args), **_undress(kwargs)))


def _undress(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _undress(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_undress, value))
    return value.array if isinstance(value, Duck) else value


@pytest.mark.parametrize("name", ["sum", "max", "cumsum"])
def test_arrays_of_other_libraries_are_dasks(name: str) -> None:
    da.register_chunk_type(Duck)
    x = da.from_array(Duck(np.arange(6.0)), chunks=2, asarray=False)
    mine, dasks = (getattr(module, name)(x, axis=0) for module in (dc, da))
    assert mine.name == dasks.name
    result = mine.compute(scheduler="synchronous")
    assert type(result) is type(dasks.compute(scheduler="synchronous"))
    np.testing.assert_array_equal(_undress(result), getattr(np, name)(np.arange(6.0)))


@pytest.mark.parametrize("name", [*NAMES, *SCANS, "transpose"])
def test_nothing_is_computed_to_find_out(name: str) -> None:
    x = masked().map_blocks(refuse, dtype="f8", meta=np.ma.masked_array(np.empty(0)))
    with dask.config.set(scheduler=refuse):
        assert isinstance(getattr(dc, name)(x), da.Array)
