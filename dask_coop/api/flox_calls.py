"""Temporary."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.api import group_scans, grouped
from dask_coop.api.public import strict


def groupby_reduce(
    array: Any,
    *by: Any,
    func: Any,
    method: Any = None,
    engine: Any = None,
    reindex: Any = None,
    fill_value: Any = None,
    **kwargs: Any,
) -> Any:
    from flox.xrdtypes import NA

    if fill_value is NA:
        fill_value = array.dtype.type("NaT") if array.dtype.kind in "mM" else np.nan
    return strict(grouped.groupby_reduce)(array, *by, func=func, fill_value=fill_value, **kwargs)


def groupby_scan(
    array: Any, *by: Any, func: Any, method: Any = None, engine: Any = None, **kwargs: Any
) -> Any:
    return strict(group_scans.groupby_scan)(array, *by, func=func, **kwargs)
