"""Cases of one's own monoids, by one combination after the other; and of NumPy's ufuncs."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

import dask_coop as dc
from fuzz import draw, scans
from fuzz.case import Array, Case, Named
from fuzz.exact import Expected
from fuzz.reductions import kept_chunks, lines_of

# States of unsigned integers wrap, so that any grouping gives the same bits.
AFFINE = dc.Monoid(
    "affine",
    combine=lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
    identity=(1, 0),
    dtype=[("slope", "u8"), ("offset", "u4")],
    lift=lambda x: (x.astype("u8") * 2 + 1, x.astype("u4")),
    finalize=lambda f: f[1],
    cuda={
        "lift": "{u64(x) * 2 + 1, unsigned(x)}",
        "combine": "{a.slope * b.slope, unsigned(b.slope * a.offset + b.offset)}",
    },
)
LAST = dc.Monoid(
    "last_valid",
    combine=lambda a, b: np.where(np.isnan(b), a, b),
    identity=np.nan,
    dtype="f4",
    cuda="b != b ? a : b",
)
SPAN = dc.Monoid(
    "span",
    combine=lambda a, b: (np.minimum(a[0], b[0]), np.maximum(a[1], b[1])),
    identity=(np.inf, -np.inf),
    dtype=[("low", "f8"), ("high", "f8")],
    lift=lambda x: (x, x),
    finalize=lambda s: s[1] - s[0],
    cuda={"lift": "{x, x}", "combine": "{min(a.low, b.low), max(a.high, b.high)}"},
    commutative=True,
)
GREATEST = dc.Monoid("greatest", np.maximum, -np.inf, "f8", cuda="a > b ? a : b", commutative=True)
XOR = dc.Monoid("xor", np.bitwise_xor, 0, "i8", cuda="a ^ b", commutative=True)
FIRST = dc.Monoid(
    "first",
    combine=lambda a, b: np.where(a == 0, b, a),
    identity=0,
    dtype="i4",
    cuda="a == 0 ? b : a",
)

# States with vectors, whose functions see an axis more; of the second there are two results.
HASHES = dc.Monoid(
    "hashes",
    combine=lambda a, b: ((a[0] * b[1][..., None] + b[0]).astype("u2"), a[1] * b[1]),
    identity=(0, 1),
    dtype=[("hash", "u2", (3,)), ("power", "u4")],
    lift=lambda x: ((x[..., None] * np.array([1, 3, 5])).astype("u2"), 31),
    finalize=lambda s: s[0][..., 0] ^ s[0][..., 1] ^ s[0][..., 2],
    cuda={
        "lift": """
            State s = {{}, 31};
            for (int i = 0; i < 3; ++i) s.hash[i] = x * (1 + 2 * i);
            return s;
        """,
        "combine": """
            for (int i = 0; i < 3; ++i) b.hash[i] += a.hash[i] * b.power;
            b.power *= a.power;
            return b;
        """,
    },
)
TOP = dc.Monoid(
    "top",
    combine=lambda a, b: np.sort(np.concatenate([a, b], -1), -1)[..., 2:],
    identity=-np.inf,
    dtype=("f4", (2,)),
    lift=lambda x: np.stack([np.full_like(x, -np.inf, "f4"), x.astype("f4")], -1),
    finalize=lambda v: (v[..., 1], v[..., 0] < 3),
    cuda={
        "lift": "State s = identity(); s.value[1] = x; return s;",
        "combine": """
            auto low = a.value[1] < b.value[1] ? a.value[1] : b.value[1];
            auto high = a.value[1] < b.value[1] ? b.value[1] : a.value[1];
            if (low < a.value[0]) low = a.value[0];
            if (low < b.value[0]) low = b.value[0];
            return {low, high};
        """,
    },
    commutative=True,
)

#: The monoids by name, with the dtypes of the elements that they are tried with.
MONOIDS = {
    "AFFINE": ["u1", "i4", "i8"],
    "XOR": ["u1", "i8"],
    "FIRST": ["i4"],
    "LAST": ["f4", "f2"],
    "SPAN": ["f4", "u1"],
    "GREATEST": ["f4", "u1"],
    "HASHES": ["u1", "i4", "i8"],
    "TOP": ["f4", "u1"],
}


def draw_own(rng: draw.Generator) -> Case:
    """Draw a reduction or a scan by one's own monoid."""
    name = draw.pick(rng, list(MONOIDS))
    monoid = globals()[name]
    dtype, sides = draw.pick(rng, MONOIDS[name]), draw.shape(rng)
    array = rng.integers(0, 10, sides).astype(dtype)
    if name in ("LAST", "FIRST"):
        nothing = np.nan if name == "LAST" else 0
        rate = draw.pick(rng, [0.3, 0.95])
        array = np.where(rng.random(sides) < rate, nothing, array).astype(dtype)
    x = draw.operand(rng, array)
    options: dict[str, Any] = {"monoid": Named(f"own.{name}")}
    if draw.chance(rng, 0.5):
        several = monoid.commutative or array.ndim < 2
        axis = draw.axis(rng, array.ndim) if several else draw.one_axis(rng, array.ndim)
        axis = 0 if axis is None and not several else axis
        options |= {} if axis is None else {"axis": axis}
        options |= draw.keepdims(rng) | draw.split_every(rng)
        return Case("own", "reduce", (x,), {}, options, compiled=draw.chance(rng, 0.3))
    axis = draw.one_axis(rng, array.ndim)
    options |= {} if axis is None else {"axis": axis}
    options |= scans.directions(rng)
    operands = scans.segments(rng, x, axis)
    return Case("own", "scan", (x,), operands, options, compiled=draw.chance(rng, 0.3))


#: The ufuncs that are monoids, with the dtypes of which they round nothing.
UFUNCS = {
    **dict.fromkeys(["add", "multiply"], draw.BOOL + draw.INTS),
    **dict.fromkeys(["maximum", "minimum"], draw.REAL),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], draw.NUMBERS),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], draw.BOOL + draw.INTS),
}


def draw_ufunc(rng: draw.Generator) -> Case:
    """Draw a reduction or a scan by a ufunc."""
    name = draw.pick(rng, list(UFUNCS))
    array = draw.values(rng, draw.pick(rng, UFUNCS[name]), draw.shape(rng, least=1))
    options: dict[str, Any] = {"monoid": Named(f"np.{name}")}
    x = draw.operand(rng, array)
    if draw.chance(rng, 0.5):
        axis = draw.axis(rng, array.ndim)
        options |= {} if axis is None else {"axis": axis}
        options |= draw.keepdims(rng) | draw.split_every(rng)
        return Case("ufunc", "reduce", (x,), {}, options, compiled=draw.chance(rng, 0.3))
    axis = draw.one_axis(rng, array.ndim)
    options |= {} if axis is None else {"axis": axis}
    if draw.chance(rng, 0.4):
        options["method"] = draw.pick(rng, scans.METHODS)
    if draw.chance(rng, 0.3):
        options["reverse"] = True
    operands = scans.segments(rng, x, axis)
    return Case("ufunc", "scan", (x,), operands, options, compiled=draw.chance(rng, 0.3))


def expect_ufunc(case: Case) -> list[Expected]:
    """Return what the ufunc's own reduce and accumulate do."""
    ufunc, dtype = case.option("monoid"), case.x.dtype
    if case.function == "reduce":
        axis, keepdims = case.option("axis"), case.option("keepdims", False)
        value = ufunc.reduce(case.x, axis=axis, keepdims=keepdims)
        return [Expected(value, chunks=kept_chunks(case))]
    dtype = ufunc.accumulate(np.ones(1, dtype)).dtype
    x = case.x != 0 if ufunc.__name__.startswith("logical") else case.x.astype(dtype)
    value = scans.scan_lines(case, x, ufunc.accumulate, 0)
    return [Expected(value, dtype, chunks=scans.result_chunks(case))]


def expect_own(case: Case) -> list[Expected]:
    """Return what loops over elements make."""
    monoid = case.option("monoid")
    states = np.empty(case.x.shape, object)
    fields = [np.broadcast_to(f, case.x.shape) for f in monoid.lift(case.x)]
    for index in np.ndindex(case.x.shape):
        states[index] = tuple(f[index] for f in fields)
    identity = monoid.identity(case.x.dtype)
    if case.function == "scan":
        found = scans.scan_lines(case, states, _accumulate(monoid), None)
        found = np.frompyfunc(lambda s: identity if s is None else s, 1, 1)(found)
        chunks = scans.result_chunks(case)
        return [Expected(value, chunks=chunks) for value in _finish(monoid, found)]
    lines, _ = lines_of(case, states)
    found = np.empty(lines.shape[:-1], object)
    for index in np.ndindex(found.shape):
        found[index] = reduce(monoid.combine, lines[index], identity)
    return [Expected(value, chunks=kept_chunks(case)) for value in _finish(monoid, found)]


def _accumulate(monoid: Any) -> Any:
    def scan(line: Array) -> Array:
        result = np.empty(len(line), object)
        result[:] = [*accumulate(line, monoid.combine)]
        return result

    return scan


def _finish(monoid: Any, states: Any) -> tuple[Any, ...]:
    """Return the results of states."""
    dtypes = monoid.dtypes(np.dtype("f8"))
    states = np.asarray(states, object)
    fields = []
    for i, dtype in enumerate(dtypes):
        values = np.empty(states.shape, dtype)
        for index in np.ndindex(states.shape):
            values[index] = states[index][i]
        fields.append(values)
    results = monoid.finalize(tuple(fields))
    return results if isinstance(results, tuple) else (results,)
