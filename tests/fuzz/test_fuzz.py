"""A short share of the random cases, the same every time; and that they see what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support import xarray_calls
from support.compiled import THOROUGH
from support.processes import printed, python

import dask_coop as dc
from dask_coop.api.install import of_xarray as installed_xarray
from fuzz import draw, engines, exact, families, fills, labels, own
from fuzz.__main__ import Run
from fuzz.case import LAYOUTS, Case, Named, Operand, undeclared
from fuzz.judge import Failure, judge
from fuzz.shrink import shrink
from fuzz.work import Found, Tally, fails_alike, work

#: Cases of each share of a family, of which a GPU runs a fourth. `make fuzz` runs many more.
CASES = 3


def report(tally: Tally) -> str:
    return "\n\n".join(map(str, tally.found))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_random_cases_hold(xp: Any, family: str) -> None:
    if families.FAMILIES[family].of_numpy_chunks and xp is not np:
        pytest.skip("there are no such chunks of CuPy")
    # Every second case compiles a loop or a kernel where none is kept yet.
    share = families.FAMILIES[family].share
    cases = CASES * share
    if xp is not np:
        cases //= 4
    elif not THOROUGH:
        cases = max(2, share)
    tally = work(xp, 0, only=(family,), cases=cases)
    assert tally.cases[family] == cases or tally.failures
    assert not tally.failures, report(tally)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield
    engines.close()


#: Families of which collectives take most cases.
COLLECTIVE = ("fold", "extremum", "histogram", "scan", "groups", "quantile")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("family", COLLECTIVE)
def test_random_cases_hold_on_a_cluster(family: str) -> None:
    if da.array_expr_enabled():
        pytest.skip("expressions are not in memory on a cluster under their own keys")
    tally = work(np, 0, only=(family,), engines=("collective",), cases=5)
    assert not tally.failures, report(tally)
    assert tally.engines[f"collective {family}"] >= 1
    assert tally.engines.total() == 5


def test_random_cases_hold_of_arrays_of_dask_array() -> None:
    pytest.importorskip("dask_array")
    tally = work(np, 0, only=COLLECTIVE, engines=("dask-array",), cases=12)
    assert not tally.failures, report(tally)
    assert sum(n for name, n in tally.engines.items() if name.startswith("dask-array")) > 6


@pytest.mark.gpu
@pytest.mark.xdist_group("node")
@pytest.mark.parametrize("engine", ["node", "collective"])
def test_random_cases_hold_on_gpus_by_every_engine(cluster: None, engine: str) -> None:
    import cupy

    ran = 0
    for family in COLLECTIVE:
        tally = work(cupy, 0, only=(family,), engines=(engine,), cases=4)
        assert not tally.failures, report(tally)
        ran += tally.engines[f"{engine} {family}"]
    # Of a family all cases may be such as collectives decline.
    assert ran >= len(COLLECTIVE)


@pytest.mark.usefixtures("cluster")
def test_what_is_wrong_on_a_cluster_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    if da.array_expr_enabled():
        pytest.skip("expressions are not in memory on a cluster under their own keys")
    honest = dc.sum

    @wraps(honest)
    def wrong(x: Any, **options: Any) -> Any:
        return honest(x, **options) + (dask.config.get("coop.engine", "auto") == "collective")

    monkeypatch.setattr(dc, "sum", wrong)
    case = plain(np.arange(9))
    ran: list[str] = []
    assert judge(case, np, "graph", ran.append) is None
    failure = judge(case, np, "collective", ran.append)
    assert failure is not None
    assert failure.kind == "values"
    assert ran == ["graph", "collective"]


def test_engines_follow_from_the_numbers_of_a_case() -> None:
    drawn = Counter[str]()
    for index in range(400):
        case = families.draw_case(0, index)
        engine = engines.engine_of(case, 0, index, np, engines.ENGINES)
        # It is told again where it is the only one to draw from.
        assert engines.engine_of(case, 0, index, np, (engine,)) == engine
        assert (
            engine != "collective" or "engine" in signature(getattr(dc, case.function)).parameters
        )
        drawn[engine] += 1
        on_gpu = engines.engine_of(case, 0, index, ModuleType("cupy"), engines.ENGINES)
        drawn[f"{on_gpu} on GPUs"] += 1
    assert drawn["graph"] > 200
    assert drawn["node"] == 0
    assert min(drawn["node on GPUs"], drawn["graph on GPUs"]) > 50
    assert da.array_expr_enabled() or drawn["collective on GPUs"] > 30


def found(index: int, details: str) -> dict[str, Any]:
    planned = (False, "graph", 1.0)
    names = ("scan", "cumsum", "values", "float32")
    return vars(Found(1, index, *names, *planned, details, "dc.cumsum(" + "1, " * 9000, index < 2))


def test_the_log_has_every_failure_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "new" / "fuzz.log"
    whole = Run(1, 1.0, 2, "numpy", log)
    for index in range(30):
        whole._take({"found": found(index, f"{index} is not {'7' * 5000}")})
    text = log.read_text()
    for index in range(30):
        assert f"FUZZ_ENGINES=graph PYTHONPATH=tests python -m fuzz 1 {index}\n" in text
    assert text.count("1, " * 9000) == text.count("7" * 5000) == 30
    assert capsys.readouterr().out.count("python -m fuzz") == 1


def test_processes_see_a_gpu_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5,GPU-7")
    whole = Run(1, 1.0, 16, "cupy", tmp_path / "log")
    names = ("CUDA_VISIBLE_DEVICES", "DASK_ARRAY__QUERY_PLANNING")
    seen = Counter(tuple(map(whole.environment(k).get, names)) for k in range(16))
    assert seen == {
        **{(gpu, "False"): 6 for gpu in ("GPU-5", "GPU-7")},
        **{(gpu, "True"): 2 for gpu in ("GPU-5", "GPU-7")},
    }
    on_host = Run(1, 1.0, 8, "numpy", tmp_path / "log")
    assert sum("NUMBA_BOUNDSCHECK" in on_host.environment(k) for k in range(8)) == 2
    # A single process may need all for its launches.
    assert Run(1, 1.0, 1, "cupy", tmp_path / "log").environment(0).get(names[0]) == "GPU-5,GPU-7"


def test_errors_are_shown_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Any) -> Any:
        raise ValueError("no " * 1000)

    monkeypatch.setattr(dc, "sum", wrong)
    failure = judge(plain(np.arange(9)), np)
    assert failure is not None
    assert failure.details == "no " * 1000


def run(**settings: Any) -> subprocess.CompletedProcess[str]:
    given = {f"FUZZ_{name.upper()}": value for name, value in settings.items()}
    return python("-m", "fuzz", **{"FUZZ_CHUNKS": "numpy", **given})


def test_a_run_has_query_planning_on_in_some_processes(tmp_path: Path) -> None:
    # Of this seed the one process draws one of them first, the other the other.
    path = tmp_path / "report.json"
    settings = {"only": "truth,transpose", "engines": "graph", "log": tmp_path / "log"}
    done = run(seconds=3, seed=2, processes=2, report=path, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 2, 3 s, 2 processes, numpy chunks" in done.stdout
    entry = json.loads(path.read_text())
    assert entry["cases"].keys() == {"truth", "transpose"}
    by_family = Counter[str]()
    for counts in entry["engines"].values():
        by_family.update(counts)
    assert by_family == entry["cases"]
    assert min(entry["cases"].values()) > 0
    assert entry["failures"] == {}


def test_to_look_for_a_gpu_leaves_garbage_collection_on() -> None:
    printed("-c", "import gc, fuzz.work; fuzz.work.chunks_of('auto'); assert gc.isenabled()")


BROKEN = """
import sys
import dask_coop as dc
from fuzz import __main__ as run

honest = dc.cumsum
dc.cumsum = lambda x, *args, **kwargs: honest(x, *args, **kwargs) + (x.size > 0)
sys.exit(run.worker(run.json.loads(sys.argv[1])))
"""


def test_a_process_with_query_planning_says_what_is_wrong(tmp_path: Path) -> None:
    given = {"seed": 3, "cases": 8, "chunks": "numpy", "only": ["scan"], "patience": 0.1}
    given["progress"] = str(tmp_path / "at")
    done = python("-c", BROKEN, json.dumps(given), DASK_ARRAY__QUERY_PLANNING="True")
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
    cases = [families.draw_case(0, index) for index in range(1600)]
    assert {case.family for case in cases} == families.FAMILIES.keys()
    assert {case.inputs[0].layout for case in cases} == {"C", ">", *LAYOUTS}
    cases = [case for case in cases if case.family not in ("dates", "fill")]
    assert {case.x.dtype.name for case in cases} == {np.dtype(d).name for d in draw.NUMBERS}


#: What a case sets up before its call.
_BEFORE = (
    r"^((from [\w.]+ import \w+|import \w+ as \w+"
    r"|dask\.config\.set\(.*?\)|[\w.]+ = [\w.]+ = -1); )+"
)


def test_a_line_of_python_builds_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A case of a file writes it.
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"np": np, "da": da, "dc": dc, "own": own, "undeclared": undeclared}
    names |= {"xarray_calls": xarray_calls, "bh": pytest.importorskip("boost_histogram")}
    from dask_coop.algebra import monoids

    names["monoids"] = monoids
    names |= {name: pytest.importorskip(name) for name in ("h5py", "zarr")}
    for index in range(60):
        case = replace(families.draw_case(3, index), compiled=False)
        code = re.sub(_BEFORE, "", case.code(np))
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
            assert one.chunks == other.chunks or any(n != n for n in one.shape)


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


def test_a_fill_fails_where_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Operand(np.array(["a", "b", "a"]), ((2, 1),), "a")
    options = {"axes": "bh.axis.StrCategory([], growth=True)", "storage": "Int64"}
    case = fills.Fill("fill", "to_hist", (x,), {}, options)
    assert judge(case, np) is None
    monkeypatch.setattr("dask_coop.api.histograms.filled.reduce", lambda add, parts: parts[-1])
    failure = judge(case, np)
    assert failure is not None
    assert failure.kind == "raises AssertionError"


#: Families whose compiled loops write to tables at places that elements tell.
TABLES = ["bincount", "digitize", "groups", "groupscans", "histogram", "joint", "lookup"]
TABLES += ["quantile", "selection", "unique"]
CHECKED = """
import sys
from dataclasses import replace
import numba, numpy as np
from fuzz.families import draw_case
from fuzz.judge import judge

assert numba.config.BOUNDSCHECK
left = dict.fromkeys(sys.argv[1:], 1)
for index in range(2000):
    case = draw_case(11, index)
    if left.get(case.family):
        left[case.family] -= 1
        failure = judge(replace(case, compiled=True), np)
        assert failure is None, failure
assert not any(left.values()), left
"""


def test_compiled_loops_stay_within_their_tables() -> None:
    printed("-c", CHECKED, *TABLES, NUMBA_BOUNDSCHECK="1", timeout=600)
