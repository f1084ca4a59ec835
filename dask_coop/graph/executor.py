"""The runner that executes cross-chunk steps at once, instead of building graphs.

Within `running`, the functions of `dask_coop.graph` pass their steps to a runner and return
computed results. That is how the public functions serve `dask_coop.cluster.client`; this module
knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec

#: The states for each block of a result, in order, by the block's index.
Groups = dict[tuple[int, ...], list[State]]


class Runner(Protocol):
    """The interface that reduces, counts and scans the chunks of arrays at once.

    Every method raises `dask_coop.errors.Declined` for work that it cannot do.
    """

    def states(self, op: Operation, arrays: Sequence[Any], axes: tuple[int, ...]) -> Groups:
        """Return states over `axes` of the blocks of an array, which a second array may mask."""

    def tables(
        self,
        op: Operation,
        arrays: Sequence[Any],
        weighted: bool,
        grid: Any,
        axes: tuple[int, ...],
    ) -> Groups:
        """Return tables of samples; the last array holds weights if `weighted`."""

    def groups(
        self, ops: Sequence[Operation], x: Any, tables: Any
    ) -> dict[tuple[int, ...], list[State]]:
        """Return the groups' states of several operations, by the index of the kept axes.

        `tables` are the `dask_coop.graph.grouped.Tables` of the blocks of `x`.
        """

    def scan(self, op: Operation, spec: ScanSpec, source: tuple[Any, Any], name: str) -> Any:
        """Return the scan of an array, with its head flags if any, as an array in memory."""


class _Graphs:
    pass


_GRAPHS = _Graphs()

#: None until a function decides.
_runner: ContextVar[Runner | _Graphs | None] = ContextVar("dask_coop.graph.executor", default=None)


def runner() -> Runner | None:
    """Return the runner of this thread; None if graphs are built."""
    current = _runner.get()
    return None if isinstance(current, _Graphs) else current


def is_decided() -> bool:
    """Return whether a calling function has decided between a runner and graphs."""
    return _runner.get() is not None


@contextmanager
def running(by: Runner | None) -> Iterator[None]:
    """Execute all steps with the runner `by`; build graphs if it is None."""
    token = _runner.set(by or _GRAPHS)
    try:
        yield
    finally:
        _runner.reset(token)
