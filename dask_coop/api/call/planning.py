"""Dask's two kinds of array: that of graphs, and that of expressions (``array.query-planning``).

The library is written for arrays of graphs. With query planning on, Dask hands out arrays of
expressions, whose graphs are not known before they are lowered. A public function then sees arrays
of the lowered graphs, and what it returns becomes an expression that is low already::

    expression --lower--> graph --the function--> graph --GraphExpr--> expression

So planning ends at our functions, and begins anew behind them.

Series and frames of dask.dataframe become arrays of their values on the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import dask.array as da
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph

P = ParamSpec("P")
R = TypeVar("R")


def call_with_graphs(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of graphs with, and for, the kind of array that Dask is set to."""
    if not da.array_expr_enabled():
        return function(*args, **kwargs)
    lowered: Any = convert_parts(_to_graph, args)
    named: Any = {name: convert_parts(_to_graph, value) for name, value in kwargs.items()}
    result = function(*lowered, **named)
    # Calls with arrays of graphs are those of our functions, which go on with them.
    inside = _holds_graph((args, tuple(kwargs.values())))
    converted: R = result if inside else convert_parts(_to_expression, result)
    return converted


def convert_parts(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert a value, or what a tuple, a named one or not, or a list holds."""
    if not isinstance(value, tuple | list):
        return convert(value)
    parts = [convert_parts(convert, part) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _holds_graph(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_graph, value))
    return isinstance(value, Array)


def _to_graph(value: Any) -> Any:
    if not isinstance(value, da.Array):
        return value
    lowered = value.expr.lower_completely()
    graph = HighLevelGraph.from_collections(lowered.name, lowered.__dask_graph__())
    return Array(graph, lowered.name, lowered.chunks, meta=lowered._meta)


def _to_expression(value: Any) -> Any:
    if not isinstance(value, Array):
        return value
    from dask_coop.api.call.expressions import express

    return express(value)


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
