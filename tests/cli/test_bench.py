"""The benchmark: it times only what is right, says why others have no time, and types no figure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import isfunction
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import dask.array
import numpy as np
import pytest
from support.compiled import remember
from support.processes import printed

import benchmarks
import dask_coop
from benchmarks import PRIMITIVES, arrays, chunks, report, threads
from benchmarks.cases import DATA, DTYPES, GPU, HOST, LARGE, QUICK, Case, apart, fill
from benchmarks.contenders import SOURCE, Contenders, build_command, find_nvcc
from benchmarks.measure import DeviceLostError, adopt, floor, measure
from benchmarks.targets import HOST_TARGETS, TARGETS, Target, read
from benchmarks.timers import HostTimer, inputs, times
from dask_coop.cli import main
from dask_coop.errors import pip_install

# One worker makes the run that most of these tests look at.
pytestmark = pytest.mark.xdist_group("bench")

REPOSITORY = Path(__file__).parents[2]
CASE = Case("fake", "double", "float64", (1024,))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that a quick run wrote, of a package that lies as an installed one does."""
    pytest.importorskip("matplotlib")
    site = tmp_path_factory.mktemp("site")
    # Other files come and go as tests import.
    ignored = shutil.ignore_patterns("__pycache__", "results")
    shutil.copytree(REPOSITORY / "dask_coop", site / "dask_coop", ignore=ignored)
    shutil.copytree(REPOSITORY / "benchmarks", site / "dask_coop" / "benchmarks", ignore=ignored)
    # So that loops are compiled for all tests, and not once more for this one.
    for kept in (REPOSITORY / "dask_coop").rglob("__pycache__"):
        (site / kept.relative_to(REPOSITORY)).symlink_to(kept)
    # In this folder its package comes first.
    said = printed("-m", "dask_coop", "bench", "--quick", "--cpu", cwd=site, timeout=600)
    folder = site / "bench-results"
    written = {line.removeprefix("written: ") for line in said.splitlines()[-3:]}
    assert written == {str(path.relative_to(site)) for path in folder.iterdir()}
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results_of(folder)["rows"]
    return rows


def results_of(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_quick_run_finds_every_result_right(quick: Path) -> None:
    rows = rows_of(quick)
    assert {row["primitive"] for row in rows} == set(PRIMITIVES)
    bad = [row for row in rows if row["status"] not in ("ok", "missing")]
    assert bad == []
    timed = {row["contender"] for row in rows if row["status"] == "ok"}
    missing = {row["contender"]: row["note"] for row in rows if row["status"] == "missing"}
    assert timed | missing.keys() == {*HostTimer().names}
    assert missing.keys() <= {*HostTimer.peers}
    assert all(pip_install("bench") in note for note in missing.values())


def test_every_time_is_the_median_of_its_samples(quick: Path) -> None:
    for row in rows_of(quick):
        if row["status"] == "ok":
            assert len(row["samples_ms"]) in (1, 2, 3, 5, 7)
            assert row["ms"] == median(row["samples_ms"]) > 0
        else:
            assert "ms" not in row
            assert row["note"]


def test_a_run_says_on_which_machine_and_with_what(quick: Path) -> None:
    found = results_of(quick)
    assert found["machine"]["versions"]["NumPy"] == np.__version__
    assert found["machine"]["processors"] == Contenders(gpu=False).processors
    assert (quick / f"cpu-{found['machine']['processors']}-cores.json").is_file()
    assert found["machine"]["date"]
    assert all(ceiling["ms"] > 0 for ceiling in found["ceilings"].values())


def test_the_page_holds_every_time_of_the_largest_size(quick: Path) -> None:
    page = (quick / "performance.md").read_text()
    assert page == report.text(quick)
    for row in rows_of(quick):
        if row["status"] == "ok" and row["shape"] != [QUICK.sizes[0]]:
            rate = row["primitive"] == "threads"
            shown = read(row) / row["ms"] / 1e6 if rate else row["ms"]
            assert f" {report.number(shown)} " in page
    (plot,) = quick.glob("*.svg")
    assert plot.name.endswith("-threads.svg")
    assert f"({plot.name})" in page
    assert "</svg>" in plot.read_text()


def test_docs_are_what_the_results_say() -> None:
    assert report.PAGE is not None
    assert report.PAGE.read_text() == report.lead(report.RESULTS, report.PAGE.parent)
    full = report.RESULTS / report.TABLES_NAME
    assert full.read_text() == report.text(report.RESULTS)
    for path in report.RESULTS.glob("*.json"):
        for kind in report.kinds(json.loads(path.read_text())):
            assert path.with_name(f"{path.stem}-{kind}.svg").is_file()


def test_an_unknown_primitive_or_size_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (("--only", "sum"), "choose among reduce, scan"),
        (("--sizes", "2^20"), "whole numbers from 8 to 40"),
        (("--whole", "26,28"), "a whole number from 8 to 40"),
    ):
        assert main.main(["bench", *arguments]) == 2
        assert message in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


def contenders(**others: Callable[[Any, Case], Any]) -> Any:
    """Return a primitive whose work is to double, with `others` as contenders."""
    return SimpleNamespace(
        CONTENDERS={"double": {"NumPy": lambda p, c: lambda x: 2 * x, **others}},
        reference=lambda case, xp, x: (x + x,),
        distance=lambda case, strict, got, want, x: apart(case, strict, got[0], want[0]),
    )


def outcome(ours: Callable[[Any, Case], Any]) -> dict[str, Any]:
    """Return the row of `ours`, beside a NumPy that has a time."""
    found = {r["contender"]: r for r in measure(HostTimer(), CASE, contenders(dask_coop=ours), 1.0)}
    assert found["NumPy"]["status"] == "ok"
    return found["dask_coop"]


def raising(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("ours", "status", "note"),
    [
        (lambda p, c: lambda x: 2 * x * (1 + 1e-10), "wrong", "off by 10 tolerances"),
        (lambda p, c: lambda x: 2 * x[1:], "wrong", "off by inf tolerances"),
        (lambda p, c: lambda x: np.where(x == x[5], np.nan, 2 * x), "wrong", "off by nan"),
        (lambda p, c: p.not_there, "missing", "not built"),
        (lambda p, c: raising(ImportError("no")), "missing", "not built"),
        (lambda p, c: raising(TypeError("no such dtype")), "error", "no such dtype"),
        (lambda p, c: lambda x: raising(ValueError("fails")), "error", "fails"),
    ],
)
def test_what_is_not_right_gets_no_time(ours: Any, status: str, note: str) -> None:
    row = outcome(ours)
    assert row["status"] == status
    assert note in row["note"]
    assert not {"ms", "samples_ms"} & set(row)


def test_large_arrays_are_compared_piece_by_piece() -> None:
    want = np.linspace(1, 2, (1 << 17) * 2 + 1).reshape(1, -1)
    assert apart(CASE, True, want, want) == 0
    for at in (0, 1 << 17, -1):
        for value, off in ((want[0, at] * (1 + 5e-11), 5), (np.nan, np.nan)):
            got = want.copy()
            got[0, at] = value
            np.testing.assert_allclose(apart(CASE, True, got, want), off, 1e-3)


def test_a_result_that_varies_is_told_from_one_that_does_not() -> None:
    assert outcome(lambda p, c: lambda x: 2 * x)["repeatable"]
    noise = iter(range(10**6))
    varying = outcome(lambda p, c: lambda x: 2 * x * (1 + 1e-15 * next(noise)))
    assert varying["status"] == "ok"
    assert not varying["repeatable"]


def test_nothing_is_measured_after_a_kernel_broke_the_gpu() -> None:
    timer = HostTimer()
    timer.wait = lambda: raising(RuntimeError("illegal address"))
    ours = contenders(dask_coop=lambda p, c: lambda x: raising(RuntimeError("first")))
    with pytest.raises(DeviceLostError, match=r"dask_coop broke the GPU on fake double.*first"):
        list(measure(timer, CASE, ours, 1.0))


@pytest.mark.parametrize(("ms", "samples"), [(0.01, 7), (59, 5), (149, 3), (301, 2), (1001, 1)])
def test_slow_calls_get_few_samples(ms: float, samples: int) -> None:
    timer, calls = HostTimer(), []
    timer.sample = lambda call, sets, first, batch, host: calls.append(batch) or (ms, 0.0)
    found = times(timer, lambda: None, [()])
    assert len(found["samples_ms"]) == samples
    assert found["batch"] == max(calls) == (50 if ms < 1 else 1)


def test_small_inputs_are_many_enough_to_leave_the_cache() -> None:
    timer = HostTimer()
    timer.cache = 1 << 20
    sets = inputs(timer, CASE)
    assert len(sets) * CASE.nbytes >= 4 << 20
    assert len({arrays[0].ctypes.data for arrays in sets}) == len(sets)
    assert all(len(arrays) == 1 and arrays[0].shape == CASE.shape for arrays in sets)
    assert len(inputs(HostTimer(), CASE)) == 3
    square = Case("fake", "double", "int32", (8, 8), arrays=2)
    assert [[x.shape for x in arrays] for arrays in inputs(HostTimer(), square)] == [
        [(8, 8)] * 2
    ] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("data", DATA)
def test_data_is_what_its_name_says(dtype: str, data: str) -> None:
    case = Case("fake", "double", dtype, (64, 64), data)
    if data == "normal" and dtype[0] == "i":
        return
    x = fill(np, case, 0)
    assert (x.shape, x.dtype) == (case.shape, dtype)
    low, high = case.limits
    assert ((x >= low) & (x <= high)).mean() > 0.99
    assert (len(np.unique(x)) == 1) == (data == "constant")
    assert bool((np.diff(x.ravel()) > 0).all()) == (data == "sorted")


def test_the_cases_of_a_gpu_are_those_that_were_promised() -> None:
    cases = [case for module in PRIMITIVES.values() for case in module.cases(GPU)]
    assert len(set(cases)) == len(cases)
    flat = [case for case in cases if len(case.shape) == 1]
    assert (min(c.size for c in flat), max(c.size for c in flat)) == (1 << 16, 1 << 30)
    bins = [case.bins for case in cases if case.bins]
    assert (min(bins), max(bins)) == (16, 1 << 24)
    assert {case.dtype for case in cases} == set(DTYPES)
    assert {case.data for case in cases} == set(DATA)
    lines = [{**vars(c), "times": {}, "floor_ms": 1} for c in cases]
    assert all(target.find(lines, 1 << 30) for target in TARGETS)


def test_the_cases_of_a_host_are_those_that_were_promised() -> None:
    scale = replace(HOST, whole=LARGE)
    cases = [case for name in HostTimer.primitives for case in PRIMITIVES[name].cases(scale)]
    assert len(set(cases)) == len(cases)
    lines = [{**vars(c), "times": {}, "floor_ms": 1} for c in cases]
    assert not [target.label for target in HOST_TARGETS if not target.find(lines, 1 << 24)]
    for case in cases:
        makers = PRIMITIVES[case.primitive].CONTENDERS[case.work]
        assert {*makers} <= {*HostTimer().names, *map(threads.name_of, threads.THREADS)}


def test_every_public_function_is_called_beside_that_of_dask() -> None:
    functions = {name for name in dask_coop.__all__ if isfunction(getattr(dask_coop, name))}
    # Which compute nothing, and what only moves chunks.
    functions -= {"explain", "install", "installed", "report", "uninstall"}
    functions -= {"from_npy", "from_zarr", "to_zarr", "to_gpu", "to_host"}
    # Order and selection, groups, windows and series with gaps have benchmarks of their own; what
    # fills histograms of axes counts as histogram does.
    own = "order topk selection unique fills groups.reduce groups.scan windows histograms.to_hist"
    # Dask has none of these.
    own += " ranks runs groups.binned paired.regression paired.polyfit signals.filters"
    own += " pictures.clipping pictures.label"
    apart = {f"dask_coop.api.{name}" for name in own.split()}
    # Without a benchmark so far.
    functions -= {"skew", "kurtosis", "average", "combine"}
    functions -= {name for name in functions if getattr(dask_coop, name).__module__ in apart}
    assert functions == {call.name for call in arrays.CALLS.values()}
    for work, makers in arrays.CONTENDERS.items():
        assert ("Dask" in makers) == arrays.in_dask(arrays.CALLS[work].name)


@pytest.mark.parametrize("work", ["histogram", "describe", "nanvar", "cummax axis 0"])
def test_the_tasks_of_one_chunk_give_what_the_call_gives(work: str) -> None:
    axis, bins = (0, 0) if work.endswith("0") else (None, 8 if work == "histogram" else 0)
    case = Case("chunks", work, "float32", (30, 40), "uniform", axis, bins)
    call = chunks.WORKS[work].call.with_bins(bins)
    x = fill(np, case, 0)
    lazy = call.bind(dask_coop)(dask.array.from_array(x, chunks=-1))
    wanted = dask.compute(*lazy) if call.several else (lazy.compute(),)
    found = chunks.Tasks(call, case)
    found(x + 1)  # which leaves nothing behind
    for a, b in zip(found(x), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_that_is_interrupted_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cases(scale: Any) -> Any:
        yield from islice(chunks.cases(scale), 2)
        raise KeyboardInterrupt

    stopped = SimpleNamespace(**{**vars(chunks), "cases": cases})
    monkeypatch.setitem(benchmarks.PRIMITIVES, "chunks", stopped)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        benchmarks.run(only=("chunks",), sizes=(1 << 10,), cpu=True)
    rows = rows_of(tmp_path / "bench-results")
    assert {row["work"] for row in rows} == {case.work for case in islice(chunks.cases(HOST), 2)}


def test_a_missing_library_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bottleneck", None)
    case = Case("chunks", "nansum", "float32", (1024,))
    found = {row["contender"]: row for row in measure(HostTimer(), case, chunks, 1.0)}
    assert found["bottleneck"]["status"] == "missing"
    assert pip_install("bench") in found["bottleneck"]["note"]
    assert found["dask_coop"]["status"] == "ok"


def test_inputs_and_references_are_made_once_for_cases_that_share_them() -> None:
    timer, seen = HostTimer(), []
    double = contenders()
    double.reference = lambda case, xp, x: seen.append(x) or (x + x,)
    for n in (4, 16, 16):
        (row,) = measure(timer, replace(CASE, chunks=n), double, 1.0)
    assert row["status"] == "ok"
    assert len(seen) == 1
    assert inputs(timer, CASE)[0][0] is seen[0]
    four, sixteen, again = (
        adopt(timer, replace(CASE, chunks=n), name, [(seen[0],)])[0][0]
        for n, name in ((4, "Dask"), (16, "Dask"), (4, "dask_coop"))
    )
    assert four is again
    assert (four.npartitions, sixteen.npartitions) == (4, 16)


def test_floors_are_bytes_at_the_measured_rate() -> None:
    ceilings = {"copy": {"bytes": 2000, "ms": 1.0}, "read": {"bytes": 4000, "ms": 1.0}}
    assert floor(HostTimer(), CASE, ceilings) == 8192 / 4000
    written = Case("fake", "double", "float64", (1024,), written=8192)
    assert floor(HostTimer(), written, ceilings) == 16384 / 2000
    assert floor(HostTimer(), Case("fake", "double", "int32", (8, 8), slots=9), ceilings) is None


def line(data: str = "uniform", **ms: float) -> dict[str, Any]:
    about = {"work": "sum", "dtype": "float32", "shape": [1024], "data": data, "bins": 0}
    return {**about, "times": ms, "failures": {}, "floor_ms": 0.5}


def test_ratios_are_to_the_fastest_of_the_others() -> None:
    lines = [line(dask_coop=2, CUB=4, CuPy=1, floor=9), line("constant", dask_coop=4)]
    assert report.best(lines[0]) == ("CuPy", 1)
    assert report.ratio(lines[0]) == 0.5
    assert report.ratio(lines[1]) is None
    for than, data, reached in ((("CUB",), "uniform", 2), (("uniform",), "constant", 0.5)):
        target = Target("a sum", 0.7, than, "sum", data=data)
        found = target.find(lines, 1024)
        assert target.reached(found, lines, 1024) == reached
        verdict = "yes" if reached >= 0.7 else "no"
        assert report.aim(target, lines, 1024)[-1].endswith(verdict)
    assert report.aim(Target("x", 1, ("CUB",), "sum", "int8"), lines, 1024)[-1] == "not measured"


def test_a_target_may_be_a_time_of_an_element_or_a_rate() -> None:
    # 1,024 float32 in 2 microseconds.
    lines = [line(dask_coop=2e-3)]
    for target, wanted, reached in (
        (Target("a sum", 1, (), "sum", nanoseconds=4), "at most 4 ns an element", 2.048),
        (Target("a sum", 1, (), "sum", gigabytes=4), "4 GB/s", 0.512),
    ):
        assert target.wanted == wanted
        assert target.reached(lines[0], lines, 1024) == pytest.approx(reached)


def test_whole_calls_below_nine_tenths_of_dask_are_marked() -> None:
    def whole(work: str, **ms: float) -> dict[str, Any]:
        return {**line(**ms), "work": work, "chunks": 16}

    slow, fast = whole("a", dask_coop=2, Dask=1.7), whole("b", dask_coop=2, Dask=1.8)
    alone = whole("c", dask_coop=2)
    text = report.calls([slow, fast, alone])
    assert text.startswith("1 of 2 calls")
    assert "0.850 (below 0.9)" in text
    assert text.count("below") == 1


def test_one_slow_call_of_a_fast_function_does_not_keep_it_from_its_samples() -> None:
    timer, taken = HostTimer(), iter([300.0, *[10.0] * 20])
    timer.sample = lambda call, sets, first, batch, host: (next(taken), 0.0)
    found = times(timer, lambda: None, [()])
    assert found["samples_ms"] == [300.0, *[10.0] * 6]
    assert found["ms"] == 10.0


def test_rates_are_shown_by_the_number_of_threads() -> None:
    # 4,096 bytes.
    of = {"1 thread": 1e-3, "2 threads": 6e-4, "dask_coop": 4e-4, "Dask": 2e-3}
    text = report.by_threads([line(**of)]).splitlines()
    assert text[0].split(" | ")[2:5] == ["1 thread", "2 threads", "dask_coop, all"]
    assert text[2] == "| sum | 2^10 | 4.10 | 6.83 | 10.2 | 2.50 | 2.05 |"


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Recorder(HostTimer):
        def sample(self, call: Any, *rest: Any) -> tuple[float, float]:
            order.append(call.__name__)
            if call.__name__ == "CuPy" and order.count("CuPy") == 3:
                raise RuntimeError("out of luck")
            return 1e-3, 1e-3

    def named(name: str) -> Any:
        def call(x: Any) -> Any:
            return 2 * x

        call.__name__ = name
        return lambda libraries, case: call

    timer = Recorder()
    timer.names = ("dask_coop", "CuPy", "CUB")
    primitive = contenders(**{name: named(name) for name in timer.names})
    found = {row["contender"]: row for row in measure(timer, CASE, primitive, 1.0)}
    assert found["CuPy"]["note"] == "out of luck"
    assert order[:8] == [*timer.names, *timer.names, "dask_coop", "CuPy"]
    assert order[8:11] == ["CUB", "dask_coop", "CUB"]
    assert len(found["dask_coop"]["samples_ms"]) == len(found["CUB"]["samples_ms"]) == 7


def test_without_nvcc_cub_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ImportError, match="no nvcc"):
        _ = Contenders(gpu=True).cub


def test_nvcc_compiles_cub(tmp_path: Path) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    library = tmp_path / "cub.so"

    def build() -> str:
        subprocess.run(build_command(nvcc, "long long", library, "sm_80"), check=True)
        assert b"cub_histogram" in library.read_bytes()
        return "built"

    command = build_command(nvcc, "long long", Path("cub.so"), "sm_80")
    version = subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout
    assert remember(repr(command).encode() + version + SOURCE.read_bytes(), build) == "built"


@pytest.mark.gpu
def test_a_quick_run_on_a_gpu(tmp_path: Path) -> None:
    options = ("--quick", "--only", "scan", "--name", "cpu", "--out", tmp_path)
    printed("-m", "dask_coop", "bench", *options, cwd=tmp_path)
    rows = rows_of(tmp_path)
    ours = [row for row in rows if row["contender"] in ("dask_coop", "CuPy")]
    assert all(row["status"] == "ok" for row in ours)


def test_the_array_of_threads_is_no_chunk_of_the_page() -> None:
    """It is the largest of all, and what is wanted of chunks is looked for among the others."""
    about = {"work": "sum", "dtype": "float32", "data": "uniform", "bins": 0, "floor_ms": 1.0}
    times = {"status": "ok", "contender": "dask_coop", "ms": 2.0}
    rows = [
        {**about, **times, "primitive": "threads", "shape": [1 << 30], "chunks": 32},
        {**about, **times, "primitive": "chunks", "shape": [1 << 24], "chunks": 0},
        {**about, **times, "primitive": "chunks", "shape": [1 << 24], "chunks": 0}
        | {"contender": "NumPy", "ms": 3.0},
    ]
    machine = {"gpu": None, "versions": {}, "processor": "any", "processors": 32}
    machine |= {"date": "2026-11-22", "seconds": 1}
    page = report.section("x", {"machine": machine, "rows": rows, "ceilings": {}}, [])
    (row,) = (line for line in page.splitlines() if line.startswith("| sum float32 | 2"))
    assert "1.50, yes" in row
