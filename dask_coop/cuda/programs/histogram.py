"""Programs of kernel_histogram.cuh and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: The threads of a block.
THREADS = 1024

#: The bins that a block of `everywhere` keeps in shared memory.
SLOTS = 1 << 12

#: The threads of a block that partitions, and the samples of each.
PARTITION_THREADS, PARTITION_ITEMS = 512, 16

#: The bins of a bucket, and the most buckets.
BUCKET, BUCKETS = 1 << 15, PARTITION_THREADS


Kind = Literal["guessed", "linear", "searched", "unit", "digit", "digits", "above", "below"]


#: Whether the one bin of the keys beyond a prefix is above it.
_BEYOND: dict[Kind, bool] = {"above": True, "below": False}

#: Whether bins by digits have several prefixes.
_DIGITS: dict[Kind, bool] = {"digit": False, "digits": True}


@dataclass(frozen=True)
class Finder:
    """One of the classes of bins.cuh, which find the bins of samples.

    Attributes
    ----------
    kind : {"guessed", "linear", "searched", "unit", "digit", "digits", "above", "below"}
    element, edge : str
        The C++ names of the samples' and the edges' dtypes; without edges, both are the samples'.
    limited : bool
        Whether samples are integers with more limits, of their own dtype.
    """

    kind: Kind
    element: str
    edge: str
    limited: bool = False

    @property
    def parameters(self) -> str:
        """The kernel's parameters of the bins."""
        return f"{self._parameters}, T least, T most" if self.limited else self._parameters

    @property
    def _parameters(self) -> str:
        if self.kind == "unit":
            return "int n"
        if self.kind in _BEYOND:
            return "int n, int bits, u64 prefix"
        if self.kind in _DIGITS:
            keys = "int n, int shift, int width, u64 prefix"
            several = ", int count, const u64* prefixes, const unsigned short* slots, int staged"
            return keys + several * _DIGITS[self.kind]
        edge = "int n, E low, E high, "
        if self.kind == "searched":
            table = "const E* edges, const int* guide, int cells, "
            return f"{edge}{table}DistanceOf<E>::type scale, int staged"
        line = f"{edge}double step, double start, double exact_scale"
        if self.kind == "linear":
            return line
        return f"{line}, E scale, E scale_low, E fraction, E middle, E gap, E sure, int base"

    @property
    def bins(self) -> str:
        """The C++ expression that makes the bins from the parameters."""
        return f"B{{{self._bins}, least, most}}" if self.limited else f"B{self._bins}"

    @property
    def _bins(self) -> str:
        if self.kind == "unit":
            return "{n}"
        if self.kind in _BEYOND:
            return "{n, bits, prefix}"
        if self.kind in _DIGITS:
            several = ", count, prefixes, slots, bool(staged)"
            return "{n, shift, width, prefix" + several * _DIGITS[self.kind] + "}"
        if self.kind == "searched":
            return "{n, low, high, edges, guide, cells, scale, bool(staged)}"
        line = "{n, low, high, step, start, exact_scale}"
        if self.kind == "linear":
            return line
        return f"{{{line}, scale, scale_low, fraction, middle, gap, sure, base}}"

    @property
    def unroll(self) -> int:
        """The loads of 16 bytes in flight, as many as registers hold."""
        if self.element in ("signed char", "unsigned char", "short", "unsigned short"):
            return 1
        if self.element == "half_t":
            return 2 if self.edge == "float" else 1
        floats = self.element in ("float", "double") and self.element == self.edge
        return 3 if floats and self.kind != "linear" else 2

    @property
    def type(self) -> str:
        """The C++ type of the bins."""
        if self.kind in _BEYOND:
            return f"BeyondBins<T, {str(_BEYOND[self.kind]).lower()}>"
        if self.kind in _DIGITS:
            return f"DigitBins<T, {str(_DIGITS[self.kind]).lower()}>"
        bins = f"{self.kind.capitalize()}Bins<E>"
        return f"LimitedBins<T, E, {bins}>" if self.limited else bins


@cache
def finder(
    kind: Kind, samples: np.dtype[Any], edge: np.dtype[Any], limited: bool = False
) -> Finder:
    """Return the finder of samples of one dtype between edges of another."""
    return Finder(kind, ctype(samples), ctype(edge), limited)


@cache
def windows(find: Finder, packed: bool) -> str:
    """Return the program that counts in the shared memory of blocks."""
    counters = "PackedCounters" if packed else "Counters"
    unroll = max(1, find.unroll - (packed and find.edge != "float"))
    call = f"count_windows<T, B, {counters}, {THREADS}, {unroll}>"
    return unit(
        "kernel_histogram.cuh",
        find,
        "u64* table, int first, int window, int splits",
        f"{call}(x, size, bins, table, first, window, splits);",
    )


def counters_bytes(bins: int, packed: bool) -> int:
    """Return the shared memory of the counters of `bins` bins."""
    return ((bins + 1) // 2 + 32 if packed else bins + 1) * 4


@cache
def by_value(find: Finder) -> str:
    """Return the program that counts samples of one byte by their values."""
    call = f"count_bytes<T, B, {THREADS}>(x, size, bins, table);"
    return unit("kernel_histogram.cuh", find, "u64* table", call)


@cache
def distributed(find: Finder) -> str:
    """Return the program that counts in the distributed shared memory of clusters."""
    call = f"count_distributed<T, B, {THREADS}, {find.unroll}>(x, size, bins, table, window);"
    return unit("kernel_histogram.cuh", find, "u64* table, int window", call)


@cache
def everywhere(find: Finder) -> str:
    """Return the program that counts in global memory."""
    call = f"count_global<T, B, {THREADS}, {find.unroll}>(x, size, bins, table, {SLOTS});"
    return unit("kernel_histogram.cuh", find, "u64* table", call)


def everywhere_shared_bytes() -> int:
    """Return the shared memory of a block of `everywhere`."""
    return SLOTS * 8


@cache
def partition(find: Finder) -> str:
    """Return the program that deals samples to lists, one for each bucket."""
    call = f"partition<T, B, {PARTITION_THREADS}, {PARTITION_ITEMS}>"
    return unit(
        "kernel_histogram_partition.cuh",
        find,
        "ListVector* lists, unsigned* extents, unsigned* sizes, int buckets",
        f"{call}(x, size, bins, lists, extents, sizes, buckets);",
        f"{PARTITION_THREADS}, 2",
    )


@cache
def lists() -> str:
    """Return the program that counts the lists of `partition`."""
    return f"""#include "kernel_histogram_partition.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS}, 1)
entry(const ListVector* lists, const unsigned* extents, const unsigned* sizes, int buckets,
      i64 tiles, int stride, int n, u64* table) {{
  count_lists<{THREADS}>(lists, extents, sizes, buckets, tiles, stride, n, table);
}}
"""


def lists_shared_bytes() -> int:
    """Return the shared memory of a block of `lists`."""
    return BUCKET * 4 + 256


#: The words of global memory for the weights of a bin that are added apart, as in
#: kernel_histogram_weighted.cuh.
APART_WORDS = 6

#: The words of the tables in shared memory for samples in no bin.
SPARE = 32

_SUMS = "WeightSums{table, above, below, apart, exponents}"
_ADDRESSES = "double* table, u64* above, u64* below, u64* apart, Exponents* exponents"

Sums = Literal["whole", "lean", "global"]

#: What is added of weights: the weights, which may be counted and the largest exponent of each bin
#: noted; or the scaled squares of their deviations from the means of bins.
Term = Literal["weights", "counted", "sized", "squares"]


def weighing_threads(find: Finder, sums: Sums, term: Term) -> int:
    """Return the threads of a block of `weigh`, limited by its registers."""
    counted_apart = sums == "lean" and term in ("counted", "sized")
    return 768 if find.kind == "digits" or counted_apart else THREADS


_SQUARES = "const double* means, const unsigned short* scales"


def _term(weight: str, term: Term, skipna: bool) -> tuple[str, str]:
    """Return the parameters of a term, and the C++ expression that makes it."""
    if term == "squares":
        return f", {_SQUARES}", f"SquareTerm<{weight}>{{means, scales}}"
    if term == "weights":
        return "", f"Term<{weight}, false, false, false>{{nullptr, nullptr}}"
    flags = str(skipna).lower(), str(term == "sized").lower()
    return (
        ", u64* counts, unsigned* sizes",
        f"Term<{weight}, true, {', '.join(flags)}>{{counts, sizes}}",
    )


@cache
def weigh(
    find: Finder, weight: np.dtype[Any], sums: Sums, term: Term = "weights", skipna: bool = False
) -> str:
    """Return the program that sums weights, with all, the main, or no words in shared memory.

    If `skipna`, weights that are counted or sized are without NaN, as are squares anyway.
    """
    is_float = str(weight.kind == "f" or term == "squares").lower()
    kinds, more, given = f"T, B, {ctype(weight)}, {is_float}", "", ""
    if sums != "global":
        kinds += f", {str(sums == 'lean').lower()}"
        more, given = (
            ", int window, int splits",
            ", window, splits",
        )
    name = "weigh_global" if sums == "global" else "weigh_shared"
    threads = weighing_threads(find, sums, term)
    parameter, of_weight = _term(ctype(weight), term, skipna)
    return unit(
        "kernel_histogram_weighted.cuh",
        find,
        f"const {ctype(weight)}* weights, {_ADDRESSES}, int round{more}{parameter}",
        f"{name}<{kinds}, {threads}>(x, weights, size, bins, {_SUMS}, round{given}, {of_weight});",
        f"{threads}, 1",
    )


@cache
def largest(weight: np.dtype[Any]) -> str:
    """Return the program that finds the exponent of the largest weight."""
    return f"""#include "kernel_histogram_weighted.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const {ctype(weight)}* weights, i64 size, i64 step, Exponents* exponents) {{
  largest<{ctype(weight)}, {THREADS}>(weights, size, step, exponents);
}}
"""


@cache
def largest_square(weight: np.dtype[Any]) -> str:
    """Return the program that finds the exponent of the largest square of a deviation."""
    value = ctype(weight)
    return f"""#include "kernel_histogram_weighted.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const unsigned* x, const {value}* weights, i64 size, int n, {_SQUARES}, i64 step,
      Exponents* exponents) {{
  SquareTerm<{value}> term{{means, scales}};
  largest_square<unsigned, {value}, {THREADS}>(x, weights, size, n, term, step, exponents);
}}
"""


@cache
def average(total: np.dtype[Any], wide: bool) -> str:
    """Return the program that makes means and scales of sums, counts and sizes.

    The sizes are of float64 if `wide`.
    """
    return f"""#include "kernel_histogram_weighted.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const {ctype(total)}* totals, const i64* counts, const unsigned* sizes, double* means,
      double* squares, unsigned short* scales, int n) {{
  average<{ctype(total)}, {str(wide).lower()}>(totals, counts, sizes, means, squares, scales, n);
}}
"""


@cache
def settle_squares() -> str:
    """Return the program that adds sums of scaled squares to the table."""
    return f"""#include "kernel_histogram_weighted.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry({_ADDRESSES}, const unsigned short* scales, int n) {{
  settle_squares<double>({_SUMS}, scales, n);
}}
"""


@cache
def clear() -> str:
    """Return the program that clears sums of weights that were too heavy."""
    return f"""#include "kernel_histogram_weighted.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry(u64* sums, i64 size, const Exponents* exponents) {{
  clear(sums, size, exponents);
}}
"""


@cache
def settle() -> str:
    """Return the program that adds the sums of floats to the table."""
    return f"""#include "kernel_histogram_weighted.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry({_ADDRESSES}, int n) {{
  settle({_SUMS}, n);
}}
"""


def unit(
    header: str, find: Finder, parameters: str, call: str, bounds: str = f"{THREADS}, 1"
) -> str:
    """Return a program of the samples `x`, their `size`, and `bins`."""
    return f"""#include "{header}"
using namespace coop;
using T = {find.element};
using E = {find.edge};
using B = {find.type};
extern "C" __global__ void __launch_bounds__({bounds})
entry(const T* x, i64 size, {find.parameters}, {parameters}) {{
  B bins = {find.bins};
  {call}
}}
"""


#: For bin indices: threads of a block, blocks of a multiprocessor, samples that a thread takes.
INDEX_THREADS, INDEX_BLOCKS, INDEX_UNROLL = 512, 2, 4


@cache
def locate(find: Finder, index: np.dtype[Any]) -> str:
    """Return the program that writes offsets as integers of the dtype `index`."""
    integer = ctype(index)
    numbering = "Numbering{under, over, missing, origin, stride, bool(closed)}"
    call = f"locate<E, {integer}, T, B, {INDEX_THREADS}, {INDEX_UNROLL}>"
    return unit(
        "kernel_histogram_index.cuh",
        find,
        "i64 under, i64 over, i64 missing, i64 origin, i64 stride, int closed, i64 count, "
        f"i64 length, i64 distance, {integer}* index",
        f"{call}(x, size, bins, {numbering}, count, length, distance, index);",
        f"{INDEX_THREADS}, {INDEX_BLOCKS}",
    )
