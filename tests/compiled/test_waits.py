"""Waits for compilations are timed, and a long one prints a line, once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from support.processes import python

from dask_coop.compiled import waits
from dask_coop.compiled.waits import WAITS, Waits, compiled_apart, compiling


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Return the compilations of a new process, whose users have little patience."""
    monkeypatch.setattr(waits, "WAITS", new := Waits())
    monkeypatch.setattr(waits, "_PATIENCE", 0.02)
    return new


def where() -> str:
    return "kept in /folder"


def test_a_compilation_that_takes_long_is_told_once_for_each_kind(
    clock: Waits, capsys: pytest.CaptureFixture[str]
) -> None:
    for what in ("loops for sums", "loops for sums", "kernels"):
        with compiling(what, where):
            time.sleep(0.1)
    assert capsys.readouterr().err == (
        "dask_coop: compiling loops for sums, first use only (kept in /folder)\n"
        "dask_coop: compiling kernels, first use only (kept in /folder)\n"
    )


def test_a_short_one_is_not_told(clock: Waits, capsys: pytest.CaptureFixture[str]) -> None:
    with compiling("kernels", where):
        pass
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_folder_that_cannot_be_said_fails_no_call(
    clock: Waits, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise OSError("no disk")

    clock.tell("kernels", fail)
    clock.tells = False
    clock.tell("loops for sums", where)
    assert capsys.readouterr().err == ""


def test_threads_that_compile_at_the_same_time_are_counted_once(clock: Waits) -> None:
    barrier = threading.Barrier(4)

    def compile_some() -> None:
        with compiling("kernels", where):
            barrier.wait()
            time.sleep(0.1)

    began = time.perf_counter()
    threads = [threading.Thread(target=compile_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.1 <= clock.seconds() <= time.perf_counter() - began


def test_one_that_goes_on_is_counted_until_now(clock: Waits) -> None:
    with compiling("kernels", where):
        time.sleep(0.02)
        assert clock.seconds() >= 0.02
    assert clock.seconds() == clock.seconds()


def test_the_words_behind_a_time() -> None:
    assert compiled_apart(4.06) == " (+ 4.1 s compiling, first use only)"
    assert compiled_apart(0.0) == ""


#: Compiles a loop, a loop of somebody else's, and says how long the first took.
COMPILES = """
import numba
from dask_coop.compiled import jit, waits
waits._PATIENCE = 0.0
{call}
print(waits.WAITS.seconds())
"""


def test_loops_of_this_library_are_timed_and_told_of_and_no_others(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    sums = (
        "import numpy as np\n"
        "from dask_coop.chunks.numpy.loops.compensated import sum_rows\n"
        "x = np.ones(9)\n"
        "sum_rows(x, 9, 9, None, None, np.empty(1, 'i8'), *np.zeros((2, 1)))\n"
    )
    mine = python("-c", COMPILES.format(call=sums), NUMBA_CACHE_DIR=tmp_path)
    assert mine.returncode == 0, mine.stderr
    assert float(mine.stdout) > 0.01
    assert mine.stderr.startswith("dask_coop: compiling loops for sums, first")
    assert f"(kept in {tmp_path}" in mine.stderr
    assert mine.stderr.count("\n") == 1
    # The next process loads it.
    again = python("-c", COMPILES.format(call=sums), NUMBA_CACHE_DIR=tmp_path)
    assert (float(again.stdout), again.stderr) == (0, "")
    other = python("-c", COMPILES.format(call="numba.njit(lambda x: x + 1)(1)"))
    assert (float(other.stdout), other.stderr) == (0, "")


def test_kernels_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core")
    from dask_coop.cuda import compiler

    before = WAITS.seconds()
    compiler.compile_program('extern "C" __global__ void entry() {}', "sm_80")
    assert WAITS.seconds() > before
