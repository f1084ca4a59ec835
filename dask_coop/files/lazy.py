"""A stored array in the place of the array of one of xarray's backends.

xarray decodes and indexes lazily: its arrays hold one another, and the innermost is the array of a
backend, which gets indices that say of which kind they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer

from dask_coop.files.hdf5 import Hdf5Array
from dask_coop.files.stored import StoredArray


class Backend(BackendArray):  # type: ignore[misc]
    """A stored array that xarray indexes.

    Parameters
    ----------
    stored : StoredArray or Hdf5Array
    theirs : xarray.backends.BackendArray
        The array of xarray's own, which has the same values.
    """

    def __init__(self, stored: StoredArray | Hdf5Array, theirs: Any) -> None:
        self.stored = stored
        self.theirs = theirs
        self.shape: tuple[int, ...] = theirs.shape
        self.dtype: np.dtype[Any] = theirs.dtype

    def __getitem__(self, key: Any) -> Any:
        """Return elements; xarray's own array has those that lists of indices select."""
        if type(key) is not BasicIndexer or self.stored.why_not:
            return self.theirs[key]
        return self.stored[key.tuple]
