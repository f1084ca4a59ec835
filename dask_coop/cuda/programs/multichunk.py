"""Programs of kernel_multichunk.cuh and kernel_multichunk_histogram.cuh."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs import histogram as histograms
from dask_coop.cuda.programs.base import Functor, ctype
from dask_coop.cuda.programs.reduce import BLOCKS, THREADS, loads
from dask_coop.cuda.programs.scan import Scan, Waves, waves_shared_bytes

#: The loads of 16 bytes that a thread of a scan has in flight while it reduces.
_LOADS = 6

#: The most shared memory of a block of `histogram` that is not dynamic, in bytes.
HISTOGRAM_STATIC_BYTES = 64

#: The most GPUs of a launch: `Peers::most` of kernels/barrier.cuh.
MOST = 16

#: `Peers` of kernels/barrier.cuh.
PEERS = np.dtype(
    [
        ("flags", "u8", MOST),
        ("arrived", "u8"),
        ("failed", "u8"),
        ("timeout", "u8"),
        ("rank", "i4"),
        ("count", "i4"),
    ],
    align=True,
)

#: `Work` of kernels/kernel_multichunk.cuh.
WORK = np.dtype(
    [("stretches", "u8"), ("first", "u8"), ("begin", "u8"), ("chunks", "i4"), ("all", "i4")],
    align=True,
)

#: `Steps` of kernels/kernel_multichunk.cuh.
UP, DOWN = 1, 2

_REST = "M::State* states, M::State* const* of_chunks"


@cache
def reduce(functor: Functor, element: np.dtype[Any], state: np.dtype[Any]) -> str:
    """Return the program that reduces an array of several chunks."""
    return f"""{_head()}
{functor.definition}using M = {functor};
using T = {ctype(element)};
static_assert(sizeof(M::State) == {state.itemsize}, "Python and CUDA disagree on a state");
extern "C" __global__ void __launch_bounds__({THREADS}, {BLOCKS})
entry(Work<T, T> work, const __grid_constant__ Peers peers, unsigned epoch,
      {_REST}, M::State* out) {{
  multichunk_reduce<T, M, {THREADS}, {loads(element, state)}>(
      work, states, of_chunks, out, peers, epoch);
}}
"""


@cache
def scan(of: Scan, tuning: Waves | None) -> str:
    """Return the program that scans an array of several chunks, with the bulk copy engine if tuned.

    Its last argument is `UP`, `DOWN`, or both.
    """
    if tuning is None:
        bounds = str(THREADS)
        call = f"multichunk_scan_rows<T, M, R, {THREADS}, {of.items}, {of.flags}, {_LOADS}>"
    else:
        bounds = f"{tuning.threads}, 1"
        numbers = f"{tuning.warps}, {tuning.items}, {tuning.stages}, {tuning.ahead}, {of.flags}"
        shared = waves_shared_bytes(of, tuning)
        call = f"multichunk_scan_waves<T, M, R, {numbers}, {_LOADS}, {shared}>"
    return f"""{_head()}
{of.functor.definition}using M = {of.functor};
using T = {of.element};
using R = {of.result};
static_assert(sizeof(M::State) == {of.state_bytes}, "Python and CUDA disagree on a state");
extern "C" __global__ void __launch_bounds__({bounds})
entry(Work<T, R> work, const __grid_constant__ Peers peers, unsigned epoch,
      {_REST}, const M::State* bases, int steps) {{
  {call}(work, states, of_chunks, bases, steps, peers, epoch);
}}
"""


@cache
def histogram(find: histograms.Finder, packed: bool) -> str:
    """Return the program that counts an array of several chunks."""
    counters = "PackedCounters" if packed else "Counters"
    numbers = f"{histograms.THREADS}, {max(1, find.unroll - packed)}"
    return f"""{_head("kernel_multichunk_histogram.cuh")}
using T = {find.element};
using E = {find.edge};
using B = {find.type};
extern "C" __global__ void __launch_bounds__({histograms.THREADS}, 1)
entry(Work<T, T> work, const __grid_constant__ Peers peers, unsigned epoch,
      {find.parameters}, u64* const* tables, u64* out) {{
  B bins = {find.bins};
  multichunk_histogram<T, B, {counters}, {numbers}>(work, bins, tables, out, peers, epoch);
}}
"""


def fit_counters(bins: int, shared_bytes: int, staged: int = 0) -> tuple[bool, int] | None:
    """Return whether a block of `histogram` packs its counters, and its dynamic shared memory.

    Parameters
    ----------
    bins : int
    shared_bytes : int
        The shared memory available to a block, in bytes.
    staged : int
        Its bytes for the tables that samples are looked up in.

    Returns
    -------
    tuple of bool and int, or None
        None if the bins do not fit.
    """
    for packed in (False, True):
        nbytes = staged + histograms.counters_bytes(bins, packed)
        if nbytes <= shared_bytes - HISTOGRAM_STATIC_BYTES:
            return packed, nbytes
    return None


def _head(header: str = "kernel_multichunk.cuh") -> str:
    return f"""#include "{header}"
using namespace coop;
static_assert(sizeof(Peers) == {PEERS.itemsize}, "Python and CUDA disagree on Peers");
static_assert(sizeof(Work<int, int>) == {WORK.itemsize}, "Python and CUDA disagree on Work");"""
