"""The functions of several chunks, for backends that work on one chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec


def lift_all(op: Operation, xs: Sequence[Any]) -> None:
    """Return None: `lift` reduces the chunks."""


def histogram_all(op: Operation, xs: Sequence[Any], grid: Any) -> None:
    """Return None: `histogram` counts the samples."""


def upsweep(op: Operation, spec: ScanSpec, xs: Sequence[Any]) -> None:
    """Return None: `lift` and `scan` scan the chunks."""


def downsweep(
    op: Operation, spec: ScanSpec, xs: Sequence[Any], bases: Sequence[State | None], memo: bytes
) -> list[Any]:
    """Raise ValueError, because `upsweep` has returned no memo."""
    raise ValueError("upsweep returned no memo for these chunks; scan them one by one")


def synchronize(xs: Sequence[Any]) -> None:
    """Do nothing, because results are complete."""


def multiply_deviations(a: Any, b: Any) -> None:
    """Return None: BLAS multiplies blocks that lie in a cache."""


def most_joined(x: Any, ordered: bool) -> int:
    """Return 0: chunks that lie on the host are not joined."""
    return 0


def join(blocks: Sequence[Any], grid: tuple[int, ...]) -> Any:
    """Return the array of blocks, of which there are `grid` along each axis."""
    nested = np.empty(len(blocks), object)
    for i, block in enumerate(blocks):
        nested[i] = block
    return np.block(nested.reshape(grid).tolist())
