"""``python -m dask_coop warm``: the loops that it compiles are those that calls need."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.processes import printed

import dask_coop
from dask_coop.cli import loops

pytest.importorskip("numba")

#: Warms loops where asked to, and makes calls of the benchmark on chunks that `loops` knows nothing
#: of; prints what was said, and which loops each call had to compile or to look for on disk.
CALLS = """
import gc, json, sys
import dask, dask.array as da
import numpy as np
import dask_coop
from benchmarks import arrays
from dask_coop.cli import loops
from numba.core.dispatcher import Dispatcher

dtype, groups, works = sys.argv[1], sys.argv[2].split(), sys.argv[3:]

def ready():
    return {
        (loop.__module__, loop.__qualname__, str(types))
        for loop in gc.get_objects()
        if isinstance(loop, Dispatcher) and loop.targetoptions.get("no_cpython_wrapper") is None
        for types in loop.overloads
    }

said, counts = [], [0]
for group in groups:
    said += loops.warm([group], [dtype])
    counts.append(len(ready()))

a = np.random.default_rng(0).random((192, 2048), dtype)
views = da.from_array(a, chunks=(96, 1024), name=False)
plain = views.map_blocks(np.array, dtype=a.dtype)
line = da.from_array(a.ravel(), chunks=1 << 17, name=False)
inputs = {**dict.fromkeys(arrays.FLAT, (line, plain)), **dict.fromkeys(arrays.PAIRS, (line,))}
inputs |= dict.fromkeys(arrays.SQUARE, (views, plain))
found = {}
for work in works or inputs:
    several, call = inputs[work], arrays.CALLS[work]
    for x in several:
        before = ready()
        with np.errstate(all="ignore"):
            lazy = call.bind(dask_coop)(*[x] * call.arrays)
            dask.compute(lazy, scheduler="synchronous")
        if more := ready() - before:
            found[f"{work}, {x.ndim}-d"] = sorted(map(repr, more))
print(json.dumps([said, counts, found]))
"""


def calls(groups: str, *works: str) -> tuple[list[str], list[int], dict[str, Any]]:
    """Warm groups and make calls; return what was said, the loops behind each, and the new."""
    said, counts, found = json.loads(printed("-c", CALLS, "float32", groups, *works, timeout=600))
    return said, counts, found


def test_calls_look_for_no_loop_that_was_not_warmed() -> None:
    """In the folder of all tests, so that what is compiled here is for them, too."""
    said, counts, found = calls(" ".join(loops.GROUPS))
    for group, line in zip(loops.GROUPS, said, strict=True):
        assert re.fullmatch(rf"NumPy float32 {group}: \d+ loops compiled now, in .* s", line), line
    assert all(before < after for before, after in pairwise(counts))
    assert found == {}


def test_what_is_not_warm_is_seen_to_be_looked_for() -> None:
    assert "prod(), 1-d" in calls("", "prod()")[2]


#: Warms one function of a group.
WARM = """
import dask_coop
from dask_coop.cli import loops, main

loops._CALLS["reductions"] = lambda x: iter([dask_coop.prod(x)])
main.main(["warm", "--dtypes", "float32", "--only", "reductions"])
"""


def test_loops_are_compiled_once_and_kept(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        folder, line, *_ = printed("-c", WARM, NUMBA_CACHE_DIR=tmp_path).splitlines()
        assert folder == f"folder of loops over NumPy chunks: {next(tmp_path.iterdir())}"
        (count,) = re.findall(r"NumPy float32 reductions: (\d+) loops compiled now, in .* s", line)
        found.append(int(count))
    assert found[0] > 0 == found[1]


def test_every_function_with_an_axis_is_called() -> None:
    """What takes more than an array is named, and everything else is found."""
    named = {"reduce", "scan", "histogram2d", "moment", "topk", "argtopk"}
    named |= {"groupby_reduce", "groupby_scan", "to_hist", "linregress", "ewm_cov", "ewm_corr"}
    named |= {"longest_run", "count_runs", "count_in_runs", "first_run", "last_run"}
    named |= {"run_lengths", "run_events"}
    named |= {f"{nan}{name}" for nan in ("", "nan") for name in ("quantile", "percentile")}
    found = {function.__name__ for function, _ in loops._functions()}
    with_engine = {
        name
        for name in dask_coop.__all__
        if "engine" in getattr(getattr(dask_coop, name), "__annotations__", {})
    }
    assert with_engine - found == named
