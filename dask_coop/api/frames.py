"""Series and frames of dask.dataframe, of which public functions take the values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dask_coop.api.planning import convert_parts

P = ParamSpec("P")
R = TypeVar("R")


def with_values(function: Callable[P, R]) -> Callable[P, R]:
    """Return a public function that takes series and frames, too, as arrays of their values."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Who has a series has imported it.
        if "dask.dataframe" not in sys.modules:
            return function(*args, **kwargs)
        given: Any = [convert_parts(_values, value) for value in args]
        named: Any = {name: convert_parts(_values, value) for name, value in kwargs.items()}
        return function(*given, **named)

    return call


def _values(value: Any) -> Any:
    # How many rows a partition has is known to nobody before it is computed.
    return value.to_dask_array() if hasattr(type(value), "to_dask_array") else value
