"""Decide whether GPUs, chunks and an operation suit one launch over many chunks.

All objections are here, as texts that `Node.explain` prints. Those to an operation, its bins and
its scan need neither chunks nor CuPy. Whether a table fits the memory of a block is decided when
its program is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dask_coop.algebra.bins import BinSpec
from dask_coop.algebra.central_moments import Powers
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.registers import Registers
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.strategies import AUTO, MULTICHUNK
from dask_coop.chunks.distinct import Distinct


@dataclass(frozen=True)
class Objection:
    """A reason against a multi-chunk launch, in words that follow "because"."""

    text: str

    def __str__(self) -> str:
        """Return the reason."""
        return self.text


TABLE_TOO_LARGE = Objection("the table does not fit the memory of a block")


def objection_to_operation(op: Operation) -> Objection | None:
    """Return why no launch reduces several chunks, or None."""
    if isinstance(op.monoid, Powers):
        return Objection("moments of a high order take several steps a chunk")
    if isinstance(op.monoid, Distinct):
        return Objection("the number of distinct values is not known in advance")
    if isinstance(op.monoid, Registers):
        return Objection("hashes are in memory, block by block of a chunk")
    if not op.monoid.commutative:
        return Objection(f"{op.monoid.name} does not commute")
    return _objection_to_strategy(op)


def _objection_to_strategy(op: Operation) -> Objection | None:
    """Say why the strategy that the user named takes chunks one by one, or None."""
    if op.strategy in (AUTO, MULTICHUNK):
        return None
    return Objection(f"strategy {op.strategy!r} takes chunks one by one")


def objection_to_scan(op: Operation, spec: ScanSpec) -> Objection | None:
    """Return why no launch scans several 1-d chunks, or None."""
    if spec.initial:
        return Objection("its first chunk is longer by one")
    if op.monoid.lift is not None:
        return Objection(f"{op.monoid.name} is not a monoid of the library")
    return objection_to_operation(op)


def objection_to_histogram(op: Operation, grid: BinSpec) -> Objection | None:
    """Return why no launch counts several chunks into one table, or None."""
    return objection_to_counting(op) or objection_to_grid(grid)


def objection_to_counting(op: Operation) -> Objection | None:
    """Return why no launch does what `op` does, for any bins, or None."""
    if op.monoid.has_digits:
        return Objection("reproducible sums of weights take several steps a chunk")
    return _objection_to_strategy(op)


def objection_to_grid(grid: BinSpec) -> Objection | None:
    """Return why no launch counts into such bins, or None."""
    if grid.entries is None:
        return Objection("the largest integer is not known in advance")
    if not grid.entries:
        return Objection("there are no bins")
    if grid.ndim > 1 or grid.has_lines or grid.flow:
        return Objection("it has more than one table of bins")
    return None


def objection_to_team(team: Any) -> Objection | None:
    """Return why the GPUs of a `dask_coop.cuda.team.Team` cannot launch, or None."""
    return Objection(team.objection) if team.objection else None


def objection_to_chunks(xs: Sequence[Any], team: Any) -> Objection | None:
    """Return why no launch takes such chunks on the GPUs of a team, or None."""
    if reason := objection_to_team(team):
        return reason
    # The other functions need no CuPy.
    import cupy

    if not all(isinstance(x, cupy.ndarray) for x in xs):
        return Objection("the chunks are not CuPy arrays")
    found = {x.device.id for x in xs}
    if others := found - set(team.ordinals):
        return Objection(f"chunks lie on GPU {min(others)}, which takes no part in launches")
    return None


def objection_to_dtypes(xs: Sequence[Any]) -> Objection | None:
    """Return why no launch takes chunks of such dtypes, or None."""
    if len({x.dtype for x in xs}) > 1:
        return Objection("its chunks are of several dtypes")
    return None


def objection_to_declared(xs: Sequence[Any], dtype: Any) -> Objection | None:
    """Return why no launch takes CuPy chunks whose array declares `dtype`, or None."""
    for x in xs:
        if dtype is not None and x.dtype != dtype.newbyteorder("="):
            return Objection(f"a chunk has dtype {x.dtype}, and its array declares {dtype}")
    return None


def objection_to_chunks_together(xs: Sequence[Any], team: Any) -> Objection | None:
    """Return why no launch takes all of an array's CuPy chunks in a process, or None.

    No `team` means that they lie on several GPUs that are not shared (`dask_coop.cuda.team`).
    """
    if team is None:
        return Objection("the chunks lie on several GPUs")
    return objection_to_chunks(xs, team) or objection_to_dtypes(xs)
