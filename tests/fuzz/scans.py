"""Cases of scans: of all dtypes, methods, directions and segments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from fuzz import draw, exact
from fuzz.case import Array, Case, Named, Operand
from fuzz.exact import EPS, Expected

METHODS = ["sequential", "recompute", "blelloch"]
SUMS = ["cumsum", "nancumsum", "cumulative_sum"]
PRODUCTS = ["cumprod", "nancumprod", "cumulative_prod"]
EXTREMA = {"cummax": np.maximum, "cummin": np.minimum}
ROWS = ["SUM", "PROD", "MIN", "MAX", "ANY", "ALL", "COUNT_NONZERO", "LOGADDEXP"]


def draw_scan(rng: draw.Generator) -> Case:
    """Draw a scan by one of our own monoids."""
    name = draw.pick(rng, [*SUMS, *PRODUCTS, *EXTREMA, "cumsum", "cummax", "logcumsumexp", "scan"])
    options: dict[str, Any] = {}
    row = name
    if name == "scan":
        row = draw.pick(rng, ROWS)
        options["monoid"] = Named(f"monoids.{row}")
    kind = kind_of(row)
    dtypes = draw.NUMBERS if kind in ("add", "multiply", "truth") else draw.REAL
    dtype = draw.pick(rng, draw.REAL if row == "LOGADDEXP" else dtypes)
    sides = draw.large_shape(rng) if draw.chance(rng, 0.005) else draw.shape(rng)
    floating = np.dtype(dtype).kind in "fc"
    if kind == "multiply" and floating:
        array = rng.uniform(0.5, 1.5, sides) * np.where(rng.random(sides) < 0.5, 1, -1)
        array = np.where(rng.random(sides) < 0.02, 0, array).astype(dtype)
        if np.prod(sides) > 1000:
            array = np.sign(array.real).astype(dtype)
    elif kind == "log":
        array = draw.values(rng, dtype, sides) if not floating else _logarithms(rng, dtype, sides)
    else:
        array = draw.values(rng, dtype, sides)
    if name.startswith("nan") and floating:
        array = np.where(rng.random(sides) < 0.2, np.nan, array).astype(dtype)
    if name != "scan" and kind in ("add", "multiply") and draw.chance(rng, 0.1):
        output = draw.pick(rng, [d for d in draw.NUMBERS if d != "?"])
        if output in draw.COMPLEX or dtype not in draw.COMPLEX:
            options["dtype"] = output
            array = draw.representable(rng, dtype, output, sides)
            if kind == "multiply" and dtype != "?":
                array = np.sign(array.real).astype(dtype)
    if name in ("cumsum", "nancumsum") and draw.chance(rng, 0.03):
        array, options = draw.long_line(rng), {}
    options |= _keywords(rng, array, name)
    x = draw.operand(rng, array)
    operands = {}
    if name not in ("cumulative_sum", "cumulative_prod"):
        operands = segments(rng, x, options.get("axis"))
    return Case("scan", name, (x,), operands, options, compiled=draw.chance(rng, 0.4))


def _keywords(rng: draw.Generator, array: Array, name: str) -> dict[str, Any]:
    axis = draw.one_axis(rng, array.ndim)
    if axis is None and array.ndim > 1 and name.startswith("cumulative"):
        axis = 0
    options: dict[str, Any] = {} if axis is None else {"axis": axis}
    if name.startswith("cumulative"):
        return options | ({"include_initial": True} if draw.chance(rng, 0.3) else {})
    return options | directions(rng)


def directions(rng: draw.Generator) -> dict[str, Any]:
    """Return keywords of a scan."""
    options: dict[str, Any] = {}
    if draw.chance(rng, 0.4):
        options["method"] = draw.pick(rng, METHODS)
    if draw.chance(rng, 0.3):
        options["reverse"] = True
    if draw.chance(rng, 0.4):
        options[draw.pick(rng, ["exclusive", "include_initial"])] = True
    return options


def segments(rng: draw.Generator, x: Operand, axis: int | None) -> dict[str, Operand]:
    """Return head flags for a scan along an axis, of the elements or of one line; or none."""
    if x.array.ndim == 0 or draw.chance(rng, 0.7):
        return {}
    letters = x.axes
    if draw.chance(rng, 0.5) and (axis is not None or x.array.ndim == 1):
        letters = x.axes[axis or 0]
    sides = tuple(x.array.shape[x.axes.index(letter)] for letter in letters)
    heads = rng.random(sides) < draw.pick(rng, [0, 0.02, 0.3, 1])
    return {"segments": Operand(heads, draw.chunks(rng, sides), letters)}


def row_of(case: Case) -> str:
    """Return the name of the monoid, or of its function."""
    named = case.options.get("monoid")
    return case.function if named is None else named.code.removeprefix("monoids.")


def kind_of(row: str) -> str:
    """Return how a scan is judged."""
    if row in (*SUMS, "SUM"):
        return "add"
    if row in (*PRODUCTS, "PROD"):
        return "multiply"
    if row in ("ANY", "ALL", "COUNT_NONZERO"):
        return "truth"
    return "log" if row in ("logcumsumexp", "LOGADDEXP") else "extremum"


def _logarithms(rng: draw.Generator, dtype: str, sides: tuple[int, ...]) -> Array:
    array = rng.normal(0, draw.pick(rng, [1, 30, 300]), sides)
    if draw.chance(rng, 0.3):
        array = np.where(rng.random(sides) < 0.1, draw.pick(rng, [-np.inf, np.inf, np.nan]), array)
    return array.astype(dtype)


# What is expected.


def scan_lines(case: Case, array: Array, accumulate: Any, identity: Any) -> Array:
    """Return the scan by `accumulate`, a cumulative function of one line, of all segments."""
    axis, heads = case.option("axis"), case.operand("segments")
    heads = np.zeros(array.shape, "?") if heads is None else heads
    if axis is None:
        array, heads, axis = array.ravel(), heads.ravel(), 0
    array = np.moveaxis(array, axis, -1)
    if heads.ndim == array.ndim:
        heads = np.moveaxis(heads, axis, -1)
    heads = np.broadcast_to(heads, array.shape)
    step = -1 if case.option("reverse") else 1
    first = int(bool(case.option("include_initial")))
    n = array.shape[-1]
    result = np.full((*array.shape[:-1], n + first), identity, array.dtype)
    for index in np.ndindex(array.shape[:-1]):
        line = array[index][::step]
        starts = np.flatnonzero(heads[index][::step])
        bounds = [0, *(int(s) for s in starts if s), n]
        target = result[index][::step]
        for a, b in itertools.pairwise(bounds):
            if a == b:
                continue
            scanned = accumulate(line[a:b])
            if case.option("exclusive"):
                target[a + 1 : b] = scanned[:-1]
            else:
                target[a + first : b + first] = scanned
    return np.moveaxis(result, -1, axis)


def result_chunks(case: Case) -> Any:
    """Return the chunks of a scan along an axis: those of `x`, one longer for an initial value."""
    axis = case.option("axis")
    if case.function.startswith("cumulative") and case.x.ndim == 1:
        axis = 0
    if axis is None:
        return None
    chunks = [list(sizes) for sizes in case.inputs[0].chunks]
    if case.option("include_initial"):
        chunks[axis][-1 if case.option("reverse") else 0] += 1
    return tuple(map(tuple, chunks))


def expect_scan(case: Case) -> list[Expected]:
    """Return the scan, element by element."""
    x, name = case.x, case.function
    row = row_of(case)
    kind = kind_of(row)
    skipna = name.startswith("nan") and x.dtype.kind in "fc"
    if skipna:
        x = np.where(np.isnan(x), int(kind == "multiply"), x).astype(x.dtype)
    chunks = result_chunks(case)
    if kind == "truth":
        ufunc = {"ANY": np.logical_or, "ALL": np.logical_and}.get(row)
        if ufunc is None:
            return [Expected(scan_lines(case, (x != 0).astype("i8"), np.cumsum, 0), chunks=chunks)]
        value = scan_lines(case, x != 0, ufunc.accumulate, row == "ALL")
        return [Expected(value, chunks=chunks)]
    if kind == "extremum":
        least = row in ("cummin", "MIN")
        ufunc = np.minimum if least else np.maximum
        value = scan_lines(case, x, ufunc.accumulate, extreme(x.dtype, least))
        return [Expected(value, chunks=chunks)]
    if kind == "log":
        output = np.dtype("f8") if x.dtype.kind in "biu" else x.dtype
        value = scan_lines(case, exact.wide(x), np.logaddexp.accumulate, -np.inf)
        size = np.where(np.isfinite(value), np.abs(value), 0)
        slack = 4 * max(x.size, 1) * EPS * (1 + size)
        return [Expected(value, output, 1.0, slack, chunks)]
    function = np.cumsum if kind == "add" else np.cumprod
    neutral = int(kind == "multiply")
    output = np.dtype(case.option("dtype") or function(np.ones(1, x.dtype)).dtype)
    if "dtype" in case.options or output.kind in "biu":
        x = x.astype(output)
    if output.kind in "biu":
        return [Expected(scan_lines(case, x, function, neutral), chunks=chunks)]
    if kind == "multiply":
        value = scan_lines(case, exact.wide(x), function, neutral)
        slack = x.size * EPS * np.abs(value) + np.finfo("f8").tiny
        return [Expected(value, output, 1.0, slack, chunks)]
    w = exact.wide(x)
    value = scan_lines(case, w, exact.running, 0)
    ulps = exact.SCAN_ULPS[output.type(0).real.dtype.itemsize]
    slack: Any = 0.0
    if not exact.same_sign(x):
        slack = exact.SCAN_MIXED * EPS * scan_lines(case, exact.sizes(x), np.cumsum, 0)
    return [Expected(value, output, ulps, slack, chunks)]


def extreme(dtype: np.dtype[Any], least: bool) -> Any:
    """Return the identity of a running minimum or maximum."""
    if dtype.kind == "b":
        return least
    if dtype.kind == "f":
        return np.inf if least else -np.inf
    return np.iinfo(dtype).max if least else np.iinfo(dtype).min
