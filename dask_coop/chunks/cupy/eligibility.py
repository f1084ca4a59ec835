"""Whether an operation and its chunks suit a multi-chunk launch: one kernel over many chunks.

An operation, its bins and its scan can be asked about before there are chunks, and without CuPy.
What a program can't be launched for otherwise, such as a table too large for a block, shows later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dask_coop.algebra.bins import BinSpec
from dask_coop.algebra.central_moments import Powers
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.cuda.devices import attribute


@dataclass(frozen=True)
class Objection:
    """Why there is no multi-chunk launch, in words that follow "because"."""

    text: str

    def __str__(self) -> str:
        """Return the words."""
        return self.text


def objection_to_operation(op: Operation) -> Objection | None:
    """Say why chunks are not reduced together; None if they are."""
    if isinstance(op.monoid, Powers):
        return Objection("moments of a high order take several steps a chunk")
    if not op.monoid.commutative:
        return Objection(f"{op.monoid.name} does not commute")
    return None


def objection_to_scan(op: Operation, spec: ScanSpec) -> Objection | None:
    """Say why 1-d chunks are not scanned together; None if they are."""
    if spec.initial:
        return Objection("its first chunk is longer by one")
    if op.monoid.lift is not None:
        return Objection(f"{op.monoid.name} is not of the library")
    return objection_to_operation(op)


def objection_to_histogram(op: Operation, grid: BinSpec | None = None) -> Objection | None:
    """Say why chunks are not counted into one table; None if they are.

    Without a `grid`, which may not be known yet, `objection_to_grid` has to be asked later.
    """
    if op.monoid.has_digits:
        return Objection("reproducible sums of weights take several steps a chunk")
    return None if grid is None else objection_to_grid(grid)


def objection_to_grid(grid: BinSpec) -> Objection | None:
    """Say why chunks are not counted into `grid` together; None if they are."""
    if grid.entries is None:
        return Objection("the largest integer is not known before")
    if grid.ndim > 1 or grid.has_lines or grid.flow:
        return Objection("it has more than one table of bins")
    return None


def objection_to_chunks(xs: Sequence[Any], ordinals: Sequence[int]) -> Objection | None:
    """Say why a launch over several of the GPUs `ordinals` takes no such chunks, or None."""
    # Where there are none yet, nobody needs CuPy to ask the rest.
    import cupy

    if not all(isinstance(x, cupy.ndarray) for x in xs):
        return Objection("the chunks are not CuPy arrays")
    found = {x.device.id for x in xs}
    if strangers := found - set(ordinals):
        return Objection(f"chunks lie on GPU {min(strangers)}, which is not the node's")
    if len(found) < 2:
        return Objection(f"all chunks lie on GPU {min(found)}")
    return None


def objection_to_dtypes(xs: Sequence[Any]) -> Objection | None:
    """Say why no launch takes chunks of such dtypes, or None."""
    if len({x.dtype for x in xs}) > 1:
        return Objection("its chunks are of several dtypes")
    return None


def objection_to_chunks_of_one_gpu(xs: Sequence[Any]) -> Objection | None:
    """Say why a launch over one GPU takes no such CuPy chunks, or None."""
    if len({x.device.id for x in xs}) > 1:
        return Objection("the chunks lie on several GPUs")
    if reason := objection_to_dtypes(xs):
        return reason
    ordinal = xs[0].device.id
    if not attribute(ordinal, "COOPERATIVE_MULTI_DEVICE_LAUNCH"):
        return Objection(f"GPU {ordinal} takes no cooperative multi-device launch")
    return None
