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
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np

State = tuple[Any, ...]

#: Where a field's dtype comes from: a count, the elements, their accumulator, or a float64 (or
#: complex128).
Role = Literal["count", "element", "accumulator", "float"]


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which elements of `dtype` are summed.

    Floats accumulate in float64 and round once, integers in 64 bits, where they wrap as NumPy's.
    """
    return np.dtype({"b": "i8", "i": "i8", "u": "u8", "f": "f8", "c": "c16"}[dtype.kind])


def _floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype("c16" if dtype.kind == "c" else "f8")


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return np.True_
    return dtype.type(np.inf if dtype.kind == "f" else np.iinfo(dtype).max)


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return np.False_
    return dtype.type(-np.inf if dtype.kind == "f" else np.iinfo(dtype).min)


def _zero(dtype: np.dtype[Any]) -> Any:
    return dtype.type(0)


@dataclass(frozen=True)
class Field:
    """One field of a state: its name, the origin of its dtype, its identity and its ufunc."""

    name: str
    role: Role
    identity: Callable[[np.dtype[Any]], Any]
    ufunc: np.ufunc

    def dtype(self, element: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of this field over elements of dtype `element`."""
        match self.role:
            case "count":
                return np.dtype("i8")
            case "element":
                return element
            case "accumulator":
                return accumulator(element)
            case "float":
                return _floating(element)


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
    """

    name: str
    fields: tuple[Field, ...]
    kinds: str
    functor: str
    merge: Callable[[State, State], State] | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a row of the table as a reference to it: tasks stay small and `is` holds."""
        row = self.name.upper()
        return row if globals().get(row) is self else super().__reduce_ex__(protocol)

    def combine(self, a: State, b: State) -> State:
        """Combine the states of two neighbouring pieces, `a` before `b`."""
        with np.errstate(all="ignore"):
            if self.merge is not None:
                return self.merge(a, b)
            return tuple(f.ufunc(x, y) for f, x, y in zip(self.fields, a, b, strict=True))

    def identity(self, element: np.dtype[Any]) -> State:
        """Return the neutral state over elements of dtype `element`, as NumPy scalars."""
        return tuple(f.identity(f.dtype(element)) for f in self.fields)

    def dtypes(self, element: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        """Return the dtypes of the fields over elements of dtype `element`."""
        return tuple(f.dtype(element) for f in self.fields)


def _merge_moments(a: State, b: State) -> State:
    """Combine moments by the parallel update of Chan, Golub and LeVeque (1983)."""
    a_count, a_nans, a_low, a_high, a_total, a_mean, a_m2 = a
    b_count, b_nans, b_low, b_high, b_total, b_mean, b_m2 = b
    count = a_count + b_count
    # The mean of no element is stored as 0; the weight keeps it out of the result.
    some = np.maximum(count, 1)
    delta = b_mean - a_mean
    return (
        count,
        a_nans + b_nans,
        np.minimum(a_low, b_low),
        np.maximum(a_high, b_high),
        a_total + b_total,
        a_mean * (a_count / some) + b_mean * (b_count / some),
        # This order keeps delta**2 from overflowing where one side is empty.
        a_m2 + b_m2 + delta * (delta * (a_count * (b_count / some))),
    )


_TOTAL = Field("total", "accumulator", _zero, np.add)
_COUNT = Field("count", "count", _zero, np.add)
_LOW = Field("min", "element", _highest, np.minimum)
_HIGH = Field("max", "element", _lowest, np.maximum)

SUM = Monoid("sum", (_TOTAL,), "biufc", "Sum")
MIN = Monoid("min", (_LOW,), "biuf", "Min")
MAX = Monoid("max", (_HIGH,), "biuf", "Max")
MINMAX = Monoid("minmax", (_LOW, _HIGH), "biuf", "MinMax")
MEAN = Monoid("mean", (Field("total", "float", _zero, np.add), _COUNT), "biufc", "Mean")
MOMENTS = Monoid(
    "moments",
    (
        _COUNT,
        Field("nans", "count", _zero, np.add),
        _LOW,
        _HIGH,
        _TOTAL,
        Field("mean", "float", _zero, np.add),
        Field("m2", "float", _zero, np.add),
    ),
    "biuf",
    "Moments",
    _merge_moments,
)
COUNTS = Monoid("counts", (Field("counts", "accumulator", _zero, np.add),), "biuf", "Sum")

MONOIDS = (SUM, MIN, MAX, MINMAX, MEAN, MOMENTS, COUNTS)


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
    """

    monoid: Monoid
    element: np.dtype[Any]
    output: np.dtype[Any]

    def combine(self, states: list[State]) -> State:
        """Combine `states`, first to last."""
        return reduce(self.monoid.combine, states)

    def prefixes(self, states: list[State], base: State | None = None) -> list[State]:
        """Return the inclusive prefixes of `states`, seeded with `base`."""
        result = []
        for state in states:
            base = state if base is None else self.monoid.combine(base, state)
            result.append(base)
        return result


def bind(monoid: Monoid, element: np.dtype[Any], output: np.dtype[Any], caller: str) -> Operation:
    """Bind `monoid` to elements of dtype `element` and results of dtype `output`.

    Where `output` is another kind of number than the state, elements are converted to it first, as
    NumPy does for ``dtype=``; a mere change of width happens at the end, where it costs no
    precision.

    Raises
    ------
    TypeError
        If the monoid does not take such elements; the message speaks of the function `caller`.
    """
    element, output = element.newbyteorder("="), output.newbyteorder("=")
    for dtype in (element, output):
        if dtype.kind not in monoid.kinds or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            kinds = ", ".join(_KINDS[kind] for kind in monoid.kinds)
            raise TypeError(f"{caller} does not take dtype {dtype}; it takes {kinds}")
    if monoid.dtypes(element)[0].kind != output.kind:
        element = output
    return Operation(monoid, element, output)


_KINDS = {
    "b": "bool",
    "i": "signed integers",
    "u": "unsigned integers",
    "f": "float16 to float64",
    "c": "complex64 and complex128",
}
