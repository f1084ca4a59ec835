"""What errors say: what was wrong, with which value, and what to do; and what a fallback does."""

from __future__ import annotations

import inspect
import logging
import pickle
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.processes import printed

import dask_coop as dc
from dask_coop import errors

FUNCTIONS = [f for name in dc.__all__ if inspect.isfunction(f := getattr(dc, name))]
ABOUT_THE_LIBRARY = {
    f"dask_coop.api.{name}" for name in ("explain", "install.install", "call.report")
}
#: Their other keywords are those of Zarr's functions, which refuse what they do not know.
TAKING_ZARRS = (dc.from_zarr, dc.to_zarr)
TAKING_ARRAYS = [
    f for f in FUNCTIONS if f.__module__ not in ABOUT_THE_LIBRARY and f not in TAKING_ZARRS
]
#: Those whose first argument is no array: a reduction, and states.
TAKING_OTHERS = (dc.coarsen, dc.combine)
TAKING_ARRAYS = [f for f in TAKING_ARRAYS if f not in TAKING_OTHERS]
SCANS = ["cumsum", "cumprod", "nancumsum", "nancumprod", "cummax", "cummin", "logcumsumexp"]


class Quantity(np.ndarray):
    """An array with a meaning that plain arrays would lose."""


def chunked(array: Any) -> da.Array:
    return da.from_array(np.asarray(array), chunks=2)


def quantities() -> da.Array:
    meta = np.empty(0).view(Quantity)
    return chunked(np.ones(4)).map_blocks(lambda b: b.view(Quantity), dtype="f8", meta=meta)


OBJECTS = chunked(np.array([3, 1, 4, 1], "O"))
TEXTS = chunked(np.array(["b", "a", "c", ""]))
RECORDS = chunked(np.zeros(4, [("low", "f4"), ("high", "f4")]))
DATES = chunked(np.array(["2020-02-03", "2020-01-01", "NaT", "2021-01-01"], "M8[D]"))


# The classes.


def test_every_exception_is_defined_in_one_module() -> None:
    package = Path(errors.__file__).parent
    found = [
        path.name
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith("class ") and any(f"{end})" in line for end in ("Error", "Exception"))
    ]
    assert set(found) == {"errors.py"}
    classes = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ in found[0]
    ]
    assert all(c.__doc__ for c in classes)


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("Refused", (TypeError,)),
        ("RefusedByDask", (dc.Refused, ValueError, NotImplementedError)),
        ("Declined", (RuntimeError,)),
        ("CooperativeTimeout", (RuntimeError,)),
        ("FallbackWarning", (UserWarning,)),
    ],
)
def test_what_may_be_caught_is_public_and_survives_a_pickle(name: str, bases: Any) -> None:
    kind = getattr(dc, name)
    assert name in dc.__all__
    assert kind is getattr(errors, name)
    assert all(issubclass(kind, base) for base in bases)
    again = pickle.loads(pickle.dumps(kind("why")))
    assert type(again) is kind
    assert str(again) == "why"


# Keywords.


@pytest.mark.parametrize("function", TAKING_ARRAYS, ids=lambda f: f.__name__)
def test_an_unknown_keyword_is_told_with_the_name_of_the_function(function: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got .* 'colour'; ") as caught:
        function(da.ones(4, chunks=2), colour="red")
    # What it has instead.
    assert all(name in str(caught.value) for name in inspect.signature(function).parameters)


@pytest.mark.parametrize("function", TAKING_ARRAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("wrong", ["dim", "dims", "axes", "axis"])
def test_other_words_for_axes_are_told_the_one_that_is_taken(function: Any, wrong: str) -> None:
    parameters = inspect.signature(function).parameters
    if wrong in parameters:
        return
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got .* '{wrong}'; ") as caught:
        function(da.ones(4, chunks=2), **{wrong: 0})
    for right in parameters.keys() & {"axis", "axes"}:
        said = f"{function.__name__} takes {right}=, not {wrong}="
        assert str(caught.value).endswith(said)


def test_a_keyword_that_is_misspelt_is_told_its_spelling() -> None:
    x: Any = da.ones(4, chunks=2)
    for call, said in [
        (lambda: dc.sum(x, keepdim=True), "sum takes keepdims=, not keepdim="),
        (lambda: dc.histogram(x, bin=3), "histogram takes bins=, not bin="),
        (lambda: dc.cumsum(x, exlusive=True), "cumsum takes exclusive=, not exlusive="),
        (lambda: dc.bincount(x, weight=x), "bincount takes weights=, not weight="),
    ]:
        with pytest.raises(TypeError, match=said):
            call()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_signatures_stay_those_of_the_functions(function: Any) -> None:
    names = [p for p in inspect.signature(function).parameters.values() if p.kind == p.VAR_KEYWORD]
    assert [name.name for name in names] == ["kwargs"] * (function in (*TAKING_ZARRS, dc.coarsen))
    assert function.__wrapped__ if function in TAKING_ARRAYS else True


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("axis", [(0, 1), [0], "time", 0.5])
def test_scans_say_that_they_take_one_axis(name: str, axis: Any) -> None:
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(TypeError, match=f"^{name} takes one axis, an integer, or None") as caught:
        getattr(dc, name)(x, axis=axis)
    assert str(caught.value).endswith(f"got {axis!r}")
    assert getattr(dc, name)(x, axis=np.int64(1)).shape == (4, 4)


def test_the_scan_of_any_monoid_says_it_too() -> None:
    monoid = dc.Monoid("total", np.add, 0.0, "f8")
    with pytest.raises(TypeError, match=r"takes one axis, an integer, .* got \(0, 1\)"):
        dc.scan(da.ones((4, 4)), monoid, axis=(0, 1))
    with pytest.raises(TypeError, match=r"takes one axis, an integer, .* got \(0, 1\)"):
        dc.cumulative_sum(da.ones((4, 4)), axis=(0, 1))


# What is left to Dask's function.

#: Calls that Dask's function refuses as well: what we say first, and what Dask says last.
CALLS = {
    "objects without a range": (
        lambda: dc.histogram(OBJECTS, 3),
        "histogram does not take samples of dtype object; it takes bool, integers and float16 to "
        r"float64; its elements are Python objects; .astype\('f8'\) makes numbers of them",
        "requires either specifying bins",
        ValueError,
    ),
    "texts": (
        lambda: dc.sum(TEXTS),
        "sum does not take dtype <U1; it takes bool, .*; unique and value_counts take strings",
        "add",
        TypeError,
    ),
    "records": (
        lambda: dc.histogram(RECORDS, 3),
        r"histogram does not take samples of dtype \[\('low'.*; take one of its fields: x\['low'\]",
        "requires either specifying bins",
        ValueError,
    ),
    "dates without a range": (
        lambda: dc.histogram(DATES, 3),
        r"histogram does not take samples of dtype datetime64\[D\]; .*; .view\('i8'\) has its",
        "requires either specifying bins",
        ValueError,
    ),
    "the sum of dates": (
        lambda: dc.sum(DATES),
        r"sum does not take dtype datetime64\[D\]; it takes",
        "add",
        TypeError,
    ),
    "another type of chunk": (
        lambda: dc.histogram(quantities(), 3),
        r"a has chunks of type .*Quantity; dask_coop takes NumPy and CuPy arrays; convert them",
        "requires either specifying bins",
        ValueError,
    ),
    "weights of another type of chunk": (
        lambda: dc.histogram(da.ones(4, chunks=2), 3, weights=quantities()),
        r"weights has chunks of type .*Quantity; dask_coop takes NumPy and CuPy arrays",
        "requires either specifying bins",
        ValueError,
    ),
    "weights of objects": (
        lambda: dc.histogram(da.ones(4, chunks=2), 3, weights=OBJECTS),
        "histogram with weights does not take dtype object; it takes",
        "requires either specifying bins",
        ValueError,
    ),
    "a product of records": (
        lambda: dc.matmul(RECORDS, RECORDS),
        "plus_times is not defined for dtype .*, the common dtype of a and b; take one of its",
        "'add'",
        TypeError,
    ),
}


@pytest.mark.parametrize(("call", "first", "last", "kind"), CALLS.values(), ids=CALLS)
def test_the_cause_comes_first_and_dasks_words_last(
    call: Any, first: str, last: str, kind: type[Exception]
) -> None:
    with pytest.raises(dc.Refused, match=rf"^{first}") as caught:
        call()
    error = caught.value
    assert type(error) is dc.RefusedByDask
    assert isinstance(error, kind)
    assert isinstance(error.__cause__, kind)
    assert last in str(error)
    assert str(error).endswith(str(error.__cause__))


def test_an_axis_that_is_not_there_is_dasks_to_tell() -> None:
    with pytest.raises(np.exceptions.AxisError):
        dc.min(DATES, axis=3)


def test_what_dask_cannot_be_asked_is_refused_with_the_cause_first() -> None:
    with pytest.raises(dc.Refused, match=r"^sum does not take dtype object; .* no argument where"):
        dc.sum(OBJECTS, where=np.ones(4, bool))
    with pytest.raises(
        dc.Refused, match=r"^describe does not take dtype object; .*astype\('f8'\) makes numbers"
    ):
        dc.describe(OBJECTS)
    with pytest.raises(dc.Refused, match=r"^sum does not take dtype object; it takes [^;]*;"):
        dc.sum(da.ones(4), dtype=object, where=np.ones(4, bool))


def test_remedies_work() -> None:
    dc.histogram(OBJECTS.astype("f8"), 3)
    dc.histogram(RECORDS["low"], 3)
    dc.histogram(DATES.view("i8"), 3)
    assert dc.sum(quantities().map_blocks(np.asarray)).compute() == 4
    assert dc.sum(chunked(["1", "2"]).astype("f8")).compute() == 3
    with pytest.raises(dc.Refused, match=r"astype\('c16'\)"):
        dc.sum(chunked(np.ones(4, "G")), where=np.ones(4, bool))
    with pytest.raises(dc.Refused, match=r"take \.real"):
        dc.histogram(chunked(np.ones(4, "c16")), [0, 1], flow=True)


def test_durations_say_which_argument_is_in_the_way() -> None:
    x = chunked(np.ones(4, "m8[s]"))
    with pytest.raises(dc.Refused, match=r"^sum does not take dtype timedelta64.* initial = 3"):
        dc.sum(x, initial=3)
    with pytest.raises(dc.Refused, match=r"^mean does not take dtype timedelta64.* dtype = 'f8'"):
        dc.mean(x, dtype="f8", where=np.ones(4, bool))


# coop.fallback.


def hand_over() -> Any:
    return dc.max(OBJECTS)


def fall_back_to_a_graph() -> Any:
    return dc.sum(da.arange(4, chunks=2), engine="collective")


FALLBACKS = {
    "hand-over": (hand_over, "max", "max does not take dtype object", dc.Refused, 4),
    "collective": (fall_back_to_a_graph, "sum", "not in memory on a cluster", dc.Declined, 6),
}


@pytest.mark.parametrize(
    ("call", "name", "cause", "kind", "value"), FALLBACKS.values(), ids=FALLBACKS
)
class TestFallback:
    def test_by_default_it_is_logged(
        self,
        call: Any,
        name: str,
        cause: str,
        kind: Any,
        value: int,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        for choice in ({}, {"coop.fallback": "allow"}):
            caplog.clear()
            with caplog.at_level(logging.INFO, logger="dask_coop"), dask.config.set(choice):
                (result,) = dask.compute(call())
            assert result == value
            (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("dask_coop")]
            assert said.startswith(f"{name} ")
            assert cause in said

    def test_a_warning_points_at_the_line_of_the_caller(
        self, call: Any, name: str, cause: str, kind: Any, value: int
    ) -> None:
        with (
            dask.config.set({"coop.fallback": "warn"}),
            warnings.catch_warnings(record=True) as told,
        ):
            warnings.simplefilter("always")
            (result,) = dask.compute(call())
        assert result == value
        (warning,) = [w for w in told if issubclass(w.category, dc.FallbackWarning)]
        assert warning.filename == __file__
        assert warning.lineno == call.__code__.co_firstlineno + 1
        assert str(warning.message).startswith(f"{name} ")
        assert cause in str(warning.message)

    def test_it_is_refused_with_the_cause(
        self, call: Any, name: str, cause: str, kind: Any, value: int
    ) -> None:
        with (
            dask.config.set({"coop.fallback": "raise"}),
            pytest.raises(kind, match=rf"{cause}.*coop.fallback='allow' {name} "),
        ):
            call()

    def test_other_choices_are_refused(
        self, call: Any, name: str, cause: str, kind: Any, value: int
    ) -> None:
        with (
            dask.config.set({"coop.fallback": "error"}),
            pytest.raises(
                ValueError, match=r"^coop.fallback must be 'allow', 'warn' or 'raise', got 'e"
            ),
        ):
            call()


@pytest.mark.parametrize("choice", ["warn", "raise"])
def test_what_is_ours_is_none_of_it(choice: str) -> None:
    x = da.arange(6.0, chunks=2)
    with dask.config.set({"coop.fallback": choice}):
        assert dc.sum(x).compute() == 15
        dc.histogram(x, 3)
        dc.transpose(x)
        dc.cumsum(x, dtype="f4")


def test_with_query_planning_the_same_is_said() -> None:
    program = """
import dask, dask.array as da, numpy as np, dask_coop as dc, warnings
assert da.array_expr_enabled()
x = da.from_array(np.array([3, 1, 4, 1], "O"), chunks=2)
with dask.config.set({"coop.fallback": "raise"}):
    try:
        dc.max(x)
    except dc.Refused as error:
        assert str(error).startswith("max does not take dtype object"), error
    else:
        raise SystemExit("max")
with dask.config.set({"coop.fallback": "warn"}), warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert dc.max(x).compute() == 4
assert [w.lineno for w in told if w.category is dc.FallbackWarning] == [14], told
for call, words in [
    (lambda: dc.histogram(x, 3), "histogram does not take samples of dtype object"),
    (lambda: dc.sum(x.astype("M8[D]")), "sum does not take dtype datetime64"),
]:
    try:
        call()
    except dc.Refused as error:
        assert type(error) is dc.RefusedByDask
        assert str(error).startswith(words), error
    else:
        raise SystemExit(words)
try:
    dc.cumsum(x.astype("f8"), dim=0)
except TypeError as error:
    assert str(error).endswith("cumsum takes axis=, not dim="), error
else:
    raise SystemExit("dim")
"""
    printed("-W", "ignore", "-c", program, DASK_ARRAY__QUERY_PLANNING="true")
