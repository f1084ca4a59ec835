"""Decode numbers that are packed by the CF conventions, a chunk at a time, by xarray.

NetCDF files, and files made from them, hold integers that stand for floats or dates. The attributes
of an array tell how: ``scale_factor``, ``add_offset``, ``_FillValue``, ``units: days since
2000-01-01`` and others. If there are none, xarray is not imported.
"""

from __future__ import annotations

import base64
import struct
import warnings
from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.errors import UserError, pip_install

#: Attributes that xarray applies; valid_range is none of them.
PACKING = ("_Unsigned", "_FillValue", "missing_value", "scale_factor", "add_offset")
TIMES = ("units", "calendar", "dtype")


def packing(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the attributes of an array of `dtype` that tell how its elements are packed."""
    if dtype.kind not in "iuf":
        return {}
    result = {
        name: _plain(name, attributes[name], dtype)
        for name in (*PACKING, *TIMES)
        if attributes.get(name) is not None
    }
    # Other units and dtypes are only information for people.
    units, stored = str(result.get("units", "")), str(result.get("dtype", ""))
    if " since " not in units and not stored.startswith("timedelta64"):
        result = {name: result[name] for name in result if name not in ("units", "calendar")}
    if stored != "bool" and not stored.startswith("timedelta64"):
        result.pop("dtype", None)
    for name in ("_FillValue", "missing_value"):
        # NaN needs no mask.
        if name in result and np.all(result[name] != result[name]):
            del result[name]
    return {} if result.keys() <= {"calendar"} else result


def _plain(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an attribute as a scalar: HDF5 stores arrays of one element, Zarr encodes floats."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if name == "_FillValue" and isinstance(value, str) and dtype.kind == "f":
        try:
            return struct.unpack("<d", base64.standard_b64decode(value))[0]
        except (ValueError, struct.error):
            return value
    return value


def decode(x: da.Array, attributes: dict[str, Any]) -> tuple[da.Array, list[str], dict[str, Any]]:
    """Decode an array by its `packing`.

    Returns
    -------
    decoded : dask.array.Array
    notes : list of str
        A line on the decoding, and one on attributes that were not applied.
    applied : dict
        The attributes that were.

    Raises
    ------
    UserError
        If there is no xarray, or it refuses these attributes.
    """
    listed = _listed(attributes)
    try:
        from xarray import Variable
        from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder
        from xarray.conventions import decode_cf_variable
    except ImportError as error:
        raise UserError(
            f"its numbers are packed ({listed}), and xarray, which decodes them, cannot be "
            f"imported ({error}); run `{pip_install('cli')}`"
        ) from error

    def decoded(attributes: dict[str, Any]) -> da.Array:
        packed = Variable(tuple(f"axis{i}" for i in range(x.ndim)), x, attributes)
        # Without cftime, as dates of other calendars would be objects.
        dates = CFDatetimeCoder(use_cftime=False)
        with warnings.catch_warnings():
            # Ignore warnings of odd attributes, and of changes in later versions.
            warnings.simplefilter("ignore")
            data: da.Array = decode_cf_variable(
                "data",
                packed,
                concat_characters=False,
                decode_times=dates,
                decode_timedelta=CFTimedeltaCoder(),
            ).data
        return data

    try:
        result, notes = decoded(attributes), []
    except (ValueError, TypeError, OverflowError, ImportError) as error:
        raw = {name: value for name, value in attributes.items() if name not in TIMES}
        if raw == attributes:
            raise UserError(f"xarray cannot decode its numbers ({listed}): {error}") from error
        times = _listed({name: attributes[name] for name in TIMES if name in attributes})
        notes = [f"not decoded: {times} (NumPy has no such dates), so these are plain numbers"]
        result = decode(x, raw)[0] if raw else x
        attributes = raw
    if attributes:
        notes.insert(0, f"decoded: {_listed(attributes)} ({x.dtype} to {result.dtype})")
    return result, notes, attributes


def _listed(attributes: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in attributes.items())
