"""Open arrays of a .npz file, after a check of their headers."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from dask_coop.cli.describe.claims import require_room
from dask_coop.cli.describe.members import choose
from dask_coop.errors import UserError


def open_npz(text: str, path: Path, dataset: str | None) -> dict[str, np.ndarray[Any, Any]]:
    """Read all arrays, or one.

    Parameters
    ----------
    text : str
        The source as the user typed it.
    path : pathlib.Path
    dataset : str, optional
        The name of the array to read.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    UserError
        If there is no such array, its file is damaged, or there is no room for it.
    """
    try:
        with zipfile.ZipFile(path) as file:
            members = {
                info.filename.removesuffix(".npy"): info
                for info in file.infolist()
                if info.filename.endswith(".npy")
            }
            names = choose(path, [*members], dataset)
            # Check all headers before any array is read.
            claimed = sum(_claim(file, members[name]) for name in names)
            require_room(text, claimed, path.stat().st_size)
            return {name: _read(file, members[name]) for name in names}
    except UserError:
        raise
    # A damaged zip, or member, can raise almost anything.
    except Exception as error:
        raise UserError(f"{text}: cannot read this as .npz: {error}") from error


def _claim(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return the bytes of an array by its header; raise unless the zip's directory agrees."""
    with file.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(member)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds Python objects, which are not unpickled")
        nbytes = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or member.tell() + nbytes != info.file_size:
            raise ValueError(
                f"{info.filename} has {info.file_size:,} bytes, and its header says {shape} of "
                f"{dtype}, which are {nbytes:,}"
            )
    return nbytes


def _read(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    with file.open(info) as member:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array
