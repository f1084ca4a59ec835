"""Count the GPU calls that another chunk costs, by a stand-in for CuPy: they may only fall.

Each costs the host microseconds, and a wait 20 or more, in which a GPU reads 60 MB. Of results that
have chunks, Dask's concatenation copies each: a kernel, and an allocation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

#: The waits, allocations, and kernels or copies of a chunk that is in memory. Lower what falls.
COSTS = {
    "sum": (1, 1, 1),
    "nanmean": (1, 1, 1),
    "sum, columns": (1, 1, 1),
    "sum, rows": (1, 2, 2),
    "std, columns": (1, 1, 1),
    "argmax, rows": (1, 2, 3),
    "max where": (1, 3, 3),
    "describe": (1, 1, 1),
    "histogram": (1, 1, 2),
    "histogram, rows": (1, 4, 5),
    "histogram, weights": (1, 2, 5),
    "histogram2d": (1, 5, 7),
    "bincount": (1, 6, 7),
    "digitize": (0, 4, 4),
    "cumsum, columns": (1, 4, 4),
    "cumsum, rows": (0, 2, 2),
    "ffill, columns": (1, 5, 5),
    "ffill, rows": (0, 2, 2),
    "move_mean, columns": (0, 4, 2),
    "move_mean, rows": (0, 2, 2),
    "move_median, columns": (0, 4, 4),
    "move_median, rows": (0, 2, 2),
    "sum by group": (1, 2, 6),
    "sum by many groups": (1, 2, 6),
    "mean by group": (1, 2, 6),
    "max by group": (1, 2, 5),
    "var by group": (1, 6, 13),
    "mean by month": (1, 5, 7),
    "topk, columns": (1, 5, 5),
    "topk, rows": (1, 6, 6),
    "median, rows": (2, 6, 5),
    "unique": (2, 8.75, 8.75),
    "isin": (0, 6, 6),
    "flatnonzero": (1, 3, 3),
}

#: Calls whose chunks are made on the way, and are not joined.
APART = {"max where", "bincount", "flatnonzero"}

Costs = dict[str, tuple[list[float], list[float]]]


# One process counts for all tests.
pytestmark = pytest.mark.xdist_group("costs")


@pytest.fixture(scope="module")
def costs() -> Costs:
    pytest.importorskip("cuda.core")
    path = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    command = [sys.executable, "-m", "support.host_cupy.costs"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: Costs = json.loads(done.stdout)
    return result


def test_all_calls_are_counted(costs: Costs) -> None:
    assert set(costs) == set(COSTS)


@pytest.mark.parametrize("name", COSTS)
def test_another_chunk_costs_no_more(costs: Costs, name: str) -> None:
    kinds = ("waits", "allocations", "queued")
    apart = dict(zip(kinds, costs[name][0], strict=True))
    most = dict(zip(kinds, COSTS[name], strict=True))
    assert all(apart[kind] <= most[kind] for kind in kinds), (apart, most)


@pytest.mark.parametrize("name", [name for name in COSTS if name not in APART])
def test_another_chunk_that_is_joined_costs_no_wait(costs: Costs, name: str) -> None:
    waits, allocations, _ = costs[name][1]
    assert waits == 0
    # Dask's concatenation.
    assert allocations <= 1
