"""An expression that holds the graph of an array; only imported if Dask plans queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dask._collections import new_collection
from dask.array._array_expr._expr import ArrayExpr
from dask.array.core import Array
from dask.utils import ensure_dict


def express(x: Array) -> Any:
    """Return an array of expressions with the blocks and the keys of an array of a graph."""
    return new_collection(GraphExpr(_Holder(x)))


@dataclass(frozen=True)
class _Holder:
    """An array wrapped so that Dask does not treat it as an operand to plan."""

    array: Array

    def __dask_tokenize__(self) -> str:
        return str(self.array.name)


class GraphExpr(ArrayExpr):  # type: ignore[misc]
    """An array whose graph is known, so that it needs no lowering."""

    _parameters: ClassVar[list[str]] = ["holder"]

    @property
    def _array(self) -> Array:
        return self.operand("holder").array

    @property
    def _name(self) -> str:
        return str(self._array.name)

    @property
    def _meta(self) -> Any:
        return self._array._meta

    @property
    def chunks(self) -> Any:
        """The sizes of blocks along each axis."""
        return self._array.chunks

    def _layer(self) -> dict[Any, Any]:
        return dict(ensure_dict(self._array.dask))
