"""Dask's two kinds of array: those of graphs, and those of expressions (``array.query-planning``).

The library works on arrays of graphs. With query planning, Dask makes arrays of expressions, which
have a graph only once they are lowered. A public function then gets arrays of the lowered graphs,
and its result becomes an expression that needs no lowering::

    expression --lower--> graph --the function--> graph --GraphExpr--> expression

So planning ends before our functions, and starts anew after them.

Series and frames of dask.dataframe become arrays of their values here, too.
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
    """Call a function of graph arrays; convert arguments and results if Dask plans queries."""
    if not da.array_expr_enabled():
        return function(*args, **kwargs)
    lowered: Any = convert_parts(_to_graph, args)
    named: Any = {name: convert_parts(_to_graph, value) for name, value in kwargs.items()}
    result = function(*lowered, **named)
    # Only our own functions pass arrays of graphs, and expect them back.
    inside = _holds_graph((args, tuple(kwargs.values())))
    converted: R = result if inside else convert_parts(_to_expression, result)
    return converted


def convert_parts(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert a value, or all values in nested tuples, named tuples and lists."""
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
    """Return a public function that also takes series and frames, as arrays of their values."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # A series cannot exist before dask.dataframe is imported.
        if "dask.dataframe" not in sys.modules:
            return function(*args, **kwargs)
        converted: Any = [convert_parts(_values, value) for value in args]
        named: Any = {name: convert_parts(_values, value) for name, value in kwargs.items()}
        return function(*converted, **named)

    return call


def _values(value: Any) -> Any:
    # The numbers of rows stay unknown until the partitions are computed.
    return value.to_dask_array() if hasattr(type(value), "to_dask_array") else value
