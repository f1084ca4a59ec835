"""Vectors of eight float64 for compiled loops, held in one register where processors have one.

Numba does not vectorize code on single elements, except in loops along memory. These vectors are
values of a type of their own, which LLVM compiles for any processor, in as many steps as it needs.
They are loaded from arrays of floats of any width, with contiguous elements, and stored to arrays
of floats or integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _numba_intrinsic
from numba.extending import models, register_model

#: The number of lanes.
LANES = 8

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


class Lanes(types.Type):  # type: ignore[misc]
    """The type of eight float64."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _VECTOR)


_lanes = Lanes()


def _intrinsic(function: Callable[..., Any]) -> Any:
    return _numba_intrinsic(function)


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _read(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    element = context.get_data_type(kind.dtype)
    where = _address(context, builder, kind, array, index)
    pointer = builder.bitcast(where, ir.VectorType(element, LANES).as_pointer())
    value = builder.load(pointer, align=kind.dtype.bitwidth // 8)
    return value if kind.dtype is types.float64 else builder.fpext(value, _VECTOR)


def _write(context: Any, builder: Any, value: Any, kind: Any, array: Any, index: Any) -> None:
    vector = ir.VectorType(context.get_data_type(kind.dtype), LANES)
    where = _address(context, builder, kind, array, index)
    if isinstance(kind.dtype, types.Integer):
        value = builder.fptosi(value, vector)
    elif kind.dtype is not types.float64:
        value = builder.fptrunc(value, vector)
    builder.store(
        value, builder.bitcast(where, vector.as_pointer()), align=kind.dtype.bitwidth // 8
    )


@_intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Return the eight elements of an array that start at an index."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _read(context, builder, signature.args[0], *given)

    return _lanes(array, types.uint64), generate


@_intrinsic
def store(typing: Any, value: Any, array: Any, index: Any) -> Any:
    """Store lanes in an array, starting at an index."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        _write(context, builder, given[0], signature.args[1], *given[1:])
        return context.get_dummy_value()

    return types.void(_lanes, array, types.uint64), generate


@_intrinsic
def splat(typing: Any, value: Any) -> Any:
    """Return a vector with a float in each lane."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        nothing, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(nothing, given[0], first)
        return _pick(builder, one, nothing, [0] * LANES)

    return _lanes(types.float64), generate


def _binary(name: str) -> Any:
    def operation(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return getattr(builder, name)(*given)

        return _lanes(_lanes, _lanes), generate

    return _intrinsic(operation)


#: Arithmetic, lane by lane.
plus: Any = _binary("fadd")
minus: Any = _binary("fsub")
times: Any = _binary("fmul")
over: Any = _binary("fdiv")


@_intrinsic
def root(typing: Any, value: Any) -> Any:
    """Return square roots; negative values are returned as they are."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f64")
        below = builder.fcmp_ordered("<", given[0], ir.Constant(_VECTOR, [0.0] * LANES))
        return builder.select(below, given[0], builder.call(function, given))

    return _lanes(_lanes), generate


def _chosen(relation: str) -> Any:
    def choose(typing: Any, a: Any, b: Any, value: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            is_so = builder.fcmp_ordered(relation, given[0], given[1])
            return builder.select(is_so, given[2], given[3])

        return _lanes(_lanes, _lanes, _lanes, _lanes), generate

    return _intrinsic(choose)


#: In each lane, the third of four values where the first is less than the second, else the last.
where_less: Any = _chosen("<")

#: The same, but only where neither of the first two is NaN.
where_known: Any = _chosen("ord")


def _pick(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), lanes)
    return builder.shuffle_vector(a, b, mask)


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the transpose of eight rows: swap neighbours, then pairs, then fours."""
    for size in (1, 2, 4):
        low = [i if not i & size else LANES + i - size for i in range(LANES)]
        high = [i + size if not i & size else LANES + i for i in range(LANES)]
        found = [*rows]
        for i in range(LANES):
            if not i & size:
                pair = rows[i], rows[i + size]
                found[i], found[i + size] = _pick(builder, *pair, low), _pick(builder, *pair, high)
        rows = found
    return rows


def _each(context: Any, builder: Any, kind: Any, places: Any, first: Any, row: Any) -> Any:
    """Yield the indices of a row in each of eight lines, which begin at `places`."""
    for k in range(LANES):
        index = builder.add(first, ir.Constant(first.type, k))
        where = _address(context, builder, kind, places, index)
        yield builder.add(builder.load(where), row)


@_intrinsic
def turn_in(typing: Any, array: Any, places: Any, first: Any, row: Any, to: Any, index: Any) -> Any:
    """Load eight elements of each of eight lines into `to`, those of a row side by side.

    The lines begin at the indices in `places` from `first` on; the elements are `row` further.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array, places, first, row, to, index = given
        of_array, of_places, *_, of_to, _ = signature.args
        where = _each(context, builder, of_places, places, first, row)
        lines = [_read(context, builder, of_array, array, i) for i in where]
        for k, value in enumerate(_turned(builder, lines)):
            place = builder.add(index, ir.Constant(index.type, k * LANES))
            _write(context, builder, value, of_to, to, place)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(array, places, whole, whole, to, whole), generate


@_intrinsic
def turn_out(
    typing: Any, found: Any, index: Any, array: Any, places: Any, first: Any, row: Any
) -> Any:
    """Do the opposite of `turn_in`."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        found, index, array, places, first, row = given
        of_found, _, of_array, of_places, *_ = signature.args
        rows = []
        for k in range(LANES):
            place = builder.add(index, ir.Constant(index.type, k * LANES))
            rows.append(_read(context, builder, of_found, found, place))
        where = _each(context, builder, of_places, places, first, row)
        for value, i in zip(_turned(builder, rows), where, strict=True):
            _write(context, builder, value, of_array, array, i)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(found, whole, array, places, whole, whole), generate


@_intrinsic
def expect(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the element at an index, which may lie outside the array."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        where = builder.bitcast(_address(context, builder, signature.args[0], *given), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # The arguments: prefetch for writing or not, temporal locality, and data instead of code.
        writes = 1 if signature.args[0].mutable else 0
        builder.call(function, [where, word(writes), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
