"""Open variables of netCDF files of format 3, mapped by SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dask_coop.cli.describe.members import Members
from dask_coop.errors import UserError


@dataclass(frozen=True)
class Netcdf3Variable:
    """A variable of a netCDF file of format 3, mapped anew by each access."""

    path: Path
    variable: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, index: Any) -> Any:
        """Return a copy of the elements at an index."""
        from scipy.io import netcdf_file

        with netcdf_file(self.path, "r", mmap=True) as file:
            # Copy, because the file cannot be closed while a view exists.
            return np.array(file.variables[self.variable][index])


def is_netcdf3(path: Path) -> bool:
    """Return whether a file begins as netCDF 3 does."""
    return _starts_with(path, b"CDF")


def open_netcdf3(path: Path) -> Members:
    """Return the variables of a file, each a `Netcdf3Variable`.

    Raises
    ------
    UserError
        If it cannot be opened.
    """
    from scipy.io import netcdf_file

    if _starts_with(path, b"CDF\x05"):
        raise UserError(
            f"{path}: this is netCDF of format CDF-5, which SciPy does not read; run "
            "`nccopy -k nc4 IN.nc OUT.nc` and describe OUT.nc"
        )
    try:
        file = netcdf_file(path, "r", mmap=True)
    # A truncated file may fail anywhere in the parser.
    except Exception as error:
        raise UserError(f"{path}: cannot open this as netCDF 3: {error}") from error
    with file:
        # Keep no reference to a variable, or the file could not be closed.
        facts = {
            name: (v.dimensions, v.shape, np.dtype(v.data.dtype), dict(v._attributes))
            for name, v in file.variables.items()
        }
    along = {name for name, (dimensions, *_) in facts.items() if dimensions == (name,)}

    def open_variable(name: str) -> tuple[Netcdf3Variable, dict[str, Any]]:
        _, shape, dtype, attributes = facts[name]
        return Netcdf3Variable(path.absolute(), name, shape, dtype), attributes

    return Members([*facts], along, open_variable)


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
