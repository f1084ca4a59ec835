"""Several chunks on one GPU at a time: one launch, and one answer to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import cupy

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.cupy import multichunk
from dask_coop.chunks.cupy.eligibility import (
    objection_to_chunks_of_one_gpu,
    objection_to_histogram,
    objection_to_operation,
    objection_to_scan,
)

Array = Any


def lift_all(op: Operation, xs: Sequence[Array]) -> State | None:
    """Reduce each of the chunks `xs`; None if they have to be taken one by one.

    Returns
    -------
    tuple of numpy.ndarray
        The states, along the first axis of each field.
    """
    if objection_to_operation(op) or objection_to_chunks_of_one_gpu(xs):
        return None
    with xs[0].device:
        return multichunk.reduce_each(_team(xs), op, xs)


def histogram_all(op: Operation, xs: Sequence[Array], grid: Any) -> State | None:
    """Count the samples of the chunks `xs` into one table; None if they go one by one."""
    if objection_to_histogram(op, grid) or objection_to_chunks_of_one_gpu(xs):
        return None
    with xs[0].device:
        return multichunk.histogram(_team(xs), op, xs, grid)


def upsweep(op: Operation, spec: ScanSpec, xs: Sequence[Array]) -> tuple[State, bytes] | None:
    """Reduce each of the 1-d chunks `xs` for a scan; None if they have to be taken one by one.

    Returns
    -------
    state : tuple of numpy.ndarray
        The states, along the first axis of each field.
    memo : bytes
        What `downsweep` is to be given with the same chunks.
    """
    if objection_to_scan(op, spec) or objection_to_chunks_of_one_gpu(xs):
        return None
    with xs[0].device:
        return multichunk.upsweep(_team(xs), op, xs, spec)


def downsweep(
    op: Operation, spec: ScanSpec, xs: Sequence[Array], bases: Sequence[State | None], memo: bytes
) -> list[Array]:
    """Scan the chunks of an upsweep from their bases, None at the start of the array."""
    nothing = op.monoid.identity(op.element)
    given = [nothing if base is None else base for base in bases]
    with xs[0].device:
        return multichunk.downsweep(_team(xs), op, xs, spec, given, memo)


def synchronize() -> None:
    """Wait for all that this process has begun on the current GPU."""
    cupy.cuda.Device().synchronize()


def _team(xs: Sequence[Array]) -> multichunk.Team:
    return _alone(xs[0].device.id)


@cache
def _alone(ordinal: int) -> multichunk.Team:
    """Return a team of one GPU, which waits for nobody."""
    return multichunk.Team((ordinal,), 30.0)
