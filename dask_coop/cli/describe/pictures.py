"""Open pictures, which are decoded as a whole."""

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

#: The software that the figures of this command name, and the words on such a file.
SOFTWARE, OWN = "dask_coop describe", "figures of this command"


@dataclass(frozen=True)
class Picture:
    """A picture that each access decodes anew."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, index: Any) -> Any:
        """Return the elements at an index."""
        return _read_picture(self.path)[index]


def is_own_figure(path: Path) -> bool:
    """Return whether a file is a figure of this command."""
    if path.suffix.lower() != ".png" or not path.is_file():
        return False
    with path.open("rb") as file:
        return SOFTWARE.encode() in file.read(1024)


def open_picture(path: Path, chunks: str | int | tuple[int, ...]) -> Any:
    """Return a lazy `Picture` if it is one chunk, else the decoded array.

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
    # Each format's decoder has its own exceptions, none of which is a bug of ours.
    except Exception as error:
        raise UserError(f"{path}: cannot read this as a picture: {error}") from error


def _require_true_tiff(path: Path) -> None:
    """Refuse a TIFF whose directories exceed the file, or whose picture exceeds memory.

    The directories of a TIFF are a chain of tables. The decoder reads all of them before it decodes
    anything, which takes hours if they overlap.
    """
    import tifffile

    with tifffile.TiffFile(path) as file:
        known, handle, kind = set[int](), file.filehandle, file.tiff
        handle.seek(kind.offsetsize)
        offset = struct.unpack(kind.offsetformat, handle.read(kind.offsetsize))[0]
        nbytes = 0
        while offset:
            if offset in known:
                raise ValueError("its directories lead back to one before")
            known.add(offset)
            handle.seek(offset)
            count = struct.unpack(kind.tagnoformat, handle.read(kind.tagnosize))[0]
            nbytes += kind.tagnosize + count * kind.tagsize + kind.offsetsize
            if nbytes > handle.size:
                raise ValueError("its directories are longer than the file")
            handle.seek(offset + kind.tagnosize + count * kind.tagsize)
            offset = struct.unpack(kind.offsetformat, handle.read(kind.offsetsize))[0]
        series = file.series[0]
        # Each strip or tile has an entry in a table, which the decoder reads.
        if math.prod(series.keyframe.chunked) > handle.size:
            raise ValueError("it says that it has more strips or tiles than bytes")
        nbytes = math.prod(series.shape) * np.dtype(series.dtype).itemsize
        require_room(str(path), nbytes, handle.size)
