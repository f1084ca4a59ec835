"""Opens pictures, which are decoded whole."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dask.utils import parse_bytes

from dask_coop.cli.describe.claims import require_room
from dask_coop.errors import UserError

PICTURES = (".jpeg", ".jpg", ".png", ".tif", ".tiff")


@dataclass(frozen=True)
class Picture:
    """A picture, decoded anew by each access."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the picture."""
        return _read_picture(self.path)[index]


def open_picture(path: Path, chunks: str | int | tuple[int, ...]) -> Any:
    """Return what decodes a picture when it is read, if that is as one chunk; else the picture.

    Raises
    ------
    UserError
        If it cannot be decoded.
    """
    picture = _read_picture(path)
    if chunks != "auto" or picture.nbytes > parse_bytes(dask.config.get("array.chunk-size")):
        return picture
    return Picture(path.absolute(), picture.shape, picture.dtype)


def skimage_picture(name: str) -> Path:
    """Return the path of a picture that comes with scikit-image.

    Raises
    ------
    UserError
        If scikit-image has no picture of that name.
    """
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    pictures = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in PICTURES}
    if name not in pictures:
        raise UserError(
            f"skimage:{name}: scikit-image comes without such a picture; it has "
            f"{', '.join(pictures)}"
        )
    return pictures[name]


def _read_picture(path: Path) -> np.ndarray[Any, Any]:
    from skimage.io import imread

    try:
        if path.suffix.lower() in (".tif", ".tiff"):
            _require_true_tiff(path)
        return np.asarray(imread(path))
    except UserError:
        raise
    # Each format's decoder has its own exceptions, and none of them is our bug.
    except Exception as error:
        raise UserError(f"{path}: cannot read this as a picture: {error}") from error


def _require_true_tiff(path: Path) -> None:
    """Refuse a TIFF whose directories do not fit into it, or whose picture not into memory.

    The directories of a TIFF are a chain of tables. The decoder works through all of them before it
    decodes anything, for hours where they lie one over the other.
    """
    import tifffile

    with tifffile.TiffFile(path) as file:
        known, handle, kind = set[int](), file.filehandle, file.tiff
        handle.seek(kind.offsetsize)
        at = struct.unpack(kind.offsetformat, handle.read(kind.offsetsize))[0]
        taken = 0
        while at:
            if at in known:
                raise ValueError("its directories lead back to one before")
            known.add(at)
            handle.seek(at)
            count = struct.unpack(kind.tagnoformat, handle.read(kind.tagnosize))[0]
            taken += kind.tagnosize + count * kind.tagsize + kind.offsetsize
            if taken > handle.size:
                raise ValueError("its directories are longer than the file")
            handle.seek(at + kind.tagnosize + count * kind.tagsize)
            at = struct.unpack(kind.offsetformat, handle.read(kind.offsetsize))[0]
        series = file.series[0]
        # Each has an entry in a table, and is looked at.
        if math.prod(series.keyframe.chunked) > handle.size:
            raise ValueError("it says that it has more strips or tiles than bytes")
        nbytes = math.prod(series.shape) * np.dtype(series.dtype).itemsize
        require_room(str(path), nbytes, handle.size)
