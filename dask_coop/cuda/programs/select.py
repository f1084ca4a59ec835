"""What masks, bins and zeros select: programs of kernel_select.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype
from dask_coop.cuda.programs.histogram import Finder, finder

#: Threads of a block.
THREADS = 256

#: Bytes of elements that a thread takes at a time, and the most of its elements.
_BYTES, _MOST = 64, 32

#: What elements are moved as where their values do not matter, by their sizes.
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64", 16: "Word16"}

#: The sizes of elements that masks select from.
SIZES = tuple(_WORDS)


@dataclass(frozen=True)
class Selection:
    """What is kept, and what is written of it.

    Attributes
    ----------
    source, element : str
        The C++ names of what is asked, and of the elements.
    item : int
        The size of an element, in bytes.
    find : Finder, optional
        The bins that elements are kept of; without it what is kept is not zero.
    beside : bool
        Whether a mask beside the elements is asked.
    values, indices : bool
        Whether elements are written, and where they are.
    """

    source: str
    element: str
    item: int
    find: Finder | None = None
    beside: bool = False
    values: bool = False
    indices: bool = False

    @property
    def items(self) -> int:
        """The elements of a thread."""
        return min(_BYTES // self.item, _MOST)

    @property
    def tile(self) -> int:
        """The elements of a block."""
        return THREADS * self.items

    @property
    def _parameters(self) -> str:
        return f"{self.find.parameters}, " if self.find else ""

    @property
    def _keep(self) -> str:
        return f"BinsKeep<B>{{{self.find.bins}}}" if self.find else "NonzeroKeep{}"

    @property
    def _types(self) -> str:
        lines = [f"using S = {self.source};", f"using T = {self.element};"]
        if self.find:
            lines += [f"using E = {self.find.edge};", f"using B = {self.find.type};"]
        return "\n".join(lines)


def masked(item: int) -> Selection:
    """Return the selection of elements of so many bytes by a mask of bytes."""
    return Selection(_WORDS[1], _WORDS[item], item, beside=True, values=True)


def nonzero(dtype: np.dtype[Any]) -> Selection:
    """Return the selection of the indices of what is not zero."""
    return Selection(ctype(dtype), ctype(dtype), dtype.itemsize, indices=True)


def within(find: Finder, item: int, values: bool, indices: bool) -> Selection:
    """Return the selection of what is in some bins."""
    name = find.element
    return Selection(name, name, item, find=find, values=values, indices=indices)


@cache
def count(of: Selection) -> str:
    """Return the program that counts what is kept of each tile, by a warp each."""
    return f"""#include "kernel_select.cuh"
using namespace coop;
{of._types}
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const S* sources, i64 size, {of._parameters}i64* counts) {{
  auto keep = {of._keep};
  count_kept<S, decltype(keep), {THREADS}, {of.tile}>(sources, size, keep, counts);
}}
"""


@cache
def write(of: Selection) -> str:
    """Return the program that writes what is kept, by a block a tile."""
    flags = ", ".join(str(flag).lower() for flag in (of.beside, of.values, of.indices))
    return f"""#include "kernel_select.cuh"
using namespace coop;
{of._types}
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const S* sources, const T* x, i64 size, {of._parameters}const i64* ends, T* y, i64* index) {{
  auto keep = {of._keep};
  write_kept<S, T, decltype(keep), {flags}, {THREADS}, {of.items}>
      (sources, x, size, keep, ends, y, index);
}}
"""


#: Threads of a block that collects, and vectors that one of them has in flight.
COLLECT_THREADS, _COLLECT_LOADS = 512, 3

#: Shared memory for what a block has collected, and for the bits by which it tells that, in bytes.
COLLECT_BYTES, FILTER_BYTES = 1 << 15, 1 << 12


@cache
def collect(samples: np.dtype[Any], several: bool) -> str:
    """Return the program that collects what begins with one prefix, or with one of several."""
    parameters = "int bits, u64 prefix"
    filtered = "bits, prefix"
    if several:
        parameters += ", int count, const u64* prefixes, const unsigned* begins"
        filtered += ", count, prefixes, begins"
    call = f"collect<T, F, {COLLECT_THREADS}, {_COLLECT_LOADS}>"
    return f"""#include "kernel_collect.cuh"
using namespace coop;
using T = {ctype(samples)};
using F = PrefixFilter<T, {str(several).lower()}>;
extern "C" __global__ void __launch_bounds__({COLLECT_THREADS}, 2)
entry(const T* x, i64 size, {parameters}, i64 tile, unsigned room, T* out, u64 capacity,
      u64* total) {{
  {call}(x, size, F{{{filtered}}}, tile, room, out, capacity, total);
}}
"""


def programs(dtype: np.dtype[Any]) -> list[str]:
    """Return what selections from elements of `dtype` launch, by bins as integers find them."""
    selections = [masked(dtype.itemsize), nonzero(dtype)]
    if dtype.kind in "iu":
        own = finder("unit", dtype, dtype)
        for written in ((True, False), (False, True), (True, True)):
            selections.append(within(own, dtype.itemsize, *written))
    return [make(of) for of in selections for make in (count, write)]
