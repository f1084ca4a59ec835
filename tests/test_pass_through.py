"""What no engine takes goes to Dask's function of the same name, with the same arguments."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_coop as dc

PLAIN = ["sum", "prod", "min", "max", "mean", "var", "std", "any", "all", "argmin", "argmax"]
NAN = ["sum", "prod", "min", "max", "mean", "var", "std", "argmin", "argmax"]
NAMES = [*PLAIN, "ptp", "count_nonzero", *(f"nan{name}" for name in NAN)]
ORDERED = ["min", "max", "ptp", "argmin", "argmax", "nanmin", "nanmax", "nanargmin", "nanargmax"]


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
    "masked": masked(),
    "object": chunked(np.array([3, 1, 4, 1], "O")),
    "longdouble": chunked(np.array([3, 1, np.nan, 1], "g")),
    "dates": dates(),
    "times": chunked(np.array([3, 1, "NaT", 1], "m8[s]")),
    "strings": chunked(np.array(["b", "a", "c", ""])),
    "clongdouble": chunked(np.array([3, 1, 2, 1], "G")),
}


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the name of the lazy result, or the type of the exception."""
    try:
        return function(*args, **kwargs).name
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", STRANGE)
def test_other_kinds_of_array_get_dasks_own_graph(kind: str, name: str) -> None:
    x = STRANGE[kind]
    assert outcome(getattr(dc, name), x) == outcome(getattr(da, name), x)
    assert outcome(getattr(dc, name), x, axis=0) == outcome(getattr(da, name), x, axis=0)


@pytest.mark.parametrize("name", ["sum", "min", "mean", "argmax", "nansum"])
def test_subclasses_of_ndarray_keep_their_meaning(name: str) -> None:
    x = quantities()
    assert getattr(dc, name)(x).dask.keys() == getattr(da, name)(x).dask.keys()


@pytest.mark.parametrize("name", ORDERED)
def test_complex_numbers_are_ordered_as_dask_orders_them(name: str) -> None:
    array = np.array([1 + 2j, 1 - 2j, 0, 3])
    x = chunked(array)
    assert getattr(dc, name)(x).name == getattr(da, name)(x).name
    assert getattr(dc, name)(x).compute() == getattr(np, name)(array)


def test_values_are_numpys() -> None:
    x = dates()
    assert np.isnat(dc.min(x).compute())
    assert dc.nanmin(x).compute() == np.datetime64("2020-01-01")
    assert dc.argmin(x[:2]).compute() == 1
    assert dc.sum(masked()).compute() == 5
    assert type(dc.sum(masked(), keepdims=True).compute()) is np.ma.MaskedArray
    assert dc.max(STRANGE["object"]).compute() == 4
    assert dc.sum(chunked(np.full(3, 1 + 2.0**-60, "g"))).compute().dtype == np.dtype("g")
    assert dc.count_nonzero(STRANGE["strings"]).compute() == 3


@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "prod"])
@pytest.mark.parametrize("dtype", ["g", "G", "O"])
def test_results_of_other_dtypes_are_dasks(name: str, dtype: str) -> None:
    x = da.ones(4, chunks=2)
    assert outcome(getattr(dc, name), x, dtype=dtype) == outcome(getattr(da, name), x, dtype=dtype)


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
@pytest.mark.parametrize("dtype", ["i4", "c16", "g"])
def test_spreads_of_other_dtypes_are_dasks(name: str, dtype: str) -> None:
    x = da.ones(4, chunks=2)
    assert getattr(dc, name)(x, dtype=dtype).name == getattr(da, name)(x, dtype=dtype).name


def test_arguments_go_along_wherever_they_stand() -> None:
    x = masked().reshape(2, 2)
    mine = dc.sum(x, 1, keepdims=True, split_every=2)
    assert mine.name == da.sum(x, 1, keepdims=True, split_every=2).name
    assert dc.sum(a=x, axis=0).name == da.sum(x, axis=0).name
    out = da.zeros((2,), dtype="i8")
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
    with pytest.raises(TypeError, match=rf"MaskedArray.*Dask's, which has no argument {argument}"):
        call(masked())
    with pytest.raises(TypeError, match=rf"object.*Dask's, which has no argument {argument}"):
        call(STRANGE["object"])


def test_arguments_at_their_defaults_are_none() -> None:
    x = masked()
    assert dc.sum(x, where=True, initial=None).name == da.sum(x).name
    assert dc.ptp(x, keepdims=False).name == da.ptp(x).name


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (masked(), "MaskedArray"),
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
    with pytest.raises(TypeError, match="missing a required argument"):
        dc.sum()  # type: ignore[call-arg]
    with pytest.raises(np.exceptions.AxisError):
        dc.sum(da.ones(3), axis=2)


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("computed while building")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_computed_to_find_out(name: str) -> None:
    x = masked().map_blocks(refuse, dtype="f8", meta=np.ma.masked_array(np.empty(0)))
    with dask.config.set(scheduler=refuse):
        assert isinstance(getattr(dc, name)(x), da.Array)
