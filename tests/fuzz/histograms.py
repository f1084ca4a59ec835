"""Cases of histograms: samples on the edges, and one step off on either side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuzz import draw
from fuzz.case import Array, Case, Chunks, Operand
from fuzz.exact import EPS, Expected, sizes

REAL = draw.INTS + draw.FLOATS
WEIGHTS = ["i4", "i8", "u2", "f4", "f8", "c16"]
RULES = ["sqrt", "sturges", "rice"]


def draw_histogram(rng: draw.Generator) -> Case:
    """Draw a histogram of one coordinate."""
    dtype = draw.pick(rng, [*REAL, "f2", "f4", "f4", "f8", "i8", "u8", "?"])
    options: dict[str, Any] = {}
    sides = _sides(rng)
    if dtype == "?":
        array = draw.values(rng, dtype, sides)
        options["bins"], limits = int(rng.integers(1, 6)), draw.pick(rng, [None, (0, 1), (-1, 3)])
    else:
        array, options["bins"], limits = _samples(rng, dtype, sides)
    # Rules of narrow floats are none of NumPy's here, and NumPy's of uint64 overflow.
    if draw.chance(rng, 0.03) and dtype not in ("?", "f2", "f4", "u8"):
        options["bins"] = draw.pick(rng, RULES)
    if limits is not None:
        options["range"] = limits
    if draw.chance(rng, 0.1):
        options["density"] = True
    elif draw.chance(rng, 0.15):
        options["flow"] = True
    if draw.chance(rng, 0.1):
        array = _omitting(rng, array, options)
    if array.ndim and draw.chance(rng, 0.25):
        axis = draw.axis(rng, array.ndim)
        options |= {} if axis is None else {"axis": axis}
    x = draw.operand(rng, array)
    operands = {}
    if not isinstance(options["bins"], str) and draw.chance(rng, 0.15):
        operands["weights"] = _weights(rng, x)
        if operands["weights"].array.dtype.kind == "f" and draw.chance(rng, 0.3):
            options["reproducible"] = True
    return Case("histogram", "histogram", (x,), operands, options, compiled=draw.chance(rng, 0.7))


def draw_joint(rng: draw.Generator) -> Case:
    """Draw a histogram of one to three coordinates."""
    n = draw.pick(rng, [1, 1, 2, 3])
    dtype = draw.pick(rng, [*REAL, *draw.FLOATS])
    count = int(rng.integers(1, draw.pick(rng, [70, 400])))
    if draw.chance(rng, 0.01):
        count = 40_000
    columns, bins, limits = [], [], []
    for _ in range(n):
        column, number, pair = _samples(rng, dtype, (count,))
        columns.append(column)
        bins.append(number)
        limits.append(pair)
    options: dict[str, Any] = {"bins": bins}
    if any(pair is not None for pair in limits):
        options["range"] = limits
    if draw.chance(rng, 0.1):
        options["density"] = True
    if draw.chance(rng, 0.1):
        columns = [_omitting(rng, column, options) for column in columns]
    together = n != 2 or draw.chance(rng, 0.5)
    lists = not together or draw.chance(rng, 0.5)
    if lists:
        chunks = draw.chunks(rng, (count,))
        inputs = tuple(Operand(column, chunks, "a", draw.layout(rng)) for column in columns)
    else:
        points = np.stack(columns, 1)
        chunks = (draw.cuts(rng, count, 6), (n,))
        inputs = (Operand(points, chunks, "a "),)
    operands = {}
    if draw.chance(rng, 0.15):
        operands["weights"] = _weights(rng, inputs[0], (count,))
        if operands["weights"].array.dtype.kind == "c":
            # NumPy has no density of complex weights either.
            options.pop("density", None)
    name = "histogramdd" if together else "histogram2d"
    return Case(
        "joint",
        name,
        inputs,
        operands,
        options,
        together=together and lists,
        compiled=draw.chance(rng, 0.7),
    )


def draw_bincount(rng: draw.Generator) -> Case:
    """Draw a count of integers."""
    dtype = draw.pick(rng, draw.INTS + draw.BOOL)
    sides = _sides(rng)
    top = draw.pick(rng, [1, 9, 100, 120 if dtype == "i1" else 255])
    array = rng.integers(0, 2 if dtype == "?" else top, sides, endpoint=True).astype(dtype)
    if dtype[0] == "i" and draw.chance(rng, 0.02):
        array = np.where(rng.random(sides) < 0.1, -1, array).astype(dtype)
    if array.size and dtype[1:] in ("4", "8") and draw.chance(rng, 0.02):
        array.flat[0] = 70_000
    options: dict[str, Any] = {}
    if draw.chance(rng, 0.4):
        options["minlength"] = int(rng.integers(0, 300))
    options |= draw.split_every(rng)
    x = draw.operand(rng, array)
    operands = {"weights": _weights(rng, x)} if draw.chance(rng, 0.3) else {}
    return Case("bincount", "bincount", (x,), operands, options, compiled=draw.chance(rng, 0.7))


def draw_digitize(rng: draw.Generator) -> Case:
    """Draw the bins of samples."""
    dtype = draw.pick(rng, REAL)
    edges = _given_edges(rng, dtype)
    if draw.chance(rng, 0.1):
        edges = np.repeat(edges, rng.integers(0, 3, edges.size))
    array = _near(rng, edges.astype("f8") if edges.size else np.ones(1), dtype, _sides(rng))
    options: dict[str, Any] = {"bins": edges[::-1].copy() if draw.chance(rng, 0.3) else edges}
    if draw.chance(rng, 0.4):
        options["right"] = True
    x = draw.operand(rng, array)
    return Case("digitize", "digitize", (x,), {}, options, compiled=draw.chance(rng, 0.7))


def _omitting(rng: draw.Generator, array: Array, options: dict[str, Any]) -> Array:
    """Return samples of which some are NaN, where their dtype has it, for the option to omit it."""
    options["nan"] = "omit"
    if array.dtype.kind != "f":
        return array
    missing = rng.random(array.shape) < draw.pick(rng, [0.05, 0.5, 1])
    return np.where(missing, array.dtype.type(np.nan), array)


def _sides(rng: draw.Generator) -> tuple[int, ...]:
    if draw.chance(rng, 0.02):
        return draw.large_shape(rng)
    # Enough for most edges of some bins to have a sample beside them.
    return (int(rng.integers(100, 1000)),) if draw.chance(rng, 0.3) else draw.shape(rng)


def _weights(rng: draw.Generator, x: Operand, sides: tuple[int, ...] | None = None) -> Operand:
    """Return weights for samples: small ones, which add up exactly, or any."""
    sides = x.array.shape if sides is None else sides
    dtype = draw.pick(rng, WEIGHTS)
    if np.dtype(dtype).kind == "f" and draw.chance(rng, 0.5):
        array = rng.standard_normal(sides).astype(dtype)
    else:
        array = rng.integers(0 if dtype[0] == "u" else -2, 3, sides).astype(dtype)
    return Operand(array, x.chunks[: len(sides)], x.axes[: len(sides)])


def _samples(
    rng: draw.Generator, dtype: str, sides: tuple[int, ...]
) -> tuple[Array, Any, tuple[Any, Any] | None]:
    """Return samples beside the edges of bins, the bins, and their range unless it is found."""
    n = int(rng.integers(1, draw.pick(rng, [21, 21, 200]))) if draw.chance(rng, 0.97) else 3000
    if draw.chance(rng, 0.2):
        n = 2 ** int(rng.integers(0, 9))
    if draw.chance(rng, 0.3):
        edges = _given_edges(rng, dtype)
        array = _near(rng, edges, dtype, sides)
        if draw.chance(rng, 0.1):
            return array, [v.item() for v in edges], None
        return array, edges, None
    low, high = _limits(rng, dtype)
    kind = np.dtype(dtype)
    if draw.chance(rng, 0.5):
        # The range is found in the data, of which it is the extrema.
        ends = np.array([low, high] if kind.kind == "f" else [int(low), int(high)], kind)
        try:
            edges = np.histogram_bin_edges(ends, n)
        except (ValueError, MemoryError):
            edges = ends
        array = np.clip(_near(rng, edges, dtype, sides, odd=False), ends[0], ends[1])
        if array.size > 1 and draw.chance(rng, 0.9):
            array.flat[0], array.flat[-1] = ends
        return array, n, None
    try:
        edges = np.histogram_bin_edges(np.empty(0, dtype), n, (low, high))
    except (ValueError, MemoryError):
        edges = np.array([low, high])
    array = _near(rng, edges, dtype, sides)
    if draw.chance(rng, 0.2) and kind.type(low) == low and kind.type(high) == high:
        low, high = kind.type(low), kind.type(high)
    return array, n, (low, high)


def _limits(rng: draw.Generator, dtype: str) -> tuple[Any, Any]:
    """Return the outer edges of uniform bins, Python's numbers."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        match int(rng.integers(6)):
            case 0:
                return draw.pick(rng, [(0.0, 1.0), (-1.0, 1.0), (0, 9), (-3.0, 5.0)])
            case 1:
                a, b = sorted(float(v) for v in rng.integers(-30, 31, 2) / 10)
                return float(kind.type(a)), float(kind.type(b))
            case 2:
                start = float(kind.type(rng.standard_normal()))
                return start, float(kind.type(start + abs(start) * 2.0 ** -int(rng.integers(0, 8))))
            case 3:
                low = -float(2.0 ** int(rng.integers(-8, 8)))
                return low * int(rng.integers(0, 2)), -low
            case 4:
                a, b = sorted(float(v) for v in rng.standard_normal(2))
                return a, b
        scale = 10.0 ** int(rng.integers(-4, 5))
        a, b = sorted(float(kind.type(v)) for v in rng.standard_normal(2) * min(scale, 1e4))
        return a, b
    low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    match int(rng.integers(5)):
        case 0:
            a, b = (int(v) for v in rng.integers(max(low, -20), 100, 2))
        case 1:
            # Bins of a power of two.
            top = 2 ** int(rng.integers(0, kind.itemsize * 8 - 1))
            return (-top if low and draw.chance(rng, 0.5) else 0), top
        case 2:
            a, b = (int(v) for v in rng.integers(low, high, 2, kind, endpoint=True))
        case 3:
            a, b = (float(v) / 2 for v in rng.integers(max(low, -20), 100, 2))
        case _:
            a, b = draw.pick(rng, [(low, high), (0, high), (high // 2, high)])
    return (a, b) if a <= b else (b, a)


def _given_edges(rng: draw.Generator, dtype: str) -> Array:
    """Return edges: irregular, uniform, powers of two or integers."""
    n = int(rng.integers(2, 20))
    kind = np.dtype(dtype)
    own = kind.kind == "f" and draw.chance(rng, 0.5)
    match int(rng.integers(5)):
        case 0:
            edges = np.unique(rng.standard_normal(n) * 10.0 ** int(rng.integers(-2, 3)))
        case 1:
            low, high = sorted(rng.standard_normal(2) * 10)
            edges = np.linspace(low, high, n)
        case 2:
            edges = 2.0 ** np.arange(-(n // 3), n - n // 3)
        case 3:
            edges = np.unique(rng.integers(-50 if kind.kind != "u" else 0, 100, n))
            return edges.astype(kind) if draw.chance(rng, 0.5) and kind.kind != "f" else edges
        case _:
            edges = np.arange(n) / draw.pick(rng, [1, 2, 10])
    if own:
        edges = np.unique(edges.astype(kind))
    return edges


def _near(
    rng: draw.Generator, edges: Array, dtype: str, sides: tuple[int, ...], odd: bool = True
) -> Array:
    """Return samples on edges and one step off, some between them and, with `odd`, outside."""
    kind = np.dtype(dtype)
    few = edges[rng.integers(len(edges), size=200)] if len(edges) > 200 else edges
    low, high = edges[0], edges[-1]
    if kind.kind == "f":
        e = few.astype(kind)
        beside = [e, np.nextafter(e, kind.type(np.inf)), np.nextafter(e, kind.type(-np.inf))]
        between = rng.uniform(float(low), float(high), 8).astype(kind)
        outside = np.array([low - 1, high + 1, low * 2, high * 2, -0.0]).astype(kind)
        extra = [outside, outside] if odd else []
        if odd and draw.chance(rng, 0.15):
            extra.append(np.array([np.nan, np.inf, -np.inf], kind))
        palette = np.concatenate([*beside, between, *extra])
    else:
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        whole = [int(v) for v in few if np.isfinite(v)]
        steps = [0, 0, 1, -1, *((255, -255, 1024, -1024) if most > 2**40 else ())]
        numbers = [v + step for v in whole for step in steps]
        numbers += [int(low) - 3, int(high) + 3, least, most] if odd else []
        palette = np.array([min(max(v, least), most) for v in numbers], kind)
    return palette[rng.integers(len(palette), size=sides)]


# What is expected.


def _weighed(case: Case) -> Any:
    """Return the weights wide enough for NumPy's sums to be good, or None."""
    w = case.operand("weights")
    return None if w is None else w.astype("c16" if w.dtype.kind == "c" else "f8")


def _parts(weights: Array) -> tuple[Array, Array]:
    return weights.real, weights.imag


def _kept(case: Case, x: Operand) -> Array:
    """Tell which samples count anywhere: neither masked nor NaN that is left out."""
    kept = x.valid
    return kept & (x.array == x.array) if case.option("nan") == "omit" else kept


def _slack(case: Case, w: Any) -> tuple[float | None, Any]:
    """Return how far off sums of the weights may be: not at all where they are whole."""
    if w is None or not case.operand("weights").size:
        return None, 0.0
    weights = case.operands["weights"]
    given = weights.array[weights.valid]
    if given.dtype.kind not in "fc" or np.array_equal(given, np.rint(given.real)):
        return None, 0.0
    # NumPy may take differences of sums over all bins.
    slack = w.size * EPS * float(sizes(given).sum())
    if case.option("reproducible"):
        slack = slack + w.size * 2.0**-71 * float(np.abs(given).max(initial=0))
    return 1.0, slack


def expect_histogram(case: Case) -> list[Expected]:
    """Return NumPy's counts, line by line."""
    x, w = case.x.view("u1") if case.x.dtype.kind == "b" else case.x, _weighed(case)
    bins, limits = case.option("bins", 10), case.option("range")
    density, flow = case.option("density"), case.option("flow")
    valid = _kept(case, case.inputs[0])
    if "weights" in case.operands:
        valid &= case.operands["weights"].valid
    left = x[valid]
    edges = np.histogram_bin_edges(left, bins, limits)
    far = False
    try:
        np.histogram(
            np.empty(0, x.dtype) if limits is None else left,
            edges if limits is None else bins,
            limits,
        )
    except OverflowError:
        # NumPy's arithmetic does not reach there; who counts, counts into NumPy's edges.
        far = True
    by_rule = isinstance(bins, str)
    if np.ndim(bins) == 0 and not by_rule and limits is None and left.size:
        limits = left.min(), left.max()
    axis = case.option("axis")
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(a % x.ndim for a in axes) if x.ndim else ()
    kept = tuple(d for d in range(x.ndim) if d not in axes)
    order, shape = (*kept, *axes), tuple(x.shape[d] for d in kept)

    def count(weights: Any) -> Array:
        dtype = "f8" if density else "i8" if weights is None else weights.dtype
        if density and weights is not None and weights.dtype.kind == "c":
            dtype = "c16"
        table = np.zeros((*shape, len(edges) - 1 + 2 * bool(flow)), dtype)
        lines = (*shape, math.prod(x.shape[d] for d in axes))
        samples, some = (array.transpose(order).reshape(lines) for array in (x, valid))
        of = None if weights is None else weights.transpose(order).reshape(lines)
        for index in np.ndindex(shape):
            which = some[index]
            line, more = samples[index][which], None if of is None else of[index][which]
            inner = _count(line, edges if far or by_rule else bins, limits, density, more)
            if flow:
                below, above = _outside(line, edges if limits is None else limits)
                ones = np.ones(line.size, "i8") if more is None else more
                inner = [ones[below].sum(), *inner, ones[above].sum()]
            table[index] = inner
        return table

    value = count(w)
    ulps, slack = _slack(case, w)
    given = case.operand("weights")
    dtype = value.dtype if given is None or density else given.dtype
    if density:
        ulps, slack = 4.0, 0.0 if ulps is None else np.inf
    chunks: Chunks | None = tuple(case.inputs[0].chunks[d] for d in kept)
    chunks = None if by_rule else (*chunks, (value.shape[-1],))
    return [Expected(value, dtype, ulps, slack, chunks, refusable=far), Expected(edges, host=True)]


def _count(line: Array, bins: Any, limits: Any, density: Any, weights: Any) -> Array:
    """Return NumPy's counts; of edges, which a range does not go with, those within the range."""
    if limits is not None and np.ndim(bins):
        limits = _apart(limits)
        inside = (line >= limits[0]) & (line <= limits[1])
        line, weights = line[inside], None if weights is None else weights[inside]
    return np.histogram(line, bins, limits, density, weights)[0]


def _apart(limits: Any) -> Any:
    """Return limits as NumPy takes them: equal ones are widened."""
    low, high = limits
    return (low - 0.5, high + 0.5) if low == high else limits


def _outside(line: Array, edges: Any) -> tuple[Array, Array]:
    """Tell which samples are below the edges and which above, or NaN."""
    if not isinstance(edges, np.ndarray):
        edges = _apart(edges)
    else:
        common = np.result_type(line, edges)
        line, edges = line.astype(common), edges.astype(common)
    # One edge alone is that of no bin, so that what is on it is above.
    above = line >= edges[-1] if len(edges) == 1 else line > edges[-1]
    return line < edges[0], above | (line != line)


def expect_joint(case: Case) -> list[Expected]:
    """Return NumPy's counts."""
    points, valid, kept = (
        list(np.concatenate([a.reshape(len(a), -1) for a in arrays], 1).T)
        for arrays in (
            [x.array for x in case.inputs],
            [x.valid for x in case.inputs],
            [_kept(case, x) for x in case.inputs],
        )
    )
    w, density, bins = _weighed(case), case.option("density"), case.option("bins", 10)
    counted = np.logical_and.reduce(kept)
    limits = list(case.option("range") or [None] * len(points))
    each = bins if isinstance(bins, list) else [bins] * len(points)
    of_nothing = [False] * len(points)
    if any(x.mask is not None for x in case.inputs) or case.option("nan") == "omit":
        # A range is that of what is left of a coordinate, whatever is masked of the other; where
        # nothing is, edges have the dtype that they have elsewhere.
        omitted = np.logical_or.reduce([v & ~k for v, k in zip(valid, kept, strict=True)])
        for i, (points_of, v) in enumerate(zip(points, valid, strict=True)):
            own = points_of[v & ~omitted]
            if limits[i] is None and own.size:
                limits[i] = own.min(), own.max()
            if limits[i] is None and not own.size and np.ndim(each[i]) == 0:
                limits[i], of_nothing[i] = (0, 1), own.dtype.kind == "f"
    if "weights" in case.operands:
        counted &= case.operands["weights"].valid
        w = w[counted]
    sample = [x[counted] for x in points]

    def count(weights: Any) -> Array:
        if weights is None or weights.dtype.kind != "c":
            return np.histogramdd(sample, bins, limits, density=density, weights=weights)[0]
        # NumPy takes no complex weights here.
        parts = [np.histogramdd(sample, bins, limits, weights=p)[0] for p in _parts(weights)]
        return parts[0] + 1j * parts[1]

    _, edges = np.histogramdd(sample, bins, limits)
    edges = [
        edge.astype(x.dtype) if nothing else edge
        for edge, x, nothing in zip(edges, points, of_nothing, strict=True)
    ]
    value = count(w)
    ulps, slack = _slack(case, w)
    given = case.operand("weights")
    dtype = value.dtype
    if given is not None and not density and given.dtype.kind != "c":
        dtype = given.dtype if given.dtype.kind == "f" else np.dtype(f"{given.dtype.kind}8")
    if density:
        ulps, slack = 8.0, 0.0 if ulps is None else np.inf
    # Edges that float16 rounds until they fall are refused; NumPy searches them as if they rose.
    falls = any((edge[:-1] > edge[1:]).any() for edge in edges)
    counts = Expected(value, dtype, ulps, slack, refusable=falls)
    return [counts, *(Expected(edge, host=True) for edge in edges)]


def expect_bincount(case: Case) -> list[Expected]:
    """Return NumPy's counts."""
    kept, w, least = case.inputs[0].valid, _weighed(case), case.option("minlength", 0)
    if w is not None:
        kept &= case.operands["weights"].valid
        w = w[kept]
    x = case.x[kept]
    if x.dtype.kind == "u":
        x = x.astype("i8")

    def count(weights: Any) -> Array:
        flat = None if weights is None else weights.ravel()
        if flat is None or flat.dtype.kind != "c":
            return np.bincount(x, flat, least)
        parts = [np.bincount(x, part, least) for part in _parts(flat)]
        return parts[0] + 1j * parts[1]

    value = count(w)
    ulps, slack = _slack(case, w)
    return [Expected(value, "i8" if w is None else w.dtype, ulps, slack)]


def expect_digitize(case: Case) -> list[Expected]:
    """Return NumPy's."""
    value = np.digitize(case.x, case.option("bins"), case.option("right", False))
    return [Expected(value, "i8", chunks=case.inputs[0].chunks)]
