"""What is counted goes to whoever looks, and costs next to nothing where nobody does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import timeit
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed.metrics import context_meter

import dask_coop as dc
from dask_coop import chunks, meters
from dask_coop.cuda import compiler
from dask_coop.cuda.sharing import begin, once
from dask_coop.graph.threads import TILE

KERNELS = Path(__file__).parents[1] / "kernels"


@pytest.fixture
def told() -> Any:
    """Look, and return what is told."""
    found: Counter[tuple[str, str]] = Counter()
    with context_meter.add_callback(lambda what, value, unit: found.update({(what, unit): value})):
        yield found


@pytest.fixture
def module() -> ModuleType:
    """Return a module with a function that does nothing, and one that raises."""
    made = ModuleType("made")
    made.__dict__.update(do_nothing=lambda *args: args, fail=lambda: 1 / 0)
    return made


def test_chunk_functions_are_counted_by_their_names(told: Any) -> None:
    x = da.from_array(np.arange(100.0), chunks=10)
    dask.compute(dc.sum(x), dc.cumsum(x), dc.histogram(x, 3, (0, 9))[0], scheduler="sync")
    # The last chunk of a scan is not lifted.
    expected = {"coop-lift": 10 + 9, "coop-scan": 10, "coop-histogram": 10}
    assert {what: n for (what, unit), n in told.items() if unit == "count"} == expected


def test_parts_of_a_chunk_are_counted_in_whatever_thread(told: Any) -> None:
    x = da.ones(4 * TILE, chunks=4 * TILE)
    with dask.config.set({"coop.threads": 4}):
        total = dc.sum(x)
    assert total.compute(scheduler="sync") == 4 * TILE
    assert told == {("coop-lift", "count"): 4}


def test_what_is_timed_has_seconds_and_bytes_also_where_it_fails(told: Any) -> None:
    with pytest.raises(ZeroDivisionError), meters.timed("coop-copy", 7):
        1 / 0  # noqa: B018
    assert told["coop-copy", "bytes"] == 7
    assert 0 < told["coop-copy", "seconds"] < 10


def test_a_compilation_is_counted_also_in_threads_of_its_own(told: Any) -> None:
    @once
    def compiled(source: str) -> str:
        meters.count(meters.COMPILATIONS)
        return source

    begin(compiled, [("a",), ("b",)])
    assert [compiled("a"), compiled("b")] == ["a", "b"]
    assert told == {("coop-compile", "count"): 2}


def test_calls_are_ranges_of_a_profile(module: ModuleType, told: Any) -> None:
    log: list[str] = []
    ranges = SimpleNamespace(RangePush=log.append, RangePop=lambda: log.append("end"))
    functions = meters.counted(module, ["do_nothing", "fail"], ranges)
    assert functions.do_nothing(1, 2) == (1, 2)
    with pytest.raises(ZeroDivisionError):
        functions.fail()
    assert log == ["coop-do-nothing", "end", "coop-fail", "end"]
    assert told == {("coop-do-nothing", "count"): 1, ("coop-fail", "count"): 1}


def test_without_a_meter_a_call_costs_less_than_a_launch(module: ModuleType) -> None:
    functions = meters.counted(module, ["do_nothing"])
    # So few that some runs are not interrupted.
    many = 100

    def seconds(function: Any) -> float:
        return min(timeit.repeat(lambda: function(1, 2, 3), number=many, repeat=2000)) / many

    # A launch takes 5 us. What is counted takes a tenth of it, twice that on a busy machine.
    assert seconds(functions.do_nothing) - seconds(module.do_nothing) < 5e-6


def test_counting_does_not_import_distributed() -> None:
    code = (
        "import sys, numpy, dask_coop\n"
        "x = numpy.ones(9)\n"
        "dask_coop.chunks.backend_of(x).flatnonzero(x)\n"
        "assert 'distributed' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_compilation_has_seconds(told: Any) -> None:
    pytest.importorskip("cuda.core")
    compiler.compile_program('extern "C" __global__ void entry() {}', "sm_90")
    assert told["coop-compile", "count"] == 1
    assert 0 < told["coop-compile", "seconds"] < 60


@pytest.mark.gpu
def test_copies_and_launches_are_counted(told: Any) -> None:
    x = chunks.asarray(np.arange(100.0), "cupy")
    assert dc.sum(da.from_array(x, 50, asarray=False)).compute(scheduler="sync") == 4950
    assert chunks.asarray(x, "numpy")[-1] == 99
    for activity in ("coop-from-numpy", "coop-to-numpy"):
        assert told[activity, "bytes"] >= x.nbytes
        assert told[activity, "seconds"] > 0
    assert told["coop-lift", "count"] == 2
    assert told["coop-kernels", "count"] >= 2


#: Tells of the launches of common programs, in a process of its own with a CuPy that is made up.
LAUNCHES = """
import json, sys
# Dask, which looks for CuPy, before there is one.
import numpy as np
from dask_coop.chunks.cupy import program_sets
from dask_coop.cuda.devices import usual
from distributed.metrics import context_meter
from types import ModuleType, SimpleNamespace
log = []
cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
cuda.nvtx = SimpleNamespace(
    available=True, RangePush=log.append, RangePop=lambda: log.append("end")
)
cupy.cuda = cuda
sys.modules.update({"cupy": cupy, "cupy.cuda": cuda})
from dask_coop.cuda.launch import counted_launch
counted = []
with context_meter.add_callback(lambda *given: counted.append(given)):
    for source in program_sets.common((np.dtype("f4"),), usual("sm_90")):
        with counted_launch(source):
            log.append("launch")
print(json.dumps([log, counted]))
"""


def test_a_launch_is_counted_and_a_range_by_the_name_of_its_template() -> None:
    pytest.importorskip("cuda.core")
    run = subprocess.run([sys.executable, "-c", LAUNCHES], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    log, counted = json.loads(run.stdout)
    names = log[::3]
    assert log[1::3] == ["launch"] * len(names)
    assert log[2::3] == ["end"] * len(names)
    assert counted == [["coop-kernels", 1, "count"]] * len(names)
    kernels = "".join(path.read_text() for path in KERNELS.glob("*.cuh"))
    assert {"reduce_rows", "multichunk_reduce"} <= {*names}
    assert all(re.search(rf"\b{name}\(", kernels) for name in names), names
