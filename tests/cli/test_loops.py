"""``python -m dask_coop warm``: the loops that it compiles are those that calls need."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.processes import printed

import dask_coop
from dask_coop.cli import loops

pytest.importorskip("numba")

#: The calls of the benchmark, on chunks that `loops` knows nothing of; prints what Numba had to
#: compile for each.
CALLS = """
import json, sys
import dask, dask.array as da
import numpy as np
import dask_coop
from benchmarks import arrays
from numba.core import event

a = np.random.default_rng(0).random((192, 2048), sys.argv[1])
views = da.from_array(a, chunks=(96, 1024), name=False)
plain = views.map_blocks(np.array, dtype=a.dtype)
line = da.from_array(a.ravel(), chunks=1 << 17, name=False)
inputs = {**dict.fromkeys(arrays.FLAT, (line, plain)), **dict.fromkeys(arrays.PAIRS, (line,))}
inputs |= dict.fromkeys(arrays.SQUARE, (views, plain))
found = {}
for work in sys.argv[2:] or inputs:
    several, call = inputs[work], arrays.CALLS[work]
    for x in several:
        with np.errstate(all="ignore"), event.install_recorder("numba:compile") as recorder:
            lazy = call.bind(dask_coop)(*[x] * call.arrays)
            dask.compute(lazy, scheduler="synchronous")
        if compiled := {e.data["dispatcher"].__name__ for _, e in recorder.buffer if e.is_start}:
            found[f"{work}, {x.ndim}-d"] = sorted(compiled)
print(json.dumps(found))
"""


def compiled_by_calls(*works: str, cache: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        printed("-c", CALLS, "float32", *works, NUMBA_CACHE_DIR=cache)
    )
    return found


def test_what_is_warm_compiles_nothing_more(tmp_path: Path) -> None:
    command = ("-m", "dask_coop", "warm", "--dtypes", "float32")
    said = printed(*command, NUMBA_CACHE_DIR=tmp_path).splitlines()
    assert said[0] == f"folder of loops over NumPy chunks: {next(tmp_path.iterdir())}"
    lines = said[1 : 1 + len(loops.GROUPS)]
    for group, line in zip(loops.GROUPS, lines, strict=True):
        found = re.fullmatch(rf"NumPy float32 {group}: (\d+) loops compiled now, in .* s", line)
        assert found, line
        assert int(found[1]) > 0
    assert compiled_by_calls(cache=tmp_path) == {}


def test_what_is_not_warm_is_seen_to_compile(tmp_path: Path) -> None:
    assert "prod(), 1-d" in compiled_by_calls("prod()", cache=tmp_path)


def test_every_function_with_an_axis_is_called() -> None:
    """What takes more than an array is named, and everything else is found."""
    named = {"reduce", "scan", "histogram2d", "moment", "topk", "argtopk"}
    named |= {"groupby_reduce", "groupby_scan", "to_hist"}
    named |= {f"{nan}{name}" for nan in ("", "nan") for name in ("quantile", "percentile")}
    found = {function.__name__ for function, _ in loops._functions()}
    with_engine = {
        name
        for name in dask_coop.__all__
        if "engine" in getattr(getattr(dask_coop, name), "__annotations__", {})
    }
    assert with_engine - found == named
