"""The monoids: what a partial state is, how two states combine, and what a result is made of.

Every operation is a monoid over partial states.  A chunk is *lifted* to a state, states are
*combined* (associative, with an identity), and the last one is *finalized*::

    chunk --lift--> state -+
    chunk --lift--> state -+--combine--> state --finalize--> result
    chunk --lift--> state -+

A state is a tuple with one NumPy scalar or array per field; arrays have the chunk's shape without
its reduced axes.  ``combine`` is written with NumPy's ufuncs, which CuPy arrays answer too, so that
one definition serves the NumPy chunks, the CUDA chunks and the cross-chunk step.  How a chunk is
lifted is the business of ``dask_coop.chunks``; the CUDA functor of a monoid is the struct of
kernels/monoids.cuh that ``Monoid.functor`` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any, Literal

import numpy as np

from dask_coop.algebra import merges, ticks
from dask_coop.algebra import reproducible as digits
from dask_coop.algebra.merges import (
    choose,
    highest,
    lowest,
    merge_counts,
    merge_moments,
    merge_places,
    merge_variances,
)
from dask_coop.errors import Refused, remedy

State = tuple[Any, ...]

#: The start of a chunk and the length of the array, along each reduced axis.
Origin = tuple[tuple[int, int], ...]

#: Where a field's dtype comes from: a count, a truth, a place along the reduced axes, the exponent
#: or a digit of a sum, the elements, their accumulator, a float64 (or complex128), a real float64.
Role = Literal["count", "truth", "place", "digit", "element", "accumulator", "float", "real"]


#: The place of the extremum of no element.
NOWHERE = np.iinfo("i8").max


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which elements of `dtype` are summed.

    Floats accumulate in float64 and round once, integers in 64 bits, where they wrap as NumPy's,
    and durations as they are.
    """
    if dtype.kind == "m":
        return dtype
    return np.dtype({"b": "i8", "i": "i8", "u": "u8", "f": "f8", "c": "c16"}[dtype.kind])


def _floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("c16" if dtype.kind == "c" else "f8")


def _zero(dtype: np.dtype[Any]) -> Any:
    return np.zeros((), dtype)[()]


def _one(dtype: np.dtype[Any]) -> Any:
    return dtype.type(1)


def _lowest_exponent(dtype: np.dtype[Any]) -> Any:
    return dtype.type(digits.LOWEST)


def _nowhere(dtype: np.dtype[Any]) -> Any:
    return dtype.type(NOWHERE)


def _nan(dtype: np.dtype[Any]) -> Any:
    return dtype.type(np.nan)


@dataclass(frozen=True)
class Field:
    """One field of a state: its name, its dtype or the origin of it, its identity and its ufunc."""

    name: str
    role: Role | np.dtype[Any]
    identity: Callable[[np.dtype[Any]], Any]
    ufunc: np.ufunc

    def dtype(self, element: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of this field over elements of dtype `element`."""
        # Asked first: NumPy finds that its float64 equals "float".
        if isinstance(self.role, np.dtype):
            return self.role
        match self.role:
            case "count" | "place" | "digit":
                return np.dtype("i8")
            case "truth":
                return np.dtype("?")
            case "element":
                return element
            case "accumulator":
                return accumulator(element)
            case "float":
                return _floating(element)
            case "real":
                return np.dtype("f8")


@dataclass(frozen=True)
class Monoid:
    """A row of the table below.

    Attributes
    ----------
    name : str
        The name of the row, in lower case.
    fields : tuple of Field
        The fields of a state, in the order in which the CUDA struct declares them.
    kinds : str
        The ``dtype.kind`` letters of the elements it takes.
    functor : str
        The struct template of kernels/monoids.cuh that lifts and combines on the GPU.
    merge : callable, optional
        Combines two states whose fields depend on one another; without it each field combines by
        its own ufunc.
    lift : callable, optional
        Makes a state of every element of an array, where a user's monoid says how.
    finalize : callable, optional
        Makes the results of a scan of states, or of the last state of a reduction; without it they
        are the first field.
    cuda : tuple of str, optional
        The C++ of a user's monoid: what lift and combine return, made a struct by
        dask_coop.cuda.programs.
    commutative : bool
        Whether states may be combined in any order.
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

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a row of the table as a reference to it: tasks stay small and `is` holds."""
        row = self.name.upper()
        return row if globals().get(row) is self else super().__reduce_ex__(protocol)

    def __dask_tokenize__(self) -> Any:
        """Name a row of the table, for Dask's keys; of others tell all."""
        row = self.name.upper()
        if globals().get(row) is self:
            return "Monoid", row
        return type(self).__name__, *(getattr(self, field.name) for field in fields(self))

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbouring pieces, `a` before `b`."""
        with np.errstate(all="ignore"):
            if self.merge is not None:
                return self.merge(a, b)
            return tuple(f.ufunc(x, y) for f, x, y in zip(self.fields, a, b, strict=True))

    @property
    def positional(self) -> bool:
        """Whether a state tells where along the reduced axes something is."""
        return any(isinstance(f.role, str) and f.role == "place" for f in self.fields)

    def identity(self, element: np.dtype[Any]) -> State:
        """Return the neutral state over elements of dtype `element`, as NumPy scalars."""
        return tuple(f.identity(f.dtype(element)) for f in self.fields)

    def dtypes(self, element: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        """Return the dtypes of the fields over elements of dtype `element`."""
        return tuple(f.dtype(element) for f in self.fields)


_TOTAL = Field("total", "accumulator", _zero, np.add)
_COUNT = Field("count", "count", _zero, np.add)
_LOW = Field("min", "element", highest, np.minimum)
_HIGH = Field("max", "element", lowest, np.maximum)

_MEAN = Field("mean", "float", _zero, np.add)
_M2 = Field("m2", "real", _zero, np.add)
_PLACE = Field("place", "place", _nowhere, np.minimum)

SUM = Monoid("sum", (_TOTAL,), "biufc", "Sum")
SQUARES = Monoid("squares", (Field("total", "real", _zero, np.add),), "biufc", "Squares")
PROD = Monoid("prod", (Field("product", "accumulator", _one, np.multiply),), "biufc", "Prod")
MIN = Monoid("min", (_LOW,), "biuf", "Min")
MAX = Monoid("max", (_HIGH,), "biuf", "Max")
MINMAX = Monoid("minmax", (_LOW, _HIGH), "biuf", "MinMax")
# NaN is neutral to these two, so it is what is left where there is nothing else.
NANMIN = Monoid("nanmin", (Field("min", "element", _nan, np.fmin),), "f", "NanMin")
NANMAX = Monoid("nanmax", (Field("max", "element", _nan, np.fmax),), "f", "NanMax")
ARGMIN = Monoid("argmin", (_LOW, _PLACE), "biufc", "ArgMin", partial(merge_places, np.less))
ARGMAX = Monoid("argmax", (_HIGH, _PLACE), "biufc", "ArgMax", partial(merge_places, np.greater))
# NumPy keeps the first NaN of several, which differ: a place, if only the chunk's, tells the order.
FIRST_MIN = Monoid("first_min", (_LOW, _PLACE), "c", "ArgMin", partial(merge_places, np.less))
FIRST_MAX = Monoid("first_max", (_HIGH, _PLACE), "c", "ArgMax", partial(merge_places, np.greater))
ANY = Monoid("any", (Field("any", "truth", _zero, np.logical_or),), "biufc", "Any")
ALL = Monoid("all", (Field("all", "truth", _one, np.logical_and),), "biufc", "All")
COUNT_NONZERO = Monoid("count_nonzero", (_COUNT,), "biufc", "CountNonzero")
MEAN = Monoid("mean", (Field("total", "float", _zero, np.add), _COUNT), "biufc", "Mean")
VAR = Monoid("var", (_COUNT, _MEAN, _M2), "biufc", "Var", merge_variances)
MOMENTS = Monoid(
    "moments",
    (_COUNT, Field("nans", "count", _zero, np.add), _LOW, _HIGH, _TOTAL, _MEAN, _M2),
    "biuf",
    "Moments",
    merge_moments,
)
# What the total, which was rounded at every addition, is above the exact one.
_SUMS = (_TOTAL, Field("excess", "accumulator", _zero, np.add))
COMPENSATED_SUM = Monoid("compensated_sum", _SUMS, "fc", "CompensatedSum", merges.merge_sums)
COMPENSATED_MEAN = replace(
    COMPENSATED_SUM, name="compensated_mean", fields=(*_SUMS, _COUNT), functor="CompensatedMean"
)
_SPECIAL = Field("special", "float", _zero, np.add)
_PARTS = tuple(
    (
        Field(f"{part}_exponent", "digit", _lowest_exponent, np.maximum),
        *(Field(f"{part}_digit{k}", "digit", _zero, np.add) for k in range(digits.DIGITS)),
    )
    for part in ("real", "imag")
)
_REAL, _COMPLEX = (_SPECIAL, *_PARTS[0]), (_SPECIAL, *_PARTS[0], *_PARTS[1])
_MERGE_REAL, _MERGE_COMPLEX = partial(digits.merge, 1), partial(digits.merge, 2)

BINNED_SUM = Monoid("binned_sum", _REAL, "f", "BinnedSum", _MERGE_REAL)
BINNED_MEAN = Monoid("binned_mean", (*_REAL, _COUNT), "f", "BinnedMean", _MERGE_REAL)
BINNED_COMPLEX_SUM = Monoid("binned_complex_sum", _COMPLEX, "c", "BinnedSum", _MERGE_COMPLEX)
BINNED_COMPLEX_MEAN = Monoid(
    "binned_complex_mean", (*_COMPLEX, _COUNT), "c", "BinnedMean", _MERGE_COMPLEX
)
LOGADDEXP = Monoid("logaddexp", (Field("log", "real", lowest, np.logaddexp),), "f", "LogAddExp")
COUNTS = Monoid(
    "counts", (Field("counts", "accumulator", _zero, np.add),), "biufc", "Sum", merge_counts
)
#: Tables of sums: those of `BINNED_SUM`, over an exponent that is one for many entries.
BINNED_COUNTS = Monoid("binned_counts", _REAL, "f", "BinnedSum", digits.merge_tables)
#: What is known of dates and durations, which only NumPy has.
_TICKS = {name: _zero for name in ("count", "nats", "min", "max", "high", "low")}
_TICKS |= {"min": highest, "max": lowest}
_WORDS = tuple(Field(name, "digit", of, np.add) for name, of in _TICKS.items())
TICKS = Monoid("ticks", (*_WORDS, _M2), "", "", ticks.merge)

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
    BINNED_SUM,
    BINNED_MEAN,
    BINNED_COMPLEX_SUM,
    BINNED_COMPLEX_MEAN,
    LOGADDEXP,
    COUNTS,
)


@dataclass(frozen=True)
class Operation:
    """A monoid bound to dtypes: the frozen spec that every task of one call carries.

    Attributes
    ----------
    monoid : Monoid
    element : numpy.dtype
        What a chunk's elements are converted to before they are lifted.
    output : numpy.dtype
        The dtype of the result.
    skipna : bool
        Whether elements that are NaN are left out.
    masked : bool
        Whether elements lie beside what tells whether they count.
    """

    monoid: Monoid
    element: np.dtype[Any]
    output: np.dtype[Any]
    skipna: bool = False
    masked: bool = False

    @property
    def neutral(self) -> Any:
        """An element that changes no state, or None where there may be none."""
        if self.skipna:
            return self.element.type(np.nan)
        if self.monoid in (COMPENSATED_SUM, BINNED_SUM, BINNED_COMPLEX_SUM):
            return self.element.type(0)
        fields = self.monoid.fields
        has_one = len(fields) == 1 or self.monoid in (FIRST_MIN, FIRST_MAX)
        return fields[0].identity(self.element) if has_one else None

    def combine(self, states: list[State]) -> State:
        """Combine `states`, first to last."""
        return reduce(self.monoid.combine, states)

    def shift(self, state: State, lengths: tuple[int, ...], origin: Origin) -> State:
        """Turn places within a chunk of `lengths` along the reduced axes into those in the array.

        `origin` has, for each of these axes, where the chunk begins and how long the array is.
        """
        value, place, *count = state
        if 0 in lengths:
            return state
        # Where all elements are left out there is no place to move, and it may overflow.
        with np.errstate(over="ignore"):
            shifted = self._shift(place, lengths, origin)
        if self.skipna or self.monoid not in (ARGMIN, ARGMAX):
            shifted = choose(place == NOWHERE, place, shifted)
        return value, shifted, *count

    def _shift(self, place: Any, lengths: tuple[int, ...], origin: Origin) -> Any:
        if len(origin) == 1:
            return place + origin[0][0]
        shifted, stride = 0, 1
        for length, (start, size) in zip(lengths[::-1], origin[::-1], strict=True):
            place, coordinate = np.divmod(place, length)
            shifted = shifted + (coordinate + start) * stride
            stride *= size
        return place + shifted


def bind(
    monoid: Monoid,
    element: np.dtype[Any],
    output: np.dtype[Any],
    caller: str,
    skipna: bool = False,
    times: str = "",
) -> Operation:
    """Bind `monoid` to elements of dtype `element` and results of dtype `output`.

    Where `output` is another kind of number than the state, elements are converted to it first, as
    NumPy does for ``dtype=``; a mere change of width happens at the end, where it costs no
    precision. With `skipna`, elements that are NaN are left out. `times` are the kinds of dates and
    durations, "m" or "mM", that the caller takes besides.

    Raises
    ------
    Refused
        If the monoid does not take such elements; the message speaks of the function `caller`.
    """
    element, output = element.newbyteorder("="), output.newbyteorder("=")
    for dtype in (element, output):
        takes = monoid.kinds + times
        if dtype.kind not in takes or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            kinds = ", ".join(_KINDS[kind] for kind in takes)
            how = f"; {remedy(dtype, takes)}" if dtype is element else ""
            raise Refused(f"{caller} does not take dtype {dtype}; it takes {kinds}{how}")
    if monoid.dtypes(element)[0].kind != output.kind:
        element = output
    return Operation(monoid, element, output, skipna and element.kind in "fc")


def reproducible(op: Operation) -> Operation:
    """Return the operation that sums or averages as `op` does, with digits of fixed weights.

    What sums integers stays as it is: these add to the same bits in any order.
    """
    if op.output.kind not in "fc":
        return op
    real, of_complex = _REPRODUCIBLE[op.monoid]
    element = op.element if op.element.kind in "fc" else _floating(op.element)
    return replace(op, monoid=of_complex if op.output.kind == "c" else real, element=element)


_REPRODUCIBLE = {
    SUM: (BINNED_SUM, BINNED_COMPLEX_SUM),
    MEAN: (BINNED_MEAN, BINNED_COMPLEX_MEAN),
}

_KINDS = {
    "b": "bool",
    "i": "signed integers",
    "u": "unsigned integers",
    "f": "float16 to float64",
    "c": "complex64 and complex128",
    "m": "timedelta64",
    "M": "datetime64",
}
