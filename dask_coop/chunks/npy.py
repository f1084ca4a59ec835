"""Arrays in .npy files, mapped when a task needs a chunk.

Tasks carry only a path. The chunks of a process are views of one map, which is closed when the last
of them is gone.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Literal

import numpy as np

from dask_coop.chunks.files import map_file


@dataclass(frozen=True)
class NpyArray:
    """An array in a .npy file, as of when the graph was built.

    Attributes
    ----------
    path : str
        Absolute.
    shape : tuple of int
    dtype : numpy.dtype
    order : {"C", "F"}
    offset : int
        The position of the elements in the file.
    stamp : tuple of int
        The time when the file was modified, in nanoseconds, and its bytes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    offset: int
    stamp: tuple[int, int]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> Any:
        """Return the elements at an index, as a read-only view of the file's map.

        Raises
        ------
        OSError
            If the file is missing or has changed.
        """
        mapped = self._map()
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)[index]
        whole: np.ndarray[Any, Any] = np.ndarray(
            self.shape, self.dtype, mapped, self.offset, order=self.order
        )
        # With an ellipsis, because an array without axes would give a scalar in native byte order.
        return whole[(*index, ...)] if isinstance(index, tuple) else whole[index]

    def _map(self) -> mmap:
        mapped = _maps.get(self)
        if mapped is not None:
            self._check(os.stat(self.path))
            return mapped
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            self._check(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return _maps.setdefault(self, map_file(descriptor))

    def _check(self, status: os.stat_result) -> None:
        if (current := _stamp(status)) != self.stamp:
            raise OSError(
                f"{self.path} has changed since its array was made: it had {self.stamp[1]} bytes, "
                f"modified at {self.stamp[0] / 1e9:.3f}, and has {current[1]}, modified at "
                f"{current[0] / 1e9:.3f}; call from_npy again"
            )


#: The maps of living chunks.
_maps: weakref.WeakValueDictionary[NpyArray, mmap] = weakref.WeakValueDictionary()


def open_npy(path: str | os.PathLike[str]) -> NpyArray:
    """Return the array of a .npy file, reading only the header.

    Raises
    ------
    OSError
        If the file is missing or cannot be read.
    ValueError
        If it is not a .npy file, is too short, or holds Python objects.
    """
    absolute = os.path.abspath(path)
    # Before reading the header, so that a change meanwhile is found later.
    stamp = _stamp(os.stat(absolute))
    try:
        # An overflowing size raises ValueError anyway.
        with np.errstate(over="ignore"):
            x = np.lib.format.open_memmap(absolute, mode="r")
    except OSError:
        raise
    # A damaged header can raise anything in the parser.
    except Exception as error:
        raise ValueError(f"{path}: cannot map this file as .npy: {error}") from error
    flags = x.flags
    order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    return NpyArray(absolute, x.shape, x.dtype, order, x.offset, stamp)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size
