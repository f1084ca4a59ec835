"""Arrays of graphs, on which the library works, and arrays of expressions.

Arrays of expressions have a graph only once they are lowered: Dask's with query planning
(``array.query-planning``), and those of the package dask-array. A public function gets arrays of
the lowered graphs, and its result becomes an expression that needs no lowering::

    Dask's        expression --lower--> graph --the function--> graph --GraphExpr--> expression
    dask-array's  expression --lower--> graph --the function--> graph --from_graph-> expression

So planning ends before our functions, and starts anew after them.

Series and frames of dask.dataframe become arrays of their values here, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import dask.array as da
import numpy as np
from dask.array.core import Array
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dask_coop.errors import Refused

P = ParamSpec("P")
R = TypeVar("R")


def call_with_graphs(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of graph arrays; convert arrays of expressions, and then the results."""
    planned = _call_planned if da.array_expr_enabled() else _call
    result: R = call_with_dasks(planned, function, *args, **kwargs)
    return result


def _call(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


def _call_planned(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    lowered: Any = convert_parts(_to_graph, args)
    named: Any = {name: convert_parts(_to_graph, value) for name, value in kwargs.items()}
    result = function(*lowered, **named)
    # Only our own functions pass arrays of graphs, and expect them back.
    inside = _holds((args, *kwargs.values()), Array)
    converted: R = result if inside else convert_parts(_to_expression, result)
    return converted


def convert_parts(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert a value, or all values in nested tuples, named tuples and lists."""
    if not isinstance(value, tuple | list):
        return convert(value)
    parts = [convert_parts(convert, part) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def call_with_dasks(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of Dask's arrays; convert those of dask-array, and then the results."""
    theirs = _their_class()
    if theirs is None:
        return function(*args, **kwargs)
    inputs: list[tuple[Any, Array]] = []

    def lower(value: Any) -> Any:
        if not isinstance(value, theirs):
            return value
        inputs.append((value, _to_dasks(value)))
        return inputs[-1][1]

    lowered: Any = convert_parts(lower, args)
    named: Any = {name: convert_parts(lower, value) for name, value in kwargs.items()}
    if not inputs:
        return function(*args, **kwargs)
    result = function(*lowered, **named)
    if any(x.name != array.name for x, array in inputs):
        raise Refused("out= takes no array of dask-array; leave it off and use the result")
    converted: R = convert_parts(_to_theirs, result)
    return converted


def holds_theirs(value: Any) -> bool:
    """Tell whether a value, or one in nested tuples and lists, is an array of dask-array."""
    theirs = _their_class()
    return theirs is not None and _holds(value, theirs)


def _their_class() -> Any:
    # Their arrays cannot exist before their package is imported.
    return getattr(sys.modules.get("dask_array"), "Array", None)


def with_expressions(function: Callable[P, R]) -> Callable[P, R]:
    """Return a public function that also takes arrays of dask-array, and then returns such."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return call_with_dasks(function, *args, **kwargs)

    return call


def _to_dasks(x: Any) -> Array:
    """Return an array of dask-array as one of Dask's, with the same keys."""
    graph = held_graph(x.expr)
    if graph is None or x.name not in graph.layers:
        graph = HighLevelGraph.from_collections(x.name, x.__dask_graph__())
    return Array(graph, x.name, x.chunks, dtype=x.dtype, meta=x._meta)


def _to_theirs(value: Any) -> Any:
    if not isinstance(value, Array | da.Array):
        return value
    from dask_array.core import from_graph

    x = value if isinstance(value, Array) else _to_graph(value)
    return from_graph(x.dask, x._meta, x.chunks, [*flatten(x.__dask_keys__())], x.name)


def held_graph(expression: Any) -> HighLevelGraph | None:
    """Return the layered graph that an expression holds, or None."""
    graph = getattr(getattr(expression, "_array", None), "dask", None)
    if graph is None:
        graph = getattr(expression, "layer", None)
    return graph if isinstance(graph, HighLevelGraph) else None


def _holds(value: Any, kind: type[Any]) -> bool:
    if isinstance(value, tuple | list):
        return any(_holds(part, kind) for part in value)
    return isinstance(value, kind)


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
        # A series cannot exist before pandas is imported.
        if "pandas" not in sys.modules:
            return function(*args, **kwargs)
        converted: Any = [convert_parts(_values, value) for value in args]
        named: Any = {name: convert_parts(_values, value) for name, value in kwargs.items()}
        return function(*converted, **named)

    return call


def _values(value: Any) -> Any:
    # The numbers of rows stay unknown until the partitions are computed.
    if hasattr(type(value), "to_dask_array"):
        return value.to_dask_array()
    # Indices of pandas are expected groups, too.
    return value.to_numpy() if isinstance(value, _pandas_classes()) else value


def _pandas_classes() -> tuple[type[Any], ...]:
    pandas = sys.modules.get("pandas")
    classes = (getattr(pandas, name, None) for name in ("Series", "DataFrame"))
    return tuple(cls for cls in classes if isinstance(cls, type))


def columns_of(value: Any) -> dict[Any, Any] | None:
    """Return the columns of a frame as arrays, or a mapping's; None of anything else.

    Nullable numbers become float64, and strings and categories objects.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if not hasattr(type(value), "iterrows") or not hasattr(value, "columns"):
        return None
    return {name: _column(value[name]) for name in value.columns}


def _column(column: Any) -> Any:
    dtype = column.dtype
    if not isinstance(dtype, np.dtype):
        # Dates with a time zone are those of UTC.
        to: Any = "f8" if getattr(dtype, "_is_numeric", False) else object
        column = column.astype("M8[ns]" if getattr(dtype, "tz", None) is not None else to)
    return _values(column)
