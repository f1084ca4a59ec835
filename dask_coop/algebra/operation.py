"""Operations: monoids bound to dtypes, the frozen values that every task of a call carries."""

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
        What a chunk's elements are converted to before they are lifted.
    output : numpy.dtype
        The dtype of the result.
    skipna : bool
        Whether elements that are NaN are left out.
    masked : bool
        Whether elements lie beside what tells whether they count.
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
        """The bytes of a state of one line, or of one entry of it."""
        return sum(dtype.itemsize for dtype in self.monoid.dtypes(self.element))

    @property
    def neutral(self) -> Any:
        """An element that changes no state, or None where there may be none."""
        if self.skipna:
            return self.element.type(np.nan)
        if self.monoid.neutral is not None:
            return self.monoid.neutral(self.element)
        first, *rest = self.monoid.fields
        return None if rest else first.identity(self.element)

    def __reduce__(self) -> tuple[Any, ...]:
        """Name rows and dtypes, where names say all: each task of a call is sent with it."""
        row = self.monoid.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        monoid = row if isinstance(row, str) else self.monoid
        element, output = map(named, (self.element, self.output))
        # Every task has it, so that it takes few bytes: flags that are not set are left out.
        flags: tuple[Any, ...] = (self.skipna, self.masked, self.strategy)
        if self.strategy == AUTO:
            flags = flags[: 2 if self.masked else self.skipna]
        return _unpickled, (_release(), monoid, element, output, *flags)

    def combine(self, states: list[State]) -> State:
        """Combine `states`, first to last."""
        return self.monoid.combine_all(states)

    def shift(self, state: State, lengths: tuple[int, ...], origin: Origin) -> State:
        """Turn indices within a chunk of `lengths` along the reduced axes into the array's.

        `origin` has, for each of these axes, where the chunk begins and how long the array is.
        """
        value, index, *count = state
        if 0 in lengths:
            return state
        # Moved, the index of no element would wrap around, and come before all others.
        with np.errstate(over="ignore"):
            shifted = _shift(index, lengths, origin)
        return value, choose(index == NO_INDEX, index, shifted), *count


@dataclass(frozen=True)
class _ByStrategy(Operation):
    """An operation with a strategy that the user named: others keep their keys and pickles."""

    strategy: str = AUTO


def named(dtype: np.dtype[Any]) -> Any:
    """Return what `numpy.dtype` makes a dtype of: a short word if it has one, the same each time.

    Pickles hold a word once.
    """
    word = dtype.str
    if np.dtype(word) != dtype:
        return dtype
    return sys.intern(word[1:] if dtype.isnative else word)


class _OfAnother:
    """An operation of another version of the library, which raises where it is used.

    A worker that raises when it reads a task ends, and nobody is told why.
    """

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what it is where the version is the right one."""
        return _unpickled, self._given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__dataclass_fields__":
            raise AttributeError(name)
        raise RuntimeError(
            f"{_place()} has dask_coop {_release()}, and the graph is of dask_coop "
            f"{self._given[0]}: install one version for the client, the scheduler and all workers"
        )


def _release() -> str:
    # The package's face is above, and is imported before what it is made of.
    return str(sys.modules["dask_coop"].__version__)


def _place() -> str:
    """Return the worker of a cluster whose task calls, or the host."""
    # Only a process that has workers has imported this.
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

    Where `output` is another kind of number than the row's, elements are converted to it first, as
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
    if monoid.output(element).kind != output.kind:
        element = output
    return Operation(monoid, element, output, skipna and element.kind in "fc")


def compensated(op: Operation) -> Operation:
    """Return the operation that sums or averages as `op` does, and keeps what is rounded off.

    What float64 alone holds well enough stays as it is: float32 that becomes float32, and integers.
    """
    twin = op.monoid.compensated
    wide = op.output in (np.float64, np.complex128) and op.element.kind in "fc"
    return replace(op, monoid=twin) if twin is not None and wide else op


def reproducible(op: Operation) -> Operation:
    """Return the operation that sums or averages as `op` does, with digits of fixed weights.

    What sums integers stays as it is: these add to the same bits in any order.
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
