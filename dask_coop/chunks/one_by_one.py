"""What a chunk backend answers that gains nothing from several chunks at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec


def lift_all(op: Operation, xs: Sequence[Any]) -> None:
    """Leave it to `lift` to reduce chunks."""


def histogram_all(op: Operation, xs: Sequence[Any], grid: Any) -> None:
    """Leave it to `histogram` to count samples."""


def upsweep(op: Operation, spec: ScanSpec, xs: Sequence[Any]) -> None:
    """Leave it to `lift` and `scan` to scan chunks."""


def downsweep(
    op: Operation, spec: ScanSpec, xs: Sequence[Any], bases: Sequence[State | None], memo: bytes
) -> list[Any]:
    """Raise ValueError, for `upsweep` has made no memo to go on from."""
    raise ValueError("these chunks are scanned one by one, by scan, for upsweep has left no memo")


def synchronize(xs: Sequence[Any]) -> None:
    """Wait for results, which are there."""
