"""The benchmark: it times only what is right, says why others have no time, and types no figure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import missing_for_gpu
from support.compiled import remember

from benchmarks import PRIMITIVES, report
from benchmarks.cases import DATA, DTYPES, GPU, QUICK, Case, apart, fill
from benchmarks.contenders import SOURCE, Contenders, build_command, find_nvcc
from benchmarks.measure import DeviceLostError, floor, measure
from benchmarks.targets import TARGETS, Target
from benchmarks.timers import HostTimer, inputs, times

# One worker makes the run that most of these tests look at.
pytestmark = pytest.mark.xdist_group("bench")

REPOSITORY = Path(__file__).parents[2]
CASE = Case("fake", "double", "float64", (1024,))


def bench(*arguments: str | Path, cwd: Path, path: Path) -> subprocess.CompletedProcess[str]:
    found = filter(None, (str(path), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(found)}
    command = [sys.executable, "-m", "dask_coop", "bench", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that a quick run wrote, of a package that lies as an installed one does."""
    pytest.importorskip("matplotlib")
    site = tmp_path_factory.mktemp("site")
    # What Numba has compiled goes with its source; other files come and go as tests import.
    ignored = shutil.ignore_patterns("*.pyc*", "*.tmp.*", "results")
    shutil.copytree(REPOSITORY / "dask_coop", site / "dask_coop", ignore=ignored)
    shutil.copytree(REPOSITORY / "benchmarks", site / "dask_coop" / "benchmarks", ignore=ignored)
    done = bench("--quick", "--cpu", cwd=site, path=site)
    assert done.returncode == 0, done.stderr
    folder = site / "bench-results"
    written = {line.removeprefix("written: ") for line in done.stdout.splitlines()[-4:]}
    assert written == {str(path.relative_to(site)) for path in folder.iterdir()}
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "cpu.json").read_text())["rows"]
    return rows


def test_a_quick_run_finds_every_result_right(quick: Path) -> None:
    rows = rows_of(quick)
    assert {row["primitive"] for row in rows} == set(PRIMITIVES)
    bad = [row for row in rows if row["status"] not in ("ok", "missing")]
    assert bad == []
    assert {row["contender"] for row in rows if row["status"] == "ok"} == {*HostTimer.names}


def test_every_time_is_the_median_of_its_samples(quick: Path) -> None:
    for row in rows_of(quick):
        if row["status"] == "ok":
            assert len(row["samples_ms"]) in (1, 3, 7)
            assert row["ms"] == median(row["samples_ms"]) > 0
        else:
            assert "ms" not in row
            assert row["note"]


def test_a_run_says_on_which_machine_and_with_what(quick: Path) -> None:
    found = json.loads((quick / "cpu.json").read_text())
    assert found["machine"]["versions"]["NumPy"] == np.__version__
    assert found["machine"]["date"]
    assert all(ceiling["ms"] > 0 for ceiling in found["ceilings"].values())


def test_the_page_holds_every_time_of_the_largest_size(quick: Path) -> None:
    page = (quick / "performance.md").read_text()
    assert page == report.text(quick, quick)
    for row in rows_of(quick):
        if row["status"] == "ok" and row["shape"] != [QUICK.sizes[0]]:
            assert f" {report.number(row['ms'])} |" in page
    for kind in ("sizes", "bins"):
        assert f"(cpu-{kind}.svg)" in page
        assert "</svg>" in (quick / f"cpu-{kind}.svg").read_text()


def test_docs_are_what_the_results_say() -> None:
    assert report.PAGE is not None
    assert report.PAGE.read_text() == report.text(report.RESULTS, report.PAGE.parent)
    for path in report.RESULTS.glob("*.json"):
        for kind in ("sizes", "bins"):
            assert path.with_name(f"{path.stem}-{kind}.svg").is_file()


def test_an_unknown_primitive_or_size_is_refused(tmp_path: Path) -> None:
    for arguments, message in (
        (("--only", "sum"), "choose among reduce, scan"),
        (("--sizes", "2^20"), "whole numbers from 8 to 40"),
    ):
        done = bench(*arguments, cwd=tmp_path, path=REPOSITORY)
        assert done.returncode == 2
        assert message in done.stderr
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


@pytest.mark.parametrize(("ms", "samples"), [(0.01, 7), (99, 7), (200, 3), (301, 1)])
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
    if missing := missing_for_gpu():
        pytest.skip(missing)
    done = bench(
        "--quick",
        "--only",
        "scan",
        "--name",
        "cpu",
        "--out",
        tmp_path,
        cwd=tmp_path,
        path=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path)
    ours = [row for row in rows if row["contender"] in ("dask_coop", "CuPy")]
    assert all(row["status"] == "ok" for row in ours)
