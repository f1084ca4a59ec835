"""What runs the cross-chunk steps at once, where graphs are not built.

`dask_coop.graph` builds graphs. Within `running`, it hands its steps to a runner instead, and what
comes back is computed: that is how the public functions serve `dask_coop.cluster.client`, which
this module knows nothing about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec

#: The states of the blocks that make one block of a result, in order, by the index of that.
Groups = dict[tuple[int, ...], list[State]]


class Runner(Protocol):
    """What reduces, counts and scans the chunks of arrays at once.

    Every method raises `dask_coop.errors.Declined` where it can't.
    """

    def states(self, op: Operation, arrays: Sequence[Any], axes: tuple[int, ...]) -> Groups:
        """Return states of the blocks of an array, and of what masks it, over `axes`."""

    def tables(
        self,
        op: Operation,
        arrays: Sequence[Any],
        weighted: bool,
        grid: Any,
        axes: tuple[int, ...],
    ) -> Groups:
        """Return tables of samples, the last array their weights if they are `weighted`."""

    def groups(
        self, ops: Sequence[Operation], x: Any, tables: Any
    ) -> dict[tuple[int, ...], list[State]]:
        """Return the groups' states of several operations, by the index of what is kept.

        `tables` are the `dask_coop.graph.grouped.Tables` of the blocks of `x`.
        """

    def scan(self, op: Operation, spec: ScanSpec, source: tuple[Any, Any], name: str) -> Any:
        """Return the scan of an array, and of its head flags if any, as an array in memory."""


class _Graphs:
    pass


_GRAPHS = _Graphs()

#: None where it is not decided yet.
_runner: ContextVar[Runner | _Graphs | None] = ContextVar("dask_coop.graph.executor", default=None)


def runner() -> Runner | None:
    """Return what runs the steps of this thread at once; None if graphs are to be built."""
    found = _runner.get()
    return None if isinstance(found, _Graphs) else found


def is_decided() -> bool:
    """Tell whether a function is called by another one, which has decided what runs the steps."""
    return _runner.get() is not None


@contextmanager
def running(by: Runner | None) -> Iterator[None]:
    """Let `by` run all steps at once; None has graphs built."""
    token = _runner.set(by or _GRAPHS)
    try:
        yield
    finally:
        _runner.reset(token)
