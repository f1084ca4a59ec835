"""Cases of recursive filters, held to SciPy's in wide floats."""

from __future__ import annotations

import numpy as np
from scipy import signal

from fuzz import draw
from fuzz.case import Case, Operand
from fuzz.exact import Expected


def draw_filter(rng: draw.Generator) -> Case:
    """Draw a filter that is not narrow, and what it filters."""
    shape = draw.shape(rng, 1)
    array = draw.values(rng, draw.pick(rng, ["f4", "f8", "i2", "c8"]), shape, special=False)
    axis, order = int(rng.integers(0, len(shape))), int(rng.integers(1, 4))
    b, a = signal.butter(order, draw.pick(rng, [0.2, 0.5, 0.8]))
    name, before = "lfilter", (b.tolist(), a.tolist())
    if draw.chance(rng, 0.3):
        name, before = "sosfilt", (signal.tf2sos(b, a).tolist(),)
    elif draw.chance(rng, 0.3):
        before = ((b + rng.random(order + 1)).tolist(), [2.0])
    operands = {}
    if draw.chance(rng, 0.5) and 0 not in shape:
        delays = list(shape)
        delays[axis] = order if name == "lfilter" else 2
        delays = delays if name == "lfilter" else [len(before[0]), *delays]
        zi = rng.normal(size=delays)
        operands["zi"] = Operand(zi, tuple((n,) for n in zi.shape), " " * zi.ndim)
    options = {"axis": axis, "method": draw.pick(rng, ["reduce-then-scan", "sequential"])}
    return Case("filter", name, (draw.operand(rng, array),), operands, options, before=before)


def expect_filter(case: Case) -> list[Expected]:
    """Return results of SciPy's, of the whole array."""
    wide = np.dtype("G" if case.x.dtype.kind == "c" else "g")
    dtype, chunks = np.dtype("c16" if case.x.dtype.kind == "c" else "f8"), case.inputs[0].chunks
    arguments = [np.asarray(values, "g") for values in case.before]
    zi = case.operand("zi")
    x = case.x.astype(wide)
    if not x.size:
        return [Expected(x, dtype, 0.0, chunks=chunks)]
    axis = case.option("axis")
    function = getattr(signal, case.function)
    found = function(*arguments, x, axis, None if zi is None else zi.astype(wide))
    results = found if isinstance(found, tuple) else (found,)
    slack = 1e-11 * max(1.0, *(float(np.abs(value).max()) for value in results if value.size))
    sizes = [chunks, *([None] * (len(results) - 1))]
    return [Expected(v, dtype, 4.0, slack, c) for v, c in zip(results, sizes, strict=True)]
