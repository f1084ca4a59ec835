"""Operations: monoids bound to dtypes, frozen values that every task of a call carries."""

from __future__ import annotations

import pickle
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_coop.algebra import monoids
from dask_coop.algebra.merges import choose
from dask_coop.algebra.monoids import NO_INDEX, MonoidRow, State, floating
from dask_coop.algebra.strategies import AUTO
from dask_coop.errors import Refused, remedy

#: The start of a chunk and the length of the array, along each reduced axis.
Origin = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Operation:
    """A monoid bound to dtypes: the frozen spec that every task of one call carries.

    Attributes
    ----------
    monoid : MonoidRow
    element : numpy.dtype
        The dtype to which a chunk's elements are converted before they are lifted.
    output : numpy.dtype
        The dtype of the result.
    skipna : bool
        Whether elements that are NaN are left out.
    masked : bool
        Whether a mask accompanies the elements.
    """

    monoid: MonoidRow
    element: np.dtype[Any]
    output: np.dtype[Any]
    skipna: bool = False
    masked: bool = False

    @property
    def strategy(self) -> str:
        """How kernels work on a CuPy chunk: "auto", or a name of `algebra/strategies.py`."""
        return AUTO

    def by(self, strategy: str) -> Operation:
        """Return this operation with kernels of a strategy."""
        values = (self.monoid, self.element, self.output, self.skipna, self.masked)
        return Operation(*values) if strategy == AUTO else _ByStrategy(*values, strategy)

    @property
    def state_bytes(self) -> int:
        """The bytes of the state of one line, or of one entry of it."""
        return sum(dtype.itemsize for dtype in self.monoid.dtypes(self.element))

    @property
    def neutral(self) -> Any:
        """An element that changes no state, or None if there may be none."""
        if self.skipna:
            return self.element.type(np.nan)
        if self.monoid.neutral is not None:
            return self.monoid.neutral(self.element)
        first, *others = self.monoid.fields
        return None if others else first.identity(self.element)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle rows and dtypes by name where possible, because every task has a copy."""
        row = self.monoid.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        monoid = row if isinstance(row, str) else self.monoid
        element, output = map(named, (self.element, self.output))
        # Leave out flags that are not set, to save bytes in every task.
        flags: tuple[Any, ...] = (self.skipna, self.masked, self.strategy)
        if self.strategy == AUTO:
            flags = flags[: 2 if self.masked else self.skipna]
        return _unpickled, (_release(), monoid, element, output, *flags)

    def combine(self, states: list[State]) -> State:
        """Combine `states`, first to last."""
        return self.monoid.combine_all(states)

    def shift(self, state: State, lengths: tuple[int, ...], origin: Origin) -> State:
        """Turn indices within a chunk of `lengths` along the reduced axes into the array's.

        `origin` has the start of the chunk and the length of the array along each of these axes.
        """
        value, index, *count = state
        if 0 in lengths:
            return state
        # Lines that share their indices go on sharing them.
        unlike = index[tuple(slice(None if step else 1) for step in index.strides)]
        # Keep NO_INDEX: shifted, it would wrap around and precede all others.
        with np.errstate(over="ignore"):
            shifted = _shift(unlike, lengths, origin)
        shifted = choose(unlike == NO_INDEX, unlike, shifted)
        if unlike.shape != index.shape:
            shifted = np.broadcast_to(shifted, index.shape)
        return value, shifted, *count


@dataclass(frozen=True)
class _ByStrategy(Operation):
    """An operation with a strategy that the user named: others keep their keys and pickles."""

    strategy: str = AUTO


def named(dtype: np.dtype[Any]) -> Any:
    """Return the shortest argument of `numpy.dtype` for a dtype: an interned string if possible.

    Pickles hold the same string object once.
    """
    word = dtype.str
    if np.dtype(word) != dtype:
        return dtype
    return sys.intern(word[1:] if dtype.isnative else word)


class _OfAnother:
    """An operation of another version of the library, which raises where it is used.

    A worker that raises while it reads a task would end without telling anybody why.
    """

    def __init__(self, *arguments: Any) -> None:
        self._given = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the operation's own pickle, for a process with the right version."""
        return _unpickled, self._given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__dataclass_fields__":
            raise AttributeError(name)
        raise RuntimeError(
            f"{_place()} has dask_coop {_release()}, and the graph is of dask_coop "
            f"{self._given[0]}: install one version for the client, the scheduler and all workers"
        )


def _release() -> str:
    # The package is imported before its modules, so this needs no import.
    return str(sys.modules["dask_coop"].__version__)


def _place() -> str:
    """Return the worker whose task is calling, or the host."""
    # Without this module the process has no workers.
    if (worker := sys.modules.get("distributed.worker")) is not None:
        with suppress(ValueError):
            return f"worker {worker.get_worker().address}"
    return socket.gethostname()


def _unpickled(release: str, monoid: Any, element: Any, output: Any, *rest: Any) -> Any:
    if release != _release():
        return _OfAnother(release, monoid, element, output, *rest)
    row = getattr(monoids, monoid) if isinstance(monoid, str) else monoid
    op = Operation(row, np.dtype(element), np.dtype(output), *rest[:2])
    return op.by(*rest[2:]) if rest[2:] else op


def _shift(index: Any, lengths: tuple[int, ...], origin: Origin) -> Any:
    if len(origin) == 1:
        return index + origin[0][0]
    shifted, stride = 0, 1
    for length, (start, size) in zip(lengths[::-1], origin[::-1], strict=True):
        index, coordinate = np.divmod(index, length)
        shifted = shifted + (coordinate + start) * stride
        stride *= size
    return index + shifted


def bind(
    monoid: MonoidRow,
    element: np.dtype[Any],
    output: np.dtype[Any],
    caller: str,
    skipna: bool = False,
    times: str = "",
) -> Operation:
    """Bind `monoid` to elements of dtype `element` and results of dtype `output`.

    If `output` is of another kind than the row's result, elements are converted to it first, as
    NumPy does for ``dtype=``; a mere change of width happens at the end, where it costs no
    precision. `skipna` leaves NaN out. `times` are kinds of dates and durations, "m" or "mM", that
    the caller supports besides.

    Raises
    ------
    Refused
        If the monoid does not support such elements; the message names the function `caller`.
    """
    element, output = element.newbyteorder("="), output.newbyteorder("=")
    for dtype in (element, output):
        takes = monoid.kinds + times
        if dtype.kind not in takes or dtype.itemsize > (16 if dtype.kind == "c" else 8):
            kinds = ", ".join(_KINDS[kind] for kind in takes)
            how = f"; {remedy(dtype, takes)}" if dtype is element else ""
            raise Refused(f"{caller} does not take dtype {dtype}; it takes {kinds}{how}")
    if monoid.output(element).kind != output.kind:
        element = output
    return Operation(monoid, element, output, skipna and element.kind in "fc")


def compensated(op: Operation) -> Operation:
    """Return the operation of the same sum, mean or variance that keeps rounding errors.

    Results that float64 alone holds well enough keep their operation: float32 results of float32
    elements, and sums of integers.
    """
    twin = op.monoid.compensated
    if twin is None or op.element.kind not in twin.kinds:
        return op
    return replace(op, monoid=twin) if op.output in (np.float64, np.complex128) else op


def reproducible(op: Operation) -> Operation:
    """Return the operation of the same sum or mean with digits of fixed weights.

    Sums of integers keep their operation, because they have the same bits in any order.
    """
    if op.output.kind not in "fc":
        return op
    element = op.element if op.element.kind in "fc" else floating(op.element)
    (twin,) = (row for row in op.monoid.reproducible if op.output.kind in row.kinds)
    return replace(op, monoid=twin, element=element)


_KINDS = {
    "b": "bool",
    "i": "signed integers",
    "u": "unsigned integers",
    "f": "float16 to float64",
    "c": "complex64 and complex128",
    "m": "timedelta64",
    "M": "datetime64",
}
