"""Cases of groups of elements, of labels that are known or computed with the chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import dask_coop as dc
from dask_coop.algebra.merges import lowest
from fuzz import draw
from fuzz.case import Array, Case, show_array
from fuzz.exact import Expected

#: What is found of a group exactly, whatever the order.
_FUNCS = ["count", "min", "max", "nanmin", "nanmax", "first", "last", "nanfirst", "nanlast"]
_FUNCS += ["argmin", "argmax", "any", "all", "sum"]
#: Those of a group without elements, where it is not NaN.
_NOTHING = {"count": 0, "any": 0, "all": 0, "argmin": -1, "argmax": -1}


@dataclass(frozen=True)
class GroupCase(Case):
    """A call whose labels, the second array, are known when the graph is built."""

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Call the function on chunks of `xp`'s kind."""
        x, labels = self.inputs
        return tuple(dc.groupby_reduce(x.build(xp), labels.array, **self.options))

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        labels = self.inputs[1]
        return super().code(xp).replace(labels.code(xp), show_array(labels.array), 1)


def draw_groups(rng: draw.Generator) -> Case:
    """Draw a statistic of groups."""
    large = draw.chance(rng, 0.1)
    sides = draw.large_shape(rng) if large else draw.shape(rng, 1)
    func = draw.pick(rng, _FUNCS)
    integers = [dtype for dtype in draw.REAL if np.dtype(dtype).kind in "iu"]
    x = draw.values(rng, draw.pick(rng, integers if func == "sum" else draw.REAL), sides)
    ndim, n = int(rng.integers(1, x.ndim + 1)), int(rng.integers(1, 9))
    labels = rng.integers(-1, n, x.shape[x.ndim - ndim :])
    if draw.chance(rng, 0.3):
        labels = np.sort(labels.reshape(-1)).reshape(labels.shape)
    letters = "abcdefgh"[: x.ndim]
    inputs = draw.operand(rng, x, letters), draw.operand(rng, labels, letters[x.ndim - ndim :])
    options: dict[str, Any] = {"func": func, "expected_groups": [*range(n)]}
    kind = GroupCase if draw.chance(rng, 0.5) else Case
    compiled = large or draw.chance(rng, 0.3)
    return kind("groups", "groupby_reduce", inputs, {}, options, compiled=compiled)


def expect_groups(case: Case) -> list[Expected]:
    """Return what a loop over the groups finds."""
    x, labels = (operand.array for operand in case.inputs)
    func, groups = case.option("func"), np.array(case.option("expected_groups"), "i8")
    if labels.shape != x.shape[x.ndim - labels.ndim :]:
        raise ValueError("labels do not fit")
    kept = x.shape[: x.ndim - labels.ndim]
    lines, codes = x.reshape(*kept, labels.size), labels.reshape(-1)
    dtype = np.dtype("?" if func in ("any", "all") else "i8" if func in _NOTHING else x.dtype)
    if func == "sum":
        dtype = np.dtype("u8" if x.dtype.kind == "u" else "i8")
    nothing = _NOTHING.get(func, np.nan if dtype.kind == "f" else lowest(dtype))
    value = np.full((*kept, len(groups)), nothing, dtype)
    for at in np.ndindex(kept):
        for i, group in enumerate(groups):
            places = np.flatnonzero(codes == group)
            if places.size:
                value[(*at, i)] = _find(func, lines[at][places], places, nothing)
    return [Expected(value, dtype), Expected(groups, host=True)]


def _find(func: str, part: Array, places: Array, nothing: Any) -> Any:
    some = part[part == part]
    if func == "count":
        return len(some)
    if func.startswith("nan"):
        func, part = func[3:], some
    if not part.size:
        return nothing
    if func in ("first", "last"):
        return part[0 if func == "first" else -1]
    found = getattr(np, func)(part)
    return places[found] if func.startswith("arg") else found
