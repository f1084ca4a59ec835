"""Cases of weighted statistics, of covariances, of lines through points, and of shapes."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
from scipy.special import stdtr

from fuzz import draw
from fuzz.case import Array, Case, Operand
from fuzz.exact import Expected

WEIGHTED = ["average", "mean", "var", "std", "nanmean", "nanvar", "nanstd"]
SHAPES = ["skew", "kurtosis"]
MATRICES = ["cov", "corrcoef"]
DTYPES = ["f8", "f8", "f4", "i4"]


def draw_pairs(rng: draw.Generator) -> Case:
    """Draw a call of one of the functions."""
    name = draw.pick(rng, [*WEIGHTED, *SHAPES, *SHAPES, *MATRICES, *MATRICES, "linregress"])
    dtype, options = draw.pick(rng, DTYPES), draw.split_every(rng)
    if name in MATRICES:
        sides = tuple(int(n) for n in rng.integers(2, 9, 1)), (int(rng.integers(2, 60)),)
        x = draw.operand(rng, numbers(rng, dtype, sides[0] + sides[1]), "vs")
        operands = {}
        if name == "cov" and draw.chance(rng, 0.4):
            weights = rng.integers(0, 4, sides[1])
            operands["fweights"] = Operand(weights, draw.chunks(rng, sides[1]), "s")
        if name == "cov" and draw.chance(rng, 0.4):
            weights = spread_out(rng, sides[1]) if draw.chance(rng, 0.3) else rng.random(sides[1])
            operands["aweights"] = Operand(weights, draw.chunks(rng, sides[1]), "s")
        options = {"bias": True} if name == "cov" and draw.chance(rng, 0.3) else {}
        return Case("pairs", name, (x,), operands, options)
    shape = draw.shape(rng, 1)
    x = draw.operand(rng, numbers(rng, dtype, shape, gaps=draw.chance(rng, 0.3)))
    operands, inputs = {}, (x,)
    options |= draw.keepdims(rng)
    if name == "linregress":
        y = draw.operand(rng, numbers(rng, "f8", shape))
        inputs = (x, y)
    elif name in WEIGHTED:
        wide = draw.chance(rng, 0.3)
        weights = spread_out(rng, shape) if wide else rng.integers(0, 9, shape) / 8
        if wide and dtype == "f8":
            # Elements of little weight lie far away.
            x = replace(x, array=x.array / np.sqrt(weights))
        operands["weights"] = Operand(weights, draw.chunks(rng, shape), x.axes)
    elif draw.chance(rng, 0.3):
        options["bias"] = False
    options["axis"] = int(rng.integers(0, len(shape)))
    if name not in WEIGHTED and draw.chance(rng, 0.5):
        options["nan_policy"] = "omit"
    return Case("pairs", name, inputs, operands, options, compiled=draw.chance(rng, 0.4))


def spread_out(rng: draw.Generator, shape: tuple[int, ...]) -> Array:
    """Draw weights of all sizes, as inverse variances have."""
    return 10 ** rng.uniform(-30, 3, shape)


def numbers(rng: draw.Generator, dtype: str, shape: tuple[int, ...], gaps: bool = False) -> Array:
    x = rng.normal(size=shape) * 10 + draw.pick(rng, [0, 0, 1e3, 1e6])
    if gaps and dtype[0] == "f":
        x[rng.random(shape) < 0.1] = np.nan
    return x.astype(dtype)


def expect_pairs(case: Case) -> list[Expected]:
    """Return results by wide floats."""
    with np.errstate(all="ignore"):
        if case.function in MATRICES:
            return _matrix(case)
        x, axis = case.x.astype("g"), case.option("axis")
        w = case.operand("weights")
        skips = case.function.startswith("nan") or case.option("nan_policy") == "omit"
        y = case.inputs[1].array.astype("g") if case.function == "linregress" else x
        gone = (np.isnan(x) | np.isnan(y)) & skips
        w = np.where(gone, 0, 1 if w is None else w).astype("g")
        x, y = np.where(gone, 0, x), np.where(gone, 0, y)
        over: dict[str, Any] = {"axis": axis, "keepdims": True}
        n = w.sum(**over)
        mean, other = (w * x).sum(**over) / n, (w * y).sum(**over) / n
        results = _values(case, w, n, x, mean, y, other, over)
        if not case.option("keepdims"):
            results = [np.squeeze(value, axis) for value in results]
        kind = case.x.dtype if case.x.dtype.kind == "f" else np.dtype("f8")
        kind = np.dtype("f8") if case.operands or case.function == "linregress" else kind
        return [near(value, kind) for value in results]


def _values(
    case: Case, w: Any, n: Any, x: Any, mean: Any, y: Any, other: Any, over: Any
) -> list[Any]:
    d, e = x - mean, y - other
    name = case.function.removeprefix("nan")
    second = (w * d * d).sum(**over) / n
    if name in ("average", "mean"):
        return [mean]
    if name in ("var", "std"):
        return [second if name == "var" else np.sqrt(second)]
    if name == "linregress":
        xx, yy, xy = (sum_ for sum_ in ((w * a).sum(**over) for a in (d * d, e * e, d * e)))
        slope = np.where(n > 1, xy / xx, np.nan)
        r = np.clip(xy / np.sqrt(xx * yy), -1, 1)
        free = np.where(n > 2, n - 2, np.nan)
        error = np.sqrt((1 - r) * (1 + r) * yy / xx / free)
        t = -np.abs(r * np.sqrt(free / ((1 - r) * (1 + r)))).astype("f8")
        p = 2 * stdtr(free.astype("f8"), t)
        return [slope, other - slope * mean, r, p, error, error * np.sqrt(xx / n + mean**2)]
    order = 3 if name == "skew" else 4
    value = (w * d**order).sum(**over) / n / second ** (order / 2)
    value = np.where(second > 1e-30 * mean**2, value, np.nan)
    if name == "skew":
        corrected = value * np.sqrt((n - 1) * n) / (n - 2)
        return [value if case.option("bias", True) else np.where(n > 2, corrected, value)]
    corrected = ((n * n - 1) * value - 3 * (n - 1) ** 2) / (n - 2) / (n - 3) + 3
    return [(value if case.option("bias", True) else np.where(n > 3, corrected, value)) - 3]


def _matrix(case: Case) -> list[Expected]:
    x = case.x.astype("g")
    ones = np.ones(x.shape[1], "g")
    a = case.operand("aweights")
    w = ones if (f := case.operand("fweights")) is None else f.astype("g")
    w = w if a is None else w * a
    total = w.sum()
    d = x - ((x * w).sum(1) / total)[:, None]
    square = (d * w) @ d.T
    if case.function == "corrcoef":
        root = np.sqrt(np.diagonal(square))
        return [near(np.clip(square / root[:, None] / root, -1, 1), np.dtype("f8"))]
    ddof = 0 if case.option("bias") else 1
    degrees = total - ddof * (1 if a is None else (w * a).sum() / total)
    value = square / np.maximum(degrees, 0)
    scale = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
    slack = 1e-12 * np.where(np.isfinite(scale), scale, 0)
    # Variances of constants are rounding errors.
    return [Expected(value, "f8", 4.0, slack + 1e-20, defined=np.isfinite(value))]


def near(value: Any, dtype: np.dtype[Any]) -> Expected:
    size = np.where(np.isfinite(value), np.abs(value), 0)
    return Expected(value, dtype, 4.0, 1e-9 * size + 1e-9)


def draw_polynomial(rng: draw.Generator) -> Case:
    """Draw lines and the positions of their elements, now and then far from zero."""
    shape = (int(rng.integers(6, 60)), *draw.shape(rng)[:1])
    y = draw.operand(rng, numbers(rng, draw.pick(rng, DTYPES), shape, gaps=True))
    x = np.sort(rng.random(shape[0])) + np.arange(shape[0]) + draw.pick(rng, [0, 0, 1e3, 1e9])
    options: dict[str, Any] = {"deg": int(rng.integers(0, 4))}
    if draw.chance(rng, 0.4):
        options["w"] = rng.random(shape[0]) + 0.5
    return Case("polynomial", "polyfit", (y,), {}, options, before=(x,))


def expect_polynomial(case: Case) -> list[Expected]:
    """Return the coefficients of polynomials of positions near zero, moved by wide floats."""
    (x,), y, deg = case.before, case.x.astype("g"), case.option("deg")
    w = case.option("w", np.ones(len(x))).astype("g")[:, None]
    middle = x.mean()
    powers = np.vander((x - middle).astype("g"), deg + 1, increasing=True) * w
    lines = y.reshape(len(y), -1) * w
    q: list[Any] = []
    for column in powers.T:
        for unit in [*q, *q]:
            column = column - unit * (unit @ column)
        q.append(column / np.sqrt(column @ column))
    solved = np.array([unit @ lines for unit in q])
    r = np.array([[unit @ column for column in powers.T] for unit in q])
    for i in range(deg, -1, -1):
        solved[i] = (solved[i] - r[i, i + 1 :] @ solved[i + 1 :]) / r[i, i]
    moved = [
        sum(
            solved[k] * (comb(k, j) * (-np.longdouble(middle)) ** (k - j))
            for k in range(j, deg + 1)
        )
        for j in range(deg, -1, -1)
    ]
    value = np.array(moved).reshape(deg + 1, *y.shape[1:])
    size = np.abs(np.where(np.isfinite(value), value, 0))
    # A coefficient is a sum of those that are multiplied by powers of the middle.
    slack = 1e-8 * size + 1e-9 * (1 + np.nanmax(np.abs(case.x), initial=1))
    return [Expected(value, "f8", 4.0, slack * max(1.0, abs(middle)) ** deg)]
