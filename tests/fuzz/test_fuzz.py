"""A short share of the random cases, the same every time; and that they see what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from support import xarray_calls

import dask_coop as dc
from dask_coop.api import installed_xarray
from fuzz import draw, exact, families, labels, own
from fuzz.case import LAYOUTS, Case, Named, Operand
from fuzz.judge import Failure, judge
from fuzz.shrink import shrink
from fuzz.work import Tally, fails_alike, work

#: Some seconds' worth of each share of a family, on NumPy chunks.
CASES = 4


def report(tally: Tally) -> str:
    return "\n\n".join(map(str, tally.found))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_random_cases_hold(xp: Any, family: str) -> None:
    if families.FAMILIES[family].of_numpy_chunks and xp is not np:
        pytest.skip("there are no such chunks of CuPy")
    # Every second case compiles a kernel where none is kept yet.
    cases = CASES * families.FAMILIES[family].share // (1 if xp is np else 4)
    tally = work(xp, 0, only=(family,), cases=cases)
    assert tally.cases[family] == cases or tally.failures
    assert not tally.failures, report(tally)


def run(**settings: Any) -> subprocess.CompletedProcess[str]:
    given = {f"FUZZ_{name.upper()}": str(value) for name, value in settings.items()}
    path = os.pathsep.join(str(Path(__file__).parents[i]) for i in (1, 2))
    environment = {**os.environ, "PYTHONPATH": path, "FUZZ_CHUNKS": "numpy", **given}
    command = [sys.executable, "-m", "fuzz"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_run_has_query_planning_on_in_some_processes(tmp_path: Path) -> None:
    # Of this seed the one process draws one of them first, the other the other.
    path = tmp_path / "report.json"
    done = run(seconds=3, seed=2, processes=2, only="truth,transpose", report=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 2, 3 s, 2 processes, numpy chunks" in done.stdout
    entry = json.loads(path.read_text())
    assert entry["cases"].keys() == {"truth", "transpose"}
    assert min(entry["cases"].values()) > 0
    assert entry["failures"] == {}


def test_to_look_for_a_gpu_leaves_garbage_collection_on() -> None:
    path = os.pathsep.join(str(Path(__file__).parents[i]) for i in (1, 2))
    code = "import gc, fuzz.work; fuzz.work.chunks_of('auto'); assert gc.isenabled()"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True)


BROKEN = """
import sys
import dask_coop as dc
from fuzz import __main__ as run

honest = dc.cumsum
dc.cumsum = lambda x, *args, **kwargs: honest(x, *args, **kwargs) + (x.size > 0)
sys.exit(run.worker(run.json.loads(sys.argv[1])))
"""


def test_a_process_with_query_planning_says_what_is_wrong(tmp_path: Path) -> None:
    given = {"seed": 1, "cases": 8, "chunks": "numpy", "only": ["scan"], "patience": 0.1}
    path = os.pathsep.join(str(Path(__file__).parents[i]) for i in (1, 2))
    command = [
        sys.executable,
        "-c",
        BROKEN,
        json.dumps({**given, "progress": str(tmp_path / "at")}),
    ]
    environment = {**os.environ, "PYTHONPATH": path, "DASK_ARRAY__QUERY_PLANNING": "True"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    assert lines[-1]["tally"]["failures"]["scan"] >= 1
    assert (lines[0]["found"]["function"], lines[0]["found"]["planning"]) == ("cumsum", True)
    assert int((tmp_path / "at").read_text()) > 0


def test_the_same_two_numbers_give_the_same_case() -> None:
    for index in range(60):
        first, second = families.draw_case(7, index), families.draw_case(7, index)
        assert first.family == families.family_of(7, index)
        assert (first.function, first.inputs[0].chunks) == (
            second.function,
            second.inputs[0].chunks,
        )
        assert first.x.tobytes() == second.x.tobytes()
        assert repr(first.options) == repr(second.options)


def test_every_family_is_drawn_and_every_layout() -> None:
    cases = [families.draw_case(0, index) for index in range(800)]
    assert {case.family for case in cases} == families.FAMILIES.keys()
    assert {case.inputs[0].layout for case in cases} == {"C", ">", *LAYOUTS}
    cases = [case for case in cases if case.family != "dates"]
    assert {case.x.dtype.name for case in cases} == {np.dtype(d).name for d in draw.NUMBERS}


def test_a_line_of_python_builds_the_case() -> None:
    names: dict[str, Any] = {"np": np, "da": da, "dc": dc, "own": own, "xarray_calls": xarray_calls}
    from dask_coop.algebra import monoids

    names["monoids"] = monoids
    for index in range(60):
        case = replace(families.draw_case(3, index), compiled=False)
        code = case.code(np).removeprefix("from dask_coop import monoids; from fuzz import own; ")
        case = replace(case, inputs=tuple(replace(o, layout="C") for o in case.inputs))
        try:
            mine = case.call(np)
        except Exception:
            continue
        theirs = eval(code, names)
        theirs = theirs if isinstance(theirs, tuple) else (theirs,)
        lazy = [result for result in mine if isinstance(result, da.Array)]
        found = [result for result in theirs if isinstance(result, da.Array)]
        for one, other in zip(lazy, found, strict=False):
            assert one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
            assert one.chunks == other.chunks or one.shape != one.shape


def off_by_one(x: Any, **options: Any) -> Any:
    return da.sum(x, **options) + (x >= 100).any()


def plain(array: Any, **options: Any) -> Case:
    chunks = tuple((n // 2, n - n // 2) for n in array.shape)
    operand = Operand(array, chunks, "ab"[: array.ndim], "F")
    return Case("fold", "sum", (operand,), {}, options, compiled=True)


def test_what_is_wrong_is_found_and_cut_down_to_one_element(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dc, "sum", off_by_one)
    array = np.arange(70).reshape(7, 10)
    assert judge(plain(array, axis=1), np) is None
    array[3, 4] = 117
    case = plain(array, axis=1, keepdims=True)
    failure = judge(case, np)
    assert failure is not None
    assert failure.kind == "values"
    least = shrink(case, lambda c: (f := judge(c, np)) is not None and f.kind == "values")
    assert least.code(np) == (
        "dc.sum(da.from_array(np.array([117], 'i8').reshape((1, 1)), chunks=-1))"
    )


def test_what_is_cut_down_raises_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Any, axis: Any = None) -> Any:
        if axis is None:
            raise ValueError("give an axis")
        raise ValueError(f"missing dependency of {x.size}")

    monkeypatch.setattr(dc, "sum", wrong)
    case = plain(np.arange(70).reshape(7, 10), axis=1)
    failure = judge(case, np)
    assert failure is not None
    least = shrink(case, fails_alike(failure, np))
    assert least.options == {"axis": 1}
    assert least.x.size < 70


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda x: da.sum(x).astype("f8"), "dtype"),
        (lambda x: da.sum(x, keepdims=True), "shape"),
        (lambda x: da.sum(x).map_blocks(lambda b: b.astype("f4"), dtype="i8"), "dtype"),
        (lambda x: da.cumsum(x, 0).map_blocks(lambda b: b[:1]), "chunks"),
        (lambda x: da.sum(x).map_blocks(float, dtype="i8"), "type"),
        (lambda x: da.sum(x) + da.from_array(np.zeros(()), name=False).astype("i8"), "keys"),
        (lambda x: 1 // 0, "raises ZeroDivisionError"),
    ],
)
def test_results_are_held_to_all_that_they_promise(
    monkeypatch: pytest.MonkeyPatch, wrong: Any, kind: str
) -> None:
    if da.array_expr_enabled():
        pytest.skip("the wrong results are written for graphs")
    monkeypatch.setattr(dc, "sum", wrong)
    failure = judge(plain(np.arange(9)), np)
    assert isinstance(failure, Failure)
    assert failure.kind.split()[0] == kind.split()[0]


def test_what_numpy_refuses_is_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(plain(np.empty(0)), family="extremum", function="max")
    assert judge(case, np) is None
    monkeypatch.setattr(dc, "max", lambda x: da.zeros(()))
    failure = judge(case, np)
    assert failure is not None
    assert failure.kind == "accepts"


def test_errors_are_measured_in_ulps_of_the_result() -> None:
    third = np.array([1 / 3], "g")
    off = np.array([1 / 3])
    for ulps in (0, 1, 2, 3):
        assert exact.Expected(third, "f8", 2.0).differs(off).any() == (ulps > 2)
        off = np.nextafter(off, 1)
    narrow = exact.Expected(np.array([1e300], "g"), "f4", 1.0)
    assert not narrow.differs(np.array([np.inf], "f4")).any()
    assert narrow.differs(np.array([3e38], "f4")).any()
    nan = exact.Expected(np.array([np.nan]), "f8", 1.0)
    assert not nan.differs(np.array([np.nan])).any()
    assert nan.differs(np.array([0.0])).any()


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_long_sums_are_exact(dtype: str) -> None:
    import math

    rng = np.random.default_rng(0)
    x = (rng.standard_normal(20_000) * 10.0 ** rng.integers(-3, 4, 20_000)).astype(dtype)
    total = exact.total(x, None, False)
    assert abs(float(total.real) - math.fsum(x.real)) <= np.spacing(abs(float(total.real)))
    assert abs(float(exact.running(x)[-1].real - total.real)) <= 1e-25
    x[3000] = np.inf
    assert np.isfinite(exact.running(x)[:3000]).all()
    assert not np.isfinite(exact.running(x)[3000:]).any()


def test_options_have_names_where_they_have_no_literals() -> None:
    assert Named("own.AFFINE").value is own.AFFINE
    assert Named("np.inf").value == np.inf


def test_a_case_of_labels_fails_where_results_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Operand(np.arange(12, dtype="i2").reshape(4, 3), ((2, 2), (3,)), "ty")
    options = {"line": "x.rolling(time=2).max()", "name": "t2m"}
    case = labels.Labels("labels", "xarray", (x,), {}, options)
    assert judge(case, np) is None
    monkeypatch.setattr(installed_xarray, "_xarrays_dtype", lambda *_: None)
    failure = judge(case, np)
    assert failure is not None
    assert failure.kind == "raises AssertionError"
    assert failure.details == "dtype of x.rolling(time=2).max(): float32 -> float64"
