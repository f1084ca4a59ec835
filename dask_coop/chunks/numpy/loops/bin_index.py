"""Compiled loops that find the bins of blocks of samples.

Each sample gets a slot: 0 below the first edge, i + 1 in bin i, n + 1 above the last edge. The
first step guesses by arithmetic without branches, so that the compiler can vectorize it, and marks
guesses in doubt. The second compares these samples with the edges; most blocks have none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.chunks.numpy.loops.strided import load_i4
from dask_coop.compiled.jit import jit_inner

Array = Any

#: The ways to find bins: by arithmetic, for edges on a line, or nearly so and in a table; by the
#: cells that the range is divided into; by a search among the edges; by the samples' values; or not
#: at all, if samples are bins themselves.
LINE, TABLE, CELLS, EDGES, VALUES, SELF = range(6)

#: The record of a coordinate's bins. `edges` is the address of float64 or, if `whole`, of int64, in
#: whose order samples are after they are xored with `flip`. `guide` is the address of the slots of
#: cells or values. The loop adds to `others` the number of samples outside all n bins.
FINDER = np.dtype(
    [(name, "f8") for name in ("low", "high", "scale", "least", "most", "last", "width", "start")]
    + [(name, "i8") for name in ("kind", "n", "edges", "guide", "cells", "flip", "others")]
    + [(name, "i4") for name in ("missing", "closed", "single", "whole")],
    align=True,
)

#: The bit that marks slots as guesses in doubt.
UNSURE = -(2**31)

#: More slots than any table has.
MOST = 2**30


@jit_inner
def guess_on_line(x: Array, finder: Any, slots: Array) -> Any:
    """Write the slots of samples, and return whether any is in doubt.

    `least` and `most` are one minus and one plus the error of a guess, in bins; beyond `last` the
    second guess always differs from the first.
    """
    low, scale, last, behind = finder.low, finder.scale, finder.last, finder.n + 0.5
    least, most, unsure = finder.least, finder.most, np.int32(UNSURE)
    found = np.int32(0)
    for i in range(len(slots)):
        at = (float(x[i]) - low) * scale
        at = at if at > -0.5 else -0.5
        first = np.int32((at if at < last else last) + least)
        second = np.int32((at if at < behind else behind) + most)
        slot = first if first == second else np.int32(first | unsure)
        slots[i] = slot
        found = slot if slot < found else found
    return found < 0


@jit_inner
def guess_by_cells(x: Array, finder: Any, slots: Array) -> Any:
    """Write the entries of `guide` for the cells of samples: slots, or where to begin a search.

    Return whether any sample needs a search.
    """
    low, high, scale, n, guide = finder.low, finder.high, finder.scale, finder.cells, finder.guide
    # The entries behind those of the cells are for samples outside, and for the last edge.
    for i in range(len(slots)):
        v = float(x[i])
        at = (v - low) * scale
        at = at if v >= low else n + 0.0
        at = at if v < high else n + 1.0
        at = at if v != high else n + 2.0
        slots[i] = np.int32(at)
    # A loop by itself, because the compiler does not vectorize this one.
    found = np.int32(0)
    for i in range(len(slots)):
        slot = load_i4(guide, np.int64(slots[i]) * 4)
        slots[i] = slot
        found = slot if slot < found else found
    return found < 0


@jit_inner
def guess_nothing(slots: Array) -> None:
    """Mark all samples as in doubt."""
    for i in range(len(slots)):
        slots[i] = UNSURE


@jit_inner
def mark_missing(x: Array, missing: int, slots: Array) -> None:
    """Write the slot of NaN."""
    for i in range(len(slots)):
        slots[i] = slots[i] if x[i] == x[i] else missing


@jit_inner
def list_doubtful(slots: Array, places: Array) -> int:
    """Write the indices of guesses in doubt, and return their number."""
    n, m = 0, np.uint64(len(slots))
    # Unsigned: Numba counts negative indices from the end.
    for i in range(np.uint64(0), m, np.uint64(8)):
        end = i + np.uint64(8)
        some = True
        if end <= m:
            part = slots[i:end]
            some = (
                part[0] | part[1] | part[2] | part[3] | part[4] | part[5] | part[6] | part[7]
            ) < 0
        else:
            end = m
        if some:
            for k in range(i, end):
                places[n] = k
                n += slots[k] < 0
    return n


@jit_inner
def _edge_at(i: int, width: float, start: float, single: int) -> float:
    edge = i * width + start
    return float(np.float32(edge)) if single else edge


@jit_inner
def _outside(v: Any, low: Any, high: Any, n: int, closed: int) -> int:
    """Return the slot of a sample outside ``[low, high)``."""
    return n if v == high and closed else 0 if v < low else n + 1 if v >= high else 0


@jit_inner
def _begin(slot: Any, n: Any) -> Any:
    """Return the bin of a guess in doubt."""
    bin_: Any = np.int64(slot) - UNSURE - 1
    bin_ = bin_ if bin_ > 0 else 0
    return bin_ if bin_ < n else n - 1


@jit_inner
def compare_on_line(x: Array, finder: Any, places: Array, slots: Array) -> None:
    """Write the slots of samples for edges at ``i * width + start``.

    `single` rounds these edges to float32.
    """
    width, start, single = finder.width, finder.start, finder.single
    low, high, n = finder.low, finder.high, finder.n
    for k in range(len(places)):
        i = places[k]
        v = float(x[i])
        if low <= v < high:
            bin_ = _begin(slots[i], n)
            while v < _edge_at(bin_, width, start, single):
                bin_ -= 1
            while bin_ < n - 1 and v >= _edge_at(bin_ + 1, width, start, single):
                bin_ += 1
            slots[i] = bin_ + 1
        else:
            slots[i] = _outside(v, low, high, n, finder.closed)


@jit_inner
def put_in_order(x: Array, flip: int, out: Array) -> None:
    """Write integers in the order in which they compare with the int64 `edges`."""
    for i in range(len(x)):
        out[i] = np.int64(x[i]) ^ flip


@jit_inner
def compare(x: Array, load: Any, finder: Any, places: Array, slots: Array) -> None:
    """Write the slots of samples for edges in a table, which `load` reads."""
    edges, n = finder.edges, finder.n
    low, high = load(edges, 0), load(edges, n * 8)
    for k in range(len(places)):
        i = places[k]
        v = x[i]
        if not low <= v < high:
            slots[i] = _outside(v, low, high, n, finder.closed)
            continue
        bin_ = _begin(slots[i], n)
        while v < load(edges, bin_ * 8):
            bin_ -= 1
        end, jump = bin_ + 1, 1
        while end < n and v >= load(edges, end * 8):
            bin_ = end
            end, jump = end + jump, jump * 2
        end = end if end < n else n
        while end - bin_ > 1:
            middle = (bin_ + end) // 2
            if v >= load(edges, middle * 8):
                bin_ = middle
            else:
                end = middle
        slots[i] = bin_ + 1


@jit_inner
def find_by_values(x: Array, finder: Any, slots: Array) -> None:
    """Write the entries of `guide` for unsigned samples, or their own values if these are bins."""
    guide, n, others = finder.guide, finder.n, 0
    if finder.kind == VALUES:
        for i in range(len(slots)):
            slots[i] = load_i4(guide, np.int64(x[i]) * 4)
    else:
        for i in range(len(slots)):
            v = np.int64(x[i])
            inside = (v >= 0) & (v < n)
            slots[i] = v + 1 if inside else 0
            others += 0 if inside else 1
        finder.others = finder.others + others
