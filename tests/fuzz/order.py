"""Cases of the best elements of lines, and of sorted lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

import dask_coop as dc
from fuzz import draw
from fuzz.case import Array, Case
from fuzz.exact import Expected


def draw_topk(rng: draw.Generator) -> Case:
    """Draw the best elements along an axis, or their indices."""
    few = draw.chance(rng, 0.9)
    array = draw.values(
        rng, draw.pick(rng, draw.REAL), draw.shape(rng, 1) if few else draw.large_shape(rng)
    )
    options: dict[str, Any] = {"k": int(rng.integers(-12, 13))}
    if draw.chance(rng, 0.2):
        options["k"] = int(rng.integers(-2000, 2001))
    if draw.chance(rng, 0.7):
        options["axis"] = int(rng.integers(-array.ndim, array.ndim))
    options |= draw.split_every(rng)
    name = draw.pick(rng, ["topk", "argtopk"])
    return Case("topk", name, (draw.operand(rng, array),), {}, options)


def draw_sort(rng: draw.Generator) -> Case:
    """Draw lines to be sorted, or the indices that sort them in their order."""
    if draw.chance(rng, 0.1):
        array = draw.neighbours(rng, draw.pick(rng, draw.FLOATS), draw.large_shape(rng))
    else:
        array = draw.values(rng, draw.pick(rng, draw.NUMBERS), draw.shape(rng, 1))
    name = draw.pick(rng, ["sort", "argsort"])
    options: dict[str, Any] = {"axis": draw.one_axis(rng, array.ndim)}
    if name == "argsort" or draw.chance(rng, 0.3):
        options |= draw.pick(rng, [{"stable": True}, {"kind": "stable"}])
    # Complex numbers with NaN in one half have no order that NumPy documents.
    if array.dtype.kind != "c" and draw.chance(rng, 0.3):
        options["descending"] = True
    kind = Case
    axis = options["axis"]
    # Each long line has tasks of its own.
    are_few = axis is None or array.size <= 50 * array.shape[axis]
    if array.size and draw.chance(rng, 0.4):
        kind = OfLongLines if are_few and draw.chance(rng, 0.5) else OfUnknown
    return kind("sort", name, (draw.operand(rng, array),), {}, options)


def draw_repeats(rng: draw.Generator) -> Case:
    """Draw lines whose most frequent elements, or numbers of distinct elements, are wanted."""
    array = draw.values(rng, draw.pick(rng, draw.REAL), draw.shape(rng, 1))
    counting = ["nunique", "approx_nunique"]
    name = draw.pick(rng, ["mode", *counting] if array.size else counting)
    options: dict[str, Any] = {"axis": draw.one_axis(rng, array.ndim)}
    if name != "approx_nunique" and draw.chance(rng, 0.5):
        options |= {"nan_policy": "omit"} if name == "mode" else {"dropna": False}
    return Case("repeats", name, (draw.operand(rng, array),), {}, options)


def expect_repeats(case: Case) -> list[Expected]:
    """Return what is found in the distinct elements of each line and their counts."""
    axis, x = case.option("axis"), case.x
    lines = x.reshape(-1) if axis is None else np.moveaxis(x, axis, -1)
    found = np.empty((2, *lines.shape[:-1]), object)
    for at in np.ndindex(*lines.shape[:-1]):
        values, counts = np.unique(lines[at].astype(_sortable(x.dtype)), return_counts=True)
        counts = np.where(values == values, counts, 0 if _drops(case) else counts)
        found[(0, *at)] = values[counts.argmax()] if len(values) else 0
        found[(1, *at)] = counts.max() if case.function == "mode" else (counts > 0).sum()
    if case.function == "nunique":
        return [Expected(found[1].astype("i8"))]
    if case.function == "approx_nunique":
        # Six standard errors, and two elements that few share a register.
        counts = found[1].astype("i8")
        return [Expected(counts, "i8", 0.0, np.ceil(0.05 * counts) + 2)]
    return [Expected(found[0].astype(x.dtype)), Expected(found[1].astype("i8"))]


def _sortable(dtype: Any) -> Any:
    # NumPy's sort of float16 itself is not to be trusted (chunks/numpy/sorting.py).
    return "f4" if dtype == "f2" else dtype


def _drops(case: Case) -> bool:
    if case.function == "mode":
        return bool(case.option("nan_policy", "propagate") == "omit")
    return bool(case.function == "nunique" and case.option("dropna", True))


def draw_ranks(rng: draw.Generator) -> Case:
    """Draw lines to be ranked, gathered ones or ones that are too long."""
    array = draw.values(rng, draw.pick(rng, draw.REAL), draw.shape(rng, 1))
    options: dict[str, Any] = {"axis": draw.one_axis(rng, array.ndim)}
    options["method"] = draw.pick(rng, ["average", "min", "max", "dense", "ordinal"])
    if draw.chance(rng, 0.5):
        options["nan_policy"] = "omit"
    axis = options["axis"]
    are_few = array.size > 0 and (axis is None or array.size <= 50 * array.shape[axis])
    kind = OfLongLines if are_few and draw.chance(rng, 0.5) else Case
    return kind("ranks", "rankdata", (draw.operand(rng, array),), {}, options)


def expect_ranks(case: Case) -> list[Expected]:
    """Return SciPy's ranks."""
    x, method, axis = case.x, case.option("method"), case.option("axis")
    policy = case.option("nan_policy", "propagate")
    found = stats.rankdata(x, method, axis=axis, nan_policy=policy) if x.size else x * 1.0
    counts = method != "average" and x.dtype.kind in "biu"
    found = found.reshape(-1) if axis is None else found
    return [Expected(found.astype("i8" if counts else "f8"))]


def draw_keys(rng: draw.Generator) -> Case:
    """Draw several keys to sort by, of gathered lines or of ones that are too long."""
    sides = draw.shape(rng, 1)
    axis = int(rng.integers(-len(sides), len(sides)))
    keys = []
    for _ in range(int(rng.integers(1, 4))):
        few = draw.values(rng, draw.pick(rng, draw.REAL), (4,))
        keys.append(draw.operand(rng, few[rng.integers(4, size=sides)]))
    are_few = keys[0].array.size and keys[0].array.size <= 50 * sides[axis]
    kind = OfLongLines if are_few and draw.chance(rng, 0.5) else Case
    return kind("keys", "lexsort", tuple(keys), {}, {"axis": axis}, together=1)


def expect_keys(case: Case) -> list[Expected]:
    """Return NumPy's stable order."""
    keys = [operand.array.astype(_sortable(operand.array.dtype)) for operand in case.inputs]
    return [Expected(np.lexsort(keys, case.option("axis")))]


@dataclass(frozen=True)
class OfUnknown(Case):
    """The same of an array whose chunk sizes along the first axis are unknown."""

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Call the function."""
        options = {name: self.option(name) for name in self.options}
        return (getattr(dc, self.function)(_forget(self.inputs[0].build(xp)), **options),)

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        x = self.inputs[0].code(xp)
        mask = "x[(slice(None),) + (0,) * (x.ndim - 1)].map_blocks(lambda b: (b == 0) | True)"
        forget = f"(lambda x: dc.select(x, {mask}))"
        return super().code(xp).replace(x, f"{forget}({x})", 1)


def _forget(x: Any) -> Any:
    first = x[(slice(None), *(0,) * (x.ndim - 1))]
    return dc.select(x, first.map_blocks(lambda b: (b == 0) | True))


@dataclass(frozen=True)
class OfLongLines(Case):
    """The same of lines that are too long to gather."""

    @property
    def _settings(self) -> dict[str, str]:
        return {"array.chunk-size": "1B"}

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        return f"dask.config.set({self._settings}); {super().code(xp)}"


def expect_topk(case: Case) -> list[Expected]:
    """Return what a stable sort of the lines begins with, or ends with the other way round."""
    axis, k = case.option("axis", -1), case.option("k")
    lines = np.moveaxis(case.x, axis, -1)
    order = _stable(lines) if k < 0 else lines.shape[-1] - 1 - _stable(lines[..., ::-1])[..., ::-1]
    at = np.moveaxis(order[..., : abs(k)], -1, axis)
    value = at if case.function == "argtopk" else np.take_along_axis(case.x, at, axis)
    chunks = list(case.inputs[0].chunks)
    chunks[axis] = (at.shape[axis],)
    return [Expected(value, chunks=tuple(chunks))]


def expect_sort(case: Case) -> list[Expected]:
    """Return NumPy's stable order; what descends is in the order of the ranks, NaN last."""
    axis, x = case.option("axis"), case.x
    if not case.option("descending", False):
        function = np.sort if case.function == "sort" else np.argsort
        return [Expected(function(x, axis, kind="stable"))]
    lines = x.reshape(-1) if axis is None else np.moveaxis(x, axis, -1)
    missing = lines != lines
    backward = lines.shape[-1] - 1 - _stable(lines[..., ::-1])[..., ::-1]
    last = np.take_along_axis(missing, backward, -1)
    order = np.take_along_axis(backward, _stable(last), -1)
    value = order if case.function == "argsort" else np.take_along_axis(lines, order, -1)
    return [Expected(value if axis is None else np.moveaxis(value, -1, axis))]


def _stable(lines: Array) -> Array:
    return np.argsort(lines, -1, kind="stable")
