"""What is counted goes to whoever looks, and costs next to nothing where nobody does."""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed.metrics import context_meter

import dask_coop as dc
from dask_coop import meters
from dask_coop.cuda.sharing import begin, once


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


def test_without_a_meter_a_call_costs_less_than_a_microsecond(module: ModuleType) -> None:
    functions = meters.counted(module, ["do_nothing"])
    # So few that some runs are not interrupted.
    many = 100

    def seconds(function: Any) -> float:
        return min(timeit.repeat(lambda: function(1, 2, 3), number=many, repeat=2000)) / many

    assert seconds(functions.do_nothing) - seconds(module.do_nothing) < 1e-6


def test_counting_does_not_import_distributed() -> None:
    code = (
        "import sys, numpy, dask_coop\n"
        "x = numpy.ones(9)\n"
        "dask_coop.chunks.backend_of(x).flatnonzero(x)\n"
        "assert 'distributed' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
