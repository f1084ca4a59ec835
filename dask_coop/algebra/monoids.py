"""The monoids: the fields of a state, how two states combine, and the dtype of results.

Every operation is a monoid over partial states.  A chunk is *lifted* to a state, states are
*combined* (associative, with an identity), and the last one is *finalized*::

    chunk --lift--> state -+
    chunk --lift--> state -+--combine--> state --finalize--> result
    chunk --lift--> state -+

A state is a tuple with one NumPy scalar or array per field; arrays have the chunk's shape without
its reduced axes.  ``combine`` uses NumPy's ufuncs, which work on CuPy arrays too, so that one
definition serves NumPy chunks, CuPy chunks and the cross-chunk step.  ``dask_coop.chunks`` lifts
chunks. The CUDA functor of a monoid is the struct of kernels/monoids.cuh that
``MonoidRow.functor`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from typing import Any, Literal

import numpy as np

from dask_coop.algebra import reproducible as digits
from dask_coop.algebra import ticks
from dask_coop.algebra.merges import (
    extremum,
    highest,
    lowest,
    merge_counts,
    merge_deviations,
    merge_extrema,
    merge_first,
    merge_last,
    merge_lengths,
    merge_moments,
    merge_places,
    merge_sums,
    merge_variances,
)

State = tuple[Any, ...]

#: Returns the dtype of results for elements of a dtype.
Output = Callable[[np.dtype[Any]], np.dtype[Any]]

#: The role of a field, which sets its dtype: a count, a truth value, an index along the reduced
#: axes, the exponent or a digit of a reproducible sum, an element, an accumulator of elements, its
#: excess over the exact sum, a float64 (or complex128), a real float64.
Role = Literal[
    "count", "truth", "index", "digit", "element", "accumulator", "excess", "float", "real"
]

#: The argument index of the extremum of no element.
NO_INDEX = np.iinfo("i8").max


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which elements of `dtype` are summed.

    Floats are summed in float64 and rounded once. Integers are summed in 64 bits and wrap as
    NumPy's. Durations keep their dtype.
    """
    if dtype.kind == "m":
        return dtype
    return np.dtype({"b": "i8", "i": "i8", "u": "u8", "f": "f8", "c": "c16"}[dtype.kind])


def floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float64, or complex128 for complex elements."""
    return np.dtype("c16" if dtype.kind == "c" else "f8")


# The dtypes of results.


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a sum or product of elements of `dtype`."""
    return accumulator(dtype) if dtype.kind in "biu" else dtype


def mean_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the mean of elements of `dtype`."""
    return np.dtype("f8") if dtype.kind in "biu" else dtype


def size_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of absolute values, or their squares, of elements of `dtype`."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else mean_dtype(dtype)


def _same(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype


def _truth(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("?")


def _integer(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("i8")


# The identities of fields.


def zero(dtype: np.dtype[Any]) -> Any:
    """Return zero as a scalar of a dtype."""
    return np.zeros((), dtype)[()]


def one(dtype: np.dtype[Any]) -> Any:
    """Return one as a scalar of a dtype."""
    return dtype.type(1)


def _lowest_exponent(dtype: np.dtype[Any]) -> Any:
    return dtype.type(digits.LOWEST)


def _no_index(dtype: np.dtype[Any]) -> Any:
    return dtype.type(NO_INDEX)


def _nan(dtype: np.dtype[Any]) -> Any:
    return dtype.type(np.nan)


@dataclass(frozen=True)
class Field:
    """A field of a state: its name, its role or dtype, its identity and its ufunc."""

    name: str
    role: Role | np.dtype[Any]
    identity: Callable[[np.dtype[Any]], Any]
    ufunc: np.ufunc

    def dtype(self, element: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of this field for elements of dtype `element`."""
        # First, because NumPy's float64 equals the string "float".
        if isinstance(self.role, np.dtype):
            return self.role
        match self.role:
            case "count" | "index" | "digit":
                return np.dtype("i8")
            case "truth":
                return np.dtype("?")
            case "element":
                return element
            case "accumulator" | "excess":
                return accumulator(element)
            case "float":
                return floating(element)
            case "real":
                return np.dtype("f8")


@dataclass(frozen=True, eq=False)
class MonoidRow:
    """A row of the table below.

    Attributes
    ----------
    name : str
        The name of the row, in lower case.
    fields : tuple of Field
        The fields of a state, in the order in which the CUDA struct declares them.
    kinds : str
        The ``dtype.kind`` letters of supported elements.
    functor : str
        The struct template of kernels/monoids.cuh that lifts and combines on the GPU.
    merge : callable, optional
        Combines two states whose fields depend on one another; without it each field combines by
        its own ufunc.
    lift : callable, optional
        Returns the state of every element of an array, for a user's monoid.
    finalize : callable, optional
        Returns the results of a scan's states, or of the last state of a reduction; without it
        results are the first field.
    cuda : tuple of str, optional
        C++ expressions of a user's monoid, for lift and combine; dask_coop.cuda.programs makes a
        struct of them.
    commutative : bool
        Whether states may be combined in any order.
    arguments : tuple of str
        The functor's template arguments after the type of the elements, in C++.
    output : callable
        Returns the default dtype of results for elements of a dtype; by default the same dtype.
    neutral : callable, optional
        Returns an element that changes no state, which replaces masked elements. Without it, a row
        of one field uses the field's identity, and other rows receive the mask itself.
    options : tuple of str
        The options of `Operation` for which it is compiled: those that public functions use.
    fills_masked : bool
        Whether masked elements are filled and take part, as in NumPy's argmin, so that every line
        has a result; otherwise they are left out.
    compensated : MonoidRow, optional
        The row of the same sum or variance that keeps rounding errors of float64.
    reproducible : tuple of MonoidRow
        The rows of the same sum with the same bits in any order, one for each kind of elements.
    costly : bool
        Whether a GPU takes much longer to combine two states than to read an element.

    Notes
    -----
    Rows are equal if they combine in the same way: fields after `arguments` do not matter.
    """

    name: str
    fields: tuple[Field, ...]
    kinds: str
    functor: str
    merge: Callable[[State, State], State] | None = None
    lift: Callable[[Any], State] | None = None
    finalize: Callable[[State], Any] | None = None
    cuda: tuple[str, str] | None = None
    commutative: bool = True
    arguments: tuple[str, ...] = ()
    output: Output = field(default=_same, compare=False, repr=False)
    neutral: Callable[[np.dtype[Any]], Any] | None = field(default=None, compare=False, repr=False)
    options: tuple[Literal["skipna", "masked"], ...] = field(default=(), compare=False, repr=False)
    fills_masked: bool = field(default=False, compare=False, repr=False)
    compensated: MonoidRow | None = field(default=None, compare=False, repr=False)
    reproducible: tuple[MonoidRow, ...] = field(default=(), compare=False, repr=False)
    costly: bool = field(default=False, compare=False, repr=False)

    # A hash of all fields would take a good part of a small chunk's time.
    def __hash__(self) -> int:
        """Return the hash of the name; equal rows have equal names."""
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        """Return whether two rows combine in the same way."""
        if self is other:
            return True
        if type(other) is not type(self) or other.name != self.name:
            return False
        return self._compared() == other._compared()

    def _compared(self) -> list[Any]:
        return [getattr(self, f.name) for f in fields(self) if f.compare]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a row of the table as its name, so that tasks stay small and `is` holds."""
        row = self.name.upper()
        return row if globals().get(row) is self else super().__reduce_ex__(protocol)

    def __dask_tokenize__(self) -> Any:
        """Return the name of a row of the table, or all compared fields of other rows."""
        row = self.name.upper()
        if globals().get(row) is self:
            return "Monoid", row
        return type(self).__name__, *self._compared()

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbours, `a` before `b`."""
        with np.errstate(all="ignore"):
            if self.merge is not None:
                return self.merge(a, b)
            return tuple(
                extremum(f.ufunc, x, y) if f.role == "element" else f.ufunc(x, y)
                for f, x, y in zip(self.fields, a, b, strict=True)
            )

    def combine_all(self, states: Sequence[State]) -> State:
        """Combine states, first to last; large ones in place, in the first result."""
        by_fields = type(self).combine is MonoidRow.combine and self.merge in (None, merge_counts)
        if len(states) < 3 or not by_fields:
            return reduce(self.combine, states)
        total = self.combine(states[0], states[1])
        for state in states[2:]:
            # Lines of one length have a count in common, a number.
            plain = (
                type(x) is type(y)
                and isinstance(x, np.ndarray | np.generic)
                and (x.shape, x.dtype) == (y.shape, y.dtype)
                for x, y in zip(total, state, strict=True)
            )
            if not all(plain):
                total = self.combine(total, state)
                continue
            with np.errstate(all="ignore"):
                total = tuple(
                    f.ufunc(x, y, out=x if type(x) is np.ndarray else None)
                    for f, x, y in zip(self.fields, total, state, strict=True)
                )
        return total

    @property
    def positional(self) -> bool:
        """Whether a state has an index along the reduced axes."""
        return self._has("index")

    @property
    def entries(self) -> int | None:
        """The most entries of a line in a state, along a last axis of its fields.

        None means that fields have no such axis.
        """
        return None

    @property
    def has_excess(self) -> bool:
        """Whether a state is a total and its excess, which `merges.settle` subtracts."""
        return self._has("excess")

    @property
    def has_digits(self) -> bool:
        """Whether a state has digits of fixed weights, of `algebra/reproducible.py`."""
        return self._has("digit")

    def _has(self, role: Role) -> bool:
        return any(isinstance(f.role, str) and f.role == role for f in self.fields)

    def identity(self, element: np.dtype[Any]) -> State:
        """Return the neutral state for elements of dtype `element`, as NumPy scalars."""
        return tuple(f.identity(f.dtype(element)) for f in self.fields)

    def dtypes(self, element: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        """Return the dtypes of the fields for elements of dtype `element`."""
        return tuple(f.dtype(element) for f in self.fields)


_TOTAL = Field("total", "accumulator", zero, np.add)
_COUNT = Field("count", "count", zero, np.add)
_LOW = Field("min", "element", highest, np.minimum)
_HIGH = Field("max", "element", lowest, np.maximum)
_MEAN = Field("mean", "float", zero, np.add)
_M2 = Field("m2", "real", zero, np.add)
_INDEX = Field("index", "index", _no_index, np.minimum)
_LOWEST, _HIGHEST = partial(merge_extrema, np.less), partial(merge_extrema, np.greater)

# Compensated and reproducible sums, which the rows of sums below refer to.
_SUMS = (_TOTAL, Field("excess", "excess", zero, np.add))
COMPENSATED_SUM = MonoidRow(
    "compensated_sum",
    _SUMS,
    "fc",
    "CompensatedSum",
    merge_sums,
    output=accumulator,
    neutral=zero,
    options=("skipna",),
)
COMPENSATED_MEAN = replace(
    COMPENSATED_SUM,
    name="compensated_mean",
    fields=(*_SUMS, _COUNT),
    functor="CompensatedMean",
    neutral=None,
    options=("skipna", "masked"),
)
_SPECIAL = Field("special", "float", zero, np.add)
_PARTS = tuple(
    (
        Field(f"{part}_exponent", "digit", _lowest_exponent, np.maximum),
        *(Field(f"{part}_digit{k}", "digit", zero, np.add) for k in range(digits.DIGITS)),
    )
    for part in ("real", "imag")
)
_REAL, _COMPLEX = (_SPECIAL, *_PARTS[0]), (_SPECIAL, *_PARTS[0], *_PARTS[1])
REPRODUCIBLE_SUM = MonoidRow(
    "reproducible_sum",
    _REAL,
    "f",
    "ReproducibleSum",
    partial(digits.merge, 1),
    neutral=zero,
    options=("skipna",),
)
REPRODUCIBLE_MEAN = replace(
    REPRODUCIBLE_SUM,
    name="reproducible_mean",
    fields=(*_REAL, _COUNT),
    functor="ReproducibleMean",
    neutral=None,
    options=("skipna", "masked"),
)
REPRODUCIBLE_COMPLEX_SUM = replace(
    REPRODUCIBLE_SUM,
    name="reproducible_complex_sum",
    fields=_COMPLEX,
    kinds="c",
    merge=partial(digits.merge, 2),
)
REPRODUCIBLE_COMPLEX_MEAN = replace(
    REPRODUCIBLE_MEAN,
    name="reproducible_complex_mean",
    fields=(*_COMPLEX, _COUNT),
    kinds="c",
    merge=partial(digits.merge, 2),
)
#: Tables of sums of `REPRODUCIBLE_SUM`, with one exponent for many entries.
REPRODUCIBLE_COUNTS = MonoidRow(
    "reproducible_counts", _REAL, "f", "ReproducibleSum", digits.merge_tables
)

SUM = MonoidRow(
    "sum",
    (_TOTAL,),
    "biufc",
    "Sum",
    output=sum_dtype,
    options=("skipna",),
    compensated=COMPENSATED_SUM,
    reproducible=(REPRODUCIBLE_SUM, REPRODUCIBLE_COMPLEX_SUM),
)
SQUARES = MonoidRow(
    "squares", (Field("total", "real", zero, np.add),), "biufc", "Squares", output=size_dtype
)
PROD = MonoidRow(
    "prod",
    (Field("product", "accumulator", one, np.multiply),),
    "biufc",
    "Prod",
    output=sum_dtype,
    options=("skipna",),
)
MIN = MonoidRow("min", (_LOW,), "biuf", "Min")
MAX = MonoidRow("max", (_HIGH,), "biuf", "Max")
MINMAX = MonoidRow("minmax", (_LOW, _HIGH), "biuf", "MinMax", options=("skipna",))
# NaN is neutral to these two, so the result is NaN where all elements are.
NANMIN = MonoidRow("nanmin", (Field("min", "element", _nan, np.fmin),), "f", "NanMin")
NANMAX = MonoidRow("nanmax", (Field("max", "element", _nan, np.fmax),), "f", "NanMax")
ARGMIN = MonoidRow(
    "argmin",
    (_LOW, _INDEX),
    "biufc",
    "ArgMin",
    _LOWEST,
    output=_integer,
    options=("skipna",),
    fills_masked=True,
)
ARGMAX = replace(ARGMIN, name="argmax", fields=(_HIGH, _INDEX), functor="ArgMax", merge=_HIGHEST)
# NumPy keeps the first of several different complex NaN; the index within the chunk tells which.
FIRST_MIN = MonoidRow("first_min", (_LOW, _INDEX), "c", "ArgMin", _LOWEST, neutral=highest)
FIRST_MAX = MonoidRow("first_max", (_HIGH, _INDEX), "c", "ArgMax", _HIGHEST, neutral=lowest)
ANY = MonoidRow("any", (Field("any", "truth", zero, np.logical_or),), "biufc", "Any", output=_truth)
ALL = MonoidRow("all", (Field("all", "truth", one, np.logical_and),), "biufc", "All", output=_truth)
COUNT_NONZERO = MonoidRow("count_nonzero", (_COUNT,), "biufc", "CountNonzero", output=_integer)
#: The number of elements.
COUNT = MonoidRow("count", (_COUNT,), "biufc", "Count", output=_integer, options=("skipna",))
# The index gives the order, so chunks of several axes combine in any order.
FIRST = MonoidRow(
    "first",
    (Field("value", "element", zero, np.minimum), _INDEX),
    "biufc",
    "First",
    merge_first,
    options=("skipna",),
)
LAST = replace(FIRST, name="last", functor="Last", merge=partial(merge_last, NO_INDEX))
MEAN = MonoidRow(
    "mean",
    (Field("total", "float", zero, np.add), _COUNT),
    "biufc",
    "Mean",
    output=mean_dtype,
    options=("skipna", "masked"),
    compensated=COMPENSATED_MEAN,
    reproducible=(REPRODUCIBLE_MEAN, REPRODUCIBLE_COMPLEX_MEAN),
)
COMPENSATED_VAR = MonoidRow(
    "compensated_var",
    (_COUNT, _MEAN, _M2, Field("short", "float", zero, np.add)),
    "biufc",
    "CompensatedVar",
    merge_deviations,
    output=size_dtype,
    options=("skipna", "masked"),
)
VAR = MonoidRow(
    "var",
    (_COUNT, _MEAN, _M2),
    "biufc",
    "Var",
    merge_variances,
    output=size_dtype,
    options=("skipna", "masked"),
    compensated=COMPENSATED_VAR,
)
MOMENTS = MonoidRow(
    "moments",
    (_COUNT, Field("nans", "count", zero, np.add), _LOW, _HIGH, _TOTAL, _MEAN, _M2),
    "biuf",
    "Moments",
    merge_moments,
)
LOGADDEXP = MonoidRow(
    "logaddexp", (Field("log", "real", lowest, np.logaddexp),), "f", "LogAddExp", costly=True
)
#: The two scans of `algebra/runs.py`.
RUN_PLACES = MonoidRow(
    "run_places",
    (Field("ending", np.dtype("u1"), zero, np.bitwise_or),),
    "b",
    "RunPlaces",
    merge_places,
    commutative=False,
)
RUN_LENGTHS = MonoidRow(
    "run_lengths",
    (
        Field("length", "count", zero, np.add),
        Field("joined", "truth", one, np.logical_and),
        Field("open", "truth", one, np.logical_and),
    ),
    "u",
    "RunLengths",
    merge_lengths,
    commutative=False,
)
COUNTS = MonoidRow(
    "counts",
    (Field("counts", "accumulator", zero, np.add),),
    "biufc",
    "Sum",
    merge_counts,
    output=sum_dtype,
    reproducible=(REPRODUCIBLE_COUNTS,),
)
#: The fields for dates and durations, which only NumPy chunks have.
_TICKS = {name: zero for name in ("count", "nats", "min", "max", "high", "low")}
_TICKS |= {"min": highest, "max": lowest}
_WORDS = tuple(Field(name, np.dtype("i8"), of, np.add) for name, of in _TICKS.items())
TICKS = MonoidRow("ticks", (*_WORDS, _M2), "", "", ticks.merge)

#: The rows that reduce chunks of numbers, on both backends.
MONOIDS = (
    SUM,
    SQUARES,
    PROD,
    MIN,
    MAX,
    MINMAX,
    NANMIN,
    NANMAX,
    ARGMIN,
    ARGMAX,
    FIRST_MIN,
    FIRST_MAX,
    ANY,
    ALL,
    COUNT_NONZERO,
    MEAN,
    VAR,
    MOMENTS,
    COMPENSATED_SUM,
    COMPENSATED_MEAN,
    COMPENSATED_VAR,
    REPRODUCIBLE_SUM,
    REPRODUCIBLE_MEAN,
    REPRODUCIBLE_COMPLEX_SUM,
    REPRODUCIBLE_COMPLEX_MEAN,
    LOGADDEXP,
)
#: The rows that only reduce groups of elements.
OF_GROUPS = (COUNT, FIRST, LAST)
