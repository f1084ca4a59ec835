"""Cases of reductions: of all dtypes, axes, masks and options."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz import draw, exact
from fuzz.case import Array, Case, Chunks, Named, Operand
from fuzz.exact import EPS, Expected

FOLDS = ["sum", "nansum", "prod", "nanprod", "mean", "nanmean"]
EXTREMA = ["min", "max", "nanmin", "nanmax", "ptp"]
INDICES = ["argmin", "argmax", "nanargmin", "nanargmax"]
TRUTHS = ["any", "all", "count_nonzero"]
SPREADS = ["var", "std", "nanvar", "nanstd"]

#: The dtypes of elements that a function is tried with; by default all.
DTYPES = {
    "moment": draw.REAL,
    "ptp": [dtype for dtype in draw.NUMBERS if dtype != "?"],
}


def draw_fold(rng: draw.Generator) -> Case:
    """Draw a sum, a product or a mean."""
    name = draw.pick(rng, [*FOLDS, "sum", "sum", "mean"])
    options: dict[str, Any] = {}
    dtype = draw.pick(rng, draw.NUMBERS)
    sides = _sides(rng, name)
    if draw.chance(rng, 0.15):
        output = draw.pick(rng, [d for d in draw.NUMBERS if d != "?"])
        whole = np.dtype(output).kind in "iu" and np.dtype(dtype).kind in "fc"
        narrows = dtype in draw.COMPLEX and output not in draw.COMPLEX
        # A mean of what may be NaN is refused as an integer.
        if not narrows and not (whole and name == "nanmean"):
            options["dtype"] = output
    if "dtype" in options:
        array = draw.representable(rng, dtype, options["dtype"], sides)
    elif "prod" in name and np.dtype(dtype).kind in "fc":
        array = _factors(rng, dtype, sides)
        if name == "nanprod" and draw.chance(rng, 0.5):
            array = np.where(rng.random(sides) < 0.2, np.nan, array).astype(dtype)
    else:
        array = draw.values(rng, dtype, sides)
    if name in ("sum", "nansum", "mean") and draw.chance(rng, 0.02):
        array, options = draw.long_line(rng), {}
    if name in ("sum", "nansum", "mean", "nanmean") and draw.chance(rng, 0.1):
        options["reproducible"] = True
    if "mean" not in name and draw.chance(rng, 0.15):
        options["initial"] = draw.pick(rng, [0, 1, 3])
    return case_of(rng, "fold", name, array, options, where=True)


def draw_extremum(rng: draw.Generator) -> Case:
    """Draw an extremum, or where one is."""
    name = draw.pick(rng, [*EXTREMA, *INDICES])
    array = draw.values(rng, draw.pick(rng, DTYPES.get(name, draw.NUMBERS)), _sides(rng, name))
    options: dict[str, Any] = {}
    if name in INDICES:
        options = {"axis": draw.one_axis(rng, array.ndim)}
    elif name != "ptp" and draw.chance(rng, 0.3):
        options["initial"] = draw.pick(rng, [0, 1, 100])
    return case_of(rng, "extremum", name, array, options, where="initial" in options)


def draw_truth(rng: draw.Generator) -> Case:
    """Draw any, all or count_nonzero."""
    name = draw.pick(rng, TRUTHS)
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), _sides(rng, name))
    if draw.chance(rng, 0.5):
        array = np.where(rng.random(array.shape) < 0.9, array.dtype.type(name == "all"), array)
    return case_of(rng, "truth", name, array, {}, where=name != "count_nonzero")


def draw_spread(rng: draw.Generator) -> Case:
    """Draw a variance, a standard deviation or a central moment."""
    name = draw.pick(rng, [*SPREADS, "moment"])
    dtype = draw.pick(rng, DTYPES.get(name, draw.NUMBERS))
    array = draw.values(rng, dtype, _sides(rng, name))
    options: dict[str, Any] = {}
    if name == "moment":
        array = np.array([0, 1, 2, 5])[rng.integers(4, size=array.shape)].astype(dtype)
        options["order"] = int(rng.integers(0, 5))
    if draw.chance(rng, 0.4):
        options["ddof"] = draw.pick(rng, [1, 0.5, 3])
    return case_of(rng, "spread", name, array, options, where=name != "moment")


def draw_description(rng: draw.Generator) -> Case:
    """Draw a description."""
    array = draw.values(rng, draw.pick(rng, draw.REAL), _sides(rng, "describe"))
    return case_of(rng, "describe", "describe", array, {})


def draw_norm(rng: draw.Generator) -> Case:
    """Draw a norm of vectors or matrices, whose powers no dtype is too narrow for."""
    sides = tuple(int(n) for n in rng.integers(1, 7, int(rng.integers(1, 4))))
    dtype = draw.pick(rng, draw.NUMBERS)
    array = rng.integers(1, 4, sides).astype(dtype)
    if array.dtype.kind == "c":
        array = array * array.dtype.type(0.6 - 0.8j)
    vector = len(sides) == 1 or draw.chance(rng, 0.5)
    orders = [None, 1, -1, Named("np.inf"), Named("-np.inf")]
    orders += [2, 0, 3, 0.5, -2] if vector else ["fro"]
    options: dict[str, Any] = {"ord": draw.pick(rng, orders)}
    if vector:
        options["axis"] = int(rng.integers(-len(sides), len(sides)))
    elif len(sides) > 2 or draw.chance(rng, 0.5):
        options["axis"] = tuple(int(a) for a in rng.permutation(len(sides))[:2])
    whole = options["ord"] in (None, "fro", 2)
    if whole and draw.chance(rng, 0.2):
        options["reproducible"] = True
        if draw.chance(rng, 0.3):
            options.pop("axis", None)
            array = array.ravel()[0]
    return case_of(rng, "norm", "norm", array, options)


def _sides(rng: draw.Generator, name: str) -> tuple[int, ...]:
    return draw.large_shape(rng) if draw.chance(rng, 0.005) else draw.shape(rng)


def _factors(rng: draw.Generator, dtype: str, sides: tuple[int, ...]) -> Array:
    """Return numbers of which any product is a normal float64."""
    size = rng.uniform(0.7, 1.4, sides) ** (1 if np.prod(sides) < 2000 else 0)
    array = np.where(rng.random(sides) < 0.5, size, -size).astype(dtype)
    return array * array.dtype.type(0.6 + 0.8j) if array.dtype.kind == "c" else array


def case_of(
    rng: draw.Generator,
    family: str,
    name: str,
    array: Array,
    options: dict[str, Any],
    where: bool = False,
) -> Case:
    """Return the case with the options that all reductions share."""
    if "axis" not in options and name != "norm":
        options["axis"] = draw.axis(rng, array.ndim)
    if options.get("axis", 0) is None:
        del options["axis"]
    options |= draw.keepdims(rng)
    if name != "norm":
        options |= draw.split_every(rng)
    x = draw.operand(rng, array)
    operands = {}
    if where and array.ndim and draw.chance(rng, 0.2):
        operands["where"] = _mask(rng, x)
    return Case(family, name, (x,), operands, options, compiled=draw.chance(rng, 0.4))


def _mask(rng: draw.Generator, x: Operand) -> Operand:
    """Return a mask that broadcasts to the shape of `x`."""
    first = int(rng.integers(0, x.array.ndim)) if draw.chance(rng, 0.3) else 0
    sides, letters = [], ""
    for n, letter in list(zip(x.array.shape, x.axes, strict=True))[first:]:
        broadcast = n > 0 and draw.chance(rng, 0.15)
        sides.append(1 if broadcast else n)
        letters += " " if broadcast else letter
    mask = rng.random(sides) < draw.pick(rng, [0, 0.5, 0.9, 1])
    return Operand(mask, draw.chunks(rng, mask.shape), letters)


# What is expected.


def _arguments(case: Case) -> dict[str, Any]:
    return {"axis": case.option("axis"), "keepdims": case.option("keepdims", False)}


def kept_chunks(case: Case) -> Chunks:
    """Return the chunks of a reduction: those of the axes that are left."""
    ndim, axis = case.x.ndim, case.option("axis")
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    reduced = {a % ndim for a in axes} if ndim else set()
    chunks = case.inputs[0].chunks
    if case.option("keepdims", False):
        return tuple((1,) if d in reduced else chunks[d] for d in range(ndim))
    return tuple(chunks[d] for d in range(ndim) if d not in reduced)


def lines_of(case: Case, states: Array | None = None) -> tuple[Array, Array]:
    """Return the lines that are reduced, behind the axes that are left, and what counts of them.

    With `states`, which stand for the elements, these are lines of them.
    """
    x, axis = case.x if states is None else states, case.option("axis")
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [a % x.ndim for a in axes]
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    if case.option("keepdims"):
        shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
    n = int(np.prod([x.shape[d] for d in axes], dtype=int))
    where = case.operand("where")
    valid = case.inputs[0].valid & (True if where is None else where)
    lines, valid = (a.transpose([*kept, *axes]).reshape(*shape, n) for a in (x, valid))
    return lines, valid


def _valid(case: Case) -> Any:
    valid = case.operand("where")
    valid = np.True_ if valid is None else valid
    if case.function.startswith("nan") and case.x.dtype.kind in "fc":
        valid = valid & ~np.isnan(case.x)
    return valid


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.type(0).real.dtype


def _count(case: Case) -> Any:
    counted = np.broadcast_to(_valid(case), case.x.shape)
    return counted.sum(**_arguments(case))


def expect_fold(case: Case) -> list[Expected]:
    """Return sums, products and means, in exact arithmetic where they round."""
    x, name = case.x, case.function.removeprefix("nan")
    arguments, chunks, valid = _arguments(case), kept_chunks(case), _valid(case)
    one = np.ones(1, x.dtype)
    output = np.dtype(case.option("dtype") or getattr(np, name)(one).dtype)
    initial = {"initial": case.option("initial")} if "initial" in case.options else {}
    if "dtype" in case.options and x.dtype.kind in "fc" and output.kind not in "fc":
        x = np.where(np.broadcast_to(valid, x.shape), x, name == "prod").astype(output)
    if "dtype" in case.options and name != "mean":
        value = getattr(np, name)(x, dtype=output, where=valid, **arguments, **initial)
        return [Expected(value, output, chunks=chunks)]
    if x.dtype.kind in "biu" and name != "mean":
        value = getattr(np, name)(x, where=valid, **arguments, **initial)
        return [Expected(value, output, chunks=chunks)]
    if name == "prod":
        value = np.prod(exact.wide(x), where=valid, **arguments, **initial)
        slack = 4 * x.size * EPS * np.abs(value)
        return [Expected(value, output, 1.0, slack, chunks)]
    ulps = exact.SUM_ULPS[_part(output).itemsize] if output.kind in "fc" else None
    value = exact.total(x, valid=valid, **arguments)
    slack: Any = 0.0
    if not exact.same_sign(x):
        slack = exact.SUM_MIXED * EPS * exact.total(exact.sizes(x), valid=valid, **arguments)
    if case.option("reproducible"):
        # Every element is taken to within 2**-72 of the largest.
        tops = exact.sizes(x).max(axis=arguments["axis"], keepdims=arguments["keepdims"], initial=0)
        ulps, slack = ulps or 0.5, x.size * 2.0**-71 * tops
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # Those beyond 2**53 are rounded before they are added.
        slack = slack + EPS * exact.total(exact.sizes(x), valid=valid, **arguments)
    if initial:
        value = value + case.option("initial")
        slack = slack + EPS * (np.abs(exact.finite(value)) + case.option("initial"))
    if name == "mean":
        count = _count(case)
        value, slack = value / count, slack / np.maximum(count, 1)
        if output.kind not in "fc":
            # Truncated, as NumPy's means of integers into integers are.
            return [Expected(np.trunc(value), output, chunks=chunks, defined=count > 0)]
        # The quotient is rounded as well; where NumPy rounds elements first, it may be off.
        part = _part(output)
        sizes = np.minimum(np.abs(exact.finite(value * count)), np.finfo(part).max / 2)
        unit = np.spacing(sizes.astype(part))
        slack = slack + ulps * unit.astype("g") / np.maximum(count, 1)
        ulps = 1.0 + ("dtype" in case.options)
        # How infinite complex numbers are divided is nobody's business.
        defined = np.isfinite(value) if output.kind == "c" else True
        return [Expected(value, output, ulps, slack, chunks, defined)]
    return [Expected(value, output, ulps, slack, chunks)]


def expect_extremum(case: Case) -> list[Expected]:
    """Return NumPy's."""
    more = {name: case.option(name) for name in ("initial",) if name in case.options}
    if "where" in case.operands:
        more["where"] = case.operand("where")
    value = getattr(np, case.function)(case.x, **_arguments(case), **more)
    # CuPy, which subtracts, takes subnormal float32 for zero.
    slack = np.finfo("f4").tiny if case.function == "ptp" and value.dtype.char in "fF" else 0.0
    return [Expected(value, None, 0.0 if slack else None, slack, kept_chunks(case))]


def expect_truth(case: Case) -> list[Expected]:
    """Return NumPy's."""
    more = {"where": case.operand("where")} if "where" in case.operands else {}
    value = getattr(np, case.function)(case.x, **_arguments(case), **more)
    return [Expected(value, chunks=kept_chunks(case))]


def expect_spread(case: Case) -> list[Expected]:
    """Return variances, their roots and moments, in wide floats."""
    x, name, arguments = case.x, case.function.removeprefix("nan"), _arguments(case)
    valid, count = np.broadcast_to(_valid(case), x.shape), _count(case)
    over = {"axis": arguments["axis"], "keepdims": True, "where": valid}
    output = np.var(np.ones(1, x.dtype)).dtype
    w = exact.wide(x)
    mean = np.sum(w, **over) / np.maximum(valid.sum(arguments["axis"], keepdims=True), 1)
    ddof = case.option("ddof", 0)
    degrees = np.maximum(count - ddof, 0)
    some, chunks = np.maximum(count, 1), kept_chunks(case)
    if name == "moment":
        order = case.option("order")
        if order < 2:
            value = np.full(np.shape(count), 1.0 - order)
            return [Expected(value, "f8", chunks=chunks, defined=count > 0)]
        value = np.sum((w - mean) ** order, where=valid, **arguments) / degrees
        slack = 1e-13 * 5.0**order * some
        return [Expected(value, output, 2.0, slack, chunks, degrees > 0)]
    deviation = w - mean
    squares = np.square(deviation.real) + np.square(deviation.imag)
    m2 = np.sum(squares, where=valid, **arguments)
    size = np.max(exact.sizes(x), initial=0, **arguments)
    eps = 8 * max(x.size, 1) * EPS
    var = m2 / some
    slack = np.nan_to_num(eps * (var + np.sqrt(var) * size) + np.square(eps * size))
    # Squares of small deviations underflow.
    slack = (slack + np.finfo("f8").tiny) * some / np.maximum(degrees, 1e-300)
    value = m2 / degrees
    if name == "std":
        value, slack = np.sqrt(value), np.sqrt(slack)
    return [Expected(value, output, 1.0, slack, chunks, degrees > 0)]


def expect_description(case: Case) -> list[Expected]:
    """Return the eight statistics, in wide floats."""
    x, arguments = case.x, _arguments(case)
    np.min(x, arguments["axis"]) if x.dtype.kind != "f" else None
    valid = ~np.isnan(x)
    count = valid.sum(**arguments)
    nans = np.isnan(x).sum(**arguments)
    w = np.where(valid, exact.wide(x), 0)
    total = exact.total(np.where(valid, x, 0).astype(x.dtype), **arguments)
    some = np.where(count, count, np.nan)
    over = {"axis": arguments["axis"], "keepdims": True}
    mean_of_lines = w.sum(**over) / np.maximum(valid.sum(**over), 1)
    var = np.square(w - mean_of_lines).sum(where=valid, **arguments) / some
    low = np.min(exact.wide(x), where=valid, initial=np.inf, **arguments) + 0 * some
    high = np.max(exact.wide(x), where=valid, initial=-np.inf, **arguments) + 0 * some
    if x.dtype.kind != "f":
        low, high = np.min(x, **arguments), np.max(x, **arguments)
        total = np.sum(x, **arguments) if x.dtype.kind != "b" else total
    else:
        low, high = low.astype(x.dtype), high.astype(x.dtype)
    sizes = exact.total(exact.sizes(x), **arguments)
    size = np.max(exact.sizes(x), initial=0, **arguments)
    eps = 8 * max(x.size, 1) * EPS
    in_sum = x.size * EPS * sizes
    in_var = np.nan_to_num(eps * (var + np.sqrt(var) * size) + np.square(eps * size))
    in_var = in_var + np.finfo("f8").tiny
    one, chunks = np.ones(1, x.dtype), kept_chunks(case)
    average = np.mean(one).dtype
    exactly = [(count, "i8"), (nans, "i8"), (low, x.dtype), (high, x.dtype)]
    rest = [Expected(value, dtype, None, chunks=chunks) for value, dtype in exactly]
    of_sum = np.sum(one).dtype
    ulps = 1.0 if of_sum.kind == "f" else None
    return [
        *rest,
        Expected(total, of_sum, ulps, in_sum, chunks),
        Expected(total_mean(total, w, some, arguments), average, 1.0, in_sum / some, chunks),
        Expected(var, average, 1.0, in_var, chunks),
        Expected(np.sqrt(var), average, 1.0, np.sqrt(in_var), chunks),
    ]


def total_mean(total: Any, w: Array, some: Any, arguments: dict[str, Any]) -> Any:
    """Return the mean of a sum that did not wrap."""
    return (total if total.dtype.kind in "fc" else w.sum(**arguments)) / some


def expect_norm(case: Case) -> list[Expected]:
    """Return NumPy's in float64."""
    given = case.option("ord"), case.option("axis"), case.option("keepdims", False)
    dtype = np.linalg.norm(case.x, *given).dtype
    wider = case.x.astype("c16" if case.x.dtype.kind == "c" else "f8")
    return [Expected(np.linalg.norm(wider, *given), dtype, 4.0)]
