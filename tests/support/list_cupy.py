"""Stands in for CuPy's chunk backend: lists are on the GPU, and what was copied is noted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks import backend
from dask_coop.chunks.files import Direct
from support import list_backend
from support.list_backend import *  # noqa: F403
from support.list_backend import ListArray

#: The copies that were made: where to, and what else was said of it.
copies: list[tuple[Any, ...]] = []


def from_numpy(
    x: np.ndarray[Any, Any], nbytes: int | None = None, direct: Direct = "auto"
) -> ListArray:
    copies.append(("GPU", nbytes, direct))
    return list_backend.from_numpy(x)


def to_numpy(
    x: ListArray, nbytes: int | None = None, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    copies.append(("host", nbytes))
    return list_backend.to_numpy(x, nbytes, out)


def scan_on(
    op: Operation,
    x: ListArray,
    spec: ScanSpec,
    base: State | None = None,
    heads: ListArray | None = None,
) -> tuple[ListArray, State]:
    state = list_backend.lift(op, x, (spec.axis,))
    behind = state if base is None else op.monoid.combine(base, state)
    return list_backend.scan(op, x, spec, base, heads), behind


@contextmanager
def in_cupys_place() -> Iterator[None]:
    """Have ListArray be CuPy's class."""
    row = backend.BackendRow("cupy", (backend.class_name(ListArray),), __name__)
    copies.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backend.BACKENDS, "cupy", row)
        backend._find.cache_clear()
        yield
    backend._find.cache_clear()
