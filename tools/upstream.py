"""Run other libraries' own tests with our functions in place of theirs.

``python tools/upstream.py flox -- -n 2 -k scan`` runs one suite, and passes the options after
``--`` to pytest; without arguments all suites run. A test that fails counts only if it passes
without ours, for which it is run again. A list has the tests that differ, and why we stand by it; a
listed test that passes is an error as well.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

REPOSITORY = Path(__file__).parents[1]


#: Installs this library, and reports at the end which functions were called.
INSTALLED = """
import gc
import json
import os
from collections import Counter

import dask_coop as dc

dc.install()
# What is imported stays: to look for garbage among it takes much of the time.
gc.freeze()
gc.set_threshold(5000, 10, 10)


def pytest_sessionfinish():
    served, refused = Counter(), Counter()
    for row in dc.report():
        if row.served_by == "dask_coop":
            served[row.function] += row.calls
        else:
            refused[f"{row.function}: {row.why}"] += row.calls
    with open(f"report-{os.getpid()}.json", "w") as file:
        json.dump({"served": served, "refused": refused}, file)
"""

#: Deselects all but one test of so many, chosen by its name, and expected failures.
SHARE = """

from zlib import crc32


def pytest_collection_modifyitems(config, items):
    every, named = {every!r}, {named!r}
    run = [i for i in items if crc32(i.name.encode()) % every == 0 or i.name in named]
    config.hook.pytest_deselected(items=[*{{*items}} - {{*run}}])
    items[:] = run
"""


@dataclass(frozen=True)
class Suite:
    """Tests of a library.

    Attributes
    ----------
    name : str
    needs : tuple of str
        The packages that tests need, first the one whose tests they are.
    find : callable
        Puts tests into a folder, or finds an installed copy; returns where to run them.
    tests : tuple of str
        Files and options for pytest.
    differences : dict of str to str
        Tests that fail with ours, as patterns of :mod:`fnmatch`, and why we stand by it.
    plugin : str
        A module that is imported before the tests, and puts ours in place of theirs. It writes to
        a file how often it has served and refused a call.
    every : int
        One test of so many is run, and all of those that fail with ours.
    besides : tuple of str
        Names of tests that always run.
    """

    name: str
    needs: tuple[str, ...]
    find: Callable[[Path], Path]
    tests: tuple[str, ...]
    differences: dict[str, str]
    plugin: str = INSTALLED
    every: int = 1
    besides: tuple[str, ...] = ()


@dataclass
class Outcome:
    """The outcome of a run: number of tests, failures, and calls that ours served and refused."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0


def from_sdist(package: str, part: str) -> Callable[[Path], Path]:
    """Return a function that extracts tests from a package's sdist, by pip: wheels have none."""

    def find(folder: Path) -> Path:
        wanted = f"{package}=={version(package)}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary", package, "--dest", str(folder), wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [*folder.glob(f"{package}-*.tar.gz")]
        if not found:
            raise SystemExit(f"pip finds no sdist of {wanted}: {done.stderr.strip()[-500:]}")
        with tarfile.open(found[0]) as archive:
            root = archive.getnames()[0].partition("/")[0]
            members = [m for m in archive if m.name.startswith(f"{root}/{part}")]
            archive.extractall(folder, members, filter="data")
        return folder / root

    return find


def from_package(package: str) -> Callable[[Path], Path]:
    """Return a function that finds the tests in an installed package."""

    def find(folder: Path) -> Path:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parents[1]

    return find


_UNKNOWN = "integers behind chunks of unknown sizes may be some, and computing says so"
_WARNING = "a product that overflows between chunks gives no warning"
_WHOLE = "all elements of several chunks have quantiles"
_COMPLEX = "NumPy's variance of complex numbers as floats loses half a mean"
_CHUNKS = "what is in other chunks is rechunked"

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "flox",
            ("flox", "sparse"),
            from_sdist("flox", "tests"),
            ("tests/test_core.py",),
            {
                "test_1d_blockwise_sort_optimization": "ours has no blocks to put in order",
                "test_groupby_scan_blockwise_auto_rechunk": "ours rechunks nothing",
            },
        ),
        Suite(
            "dask",
            ("dask",),
            from_package("dask"),
            tuple(
                f"dask/array/tests/test_{name}.py"
                for name in ("reductions", "routines", "percentiles", "stats")
            ),
            {
                "test_array_cumreduction_axis[blelloch-None-False-cumprod]": _WARNING,
                "test_array_cumreduction_axis[blelloch-None-False-nancumprod]": _WARNING,
                "test_array_cumreduction_axis[blelloch-None-True-cumprod]": _WARNING,
                "test_array_cumreduction_axis[blelloch-None-True-nancumprod]": _WARNING,
                "test_empty_chunk_nanmin_nanmax[nanmin]": _UNKNOWN,
                "test_empty_chunk_nanmin_nanmax[nanmax]": _UNKNOWN,
                "test_quantile_func_family_with_axis_none[quantile]": _WHOLE,
                "test_quantile_func_family_with_axis_none[nanquantile]": _WHOLE,
                "test_quantile_func_family_with_axis_none[nanpercentile]": _WHOLE,
                "test_reductions_1D[c8]": _COMPLEX,
                "test_reductions_2D[c8]": _COMPLEX,
                "test_histogram_bin_range_raises[10-None]": "a range is found",
                "test_histogram_delayed_n_bins_raises_with_density": "so is a lazy width",
                "test_histogramdd_raises_incompat_sample_chunks": _CHUNKS,
                "test_histogramdd_raises_incompat_multiarg_chunks": _CHUNKS,
                "test_histogramdd_raises_incompat_weight_chunks": _CHUNKS,
            },
        ),
        Suite(
            "xarray",
            ("xarray", "bottleneck", "pyarrow"),
            from_package("xarray"),
            tuple(
                f"xarray/tests/test_{name}.py"
                for name in (
                    *("dask", "duck_array_ops", "groupby", "rolling", "computation"),
                    *("interp", "missing", "weighted"),
                )
            ),
            {
                "test_reduce": "medians of all elements of several chunks exist",
                "test_interpolate_dask_raises_for_invalid_chunk_dim": "ours takes such chunks",
            },
        ),
    )
}


def run(
    suite: Suite, root: Path, arguments: Sequence[str] = (), *, with_ours: bool = True
) -> Outcome:
    """Run tests in their folder, with or without ours."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plugin = folder / f"{suite.name}_in_place.py"
        share = SHARE.format(every=suite.every, named=[*suite.differences, *suite.besides])
        plugin.write_text(suite.plugin + (share if suite.every > 1 else ""))
        report, ini = folder / "report.xml", folder / "pytest.ini"
        ini.write_text("[pytest]\nmarkers =\n    flaky\n    slow\n    xdist_group\n")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-c", str(ini), "--rootdir", str(root), f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1"]  # which tells files
        command += ["-p", plugin.stem] if with_ours else []
        path = os.pathsep.join(
            [name, str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        start = time.perf_counter()
        done = subprocess.run(
            [*command, *(str(root / one) for one in suite.tests), *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not report.exists():
            raise SystemExit(f"pytest did not run:\n{done.stdout[-3000:]}")
        outcome = _read(report)
        outcome.seconds = time.perf_counter() - start
        for part in folder.glob("report-*.json"):
            counted = json.loads(part.read_text())
            outcome.served.update(counted["served"])
            outcome.refused.update(counted["refused"])
        return outcome


def _read(report: Path) -> Outcome:
    outcome = Outcome()
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((part for part in case if part.tag in ("failure", "error")), None)
        skipped = case.find("skipped") is not None
        if problem is not None:
            # Tests of a class have its name behind the module's; interrupted tests have none.
            last = case.get("classname", "").rpartition(".")[2]
            parts = [case.get("file", ""), *[last][: last.startswith("Test")], case.get("name", "")]
            outcome.failed["::".join(parts)] = problem.get("message", "")
        outcome.counts["failed" if problem is not None else "skipped" if skipped else "passed"] += 1
    return outcome


def judge(suite: Suite, tests: Iterable[str], *, whole: bool) -> tuple[list[str], list[str]]:
    """Return failures that are not known differences, and known differences that now pass."""
    failed = {test: test.rpartition("::")[2] for test in tests}
    new = [
        test
        for test, name in failed.items()
        if not any(fnmatch.fnmatchcase(name, _plain(known)) for known in suite.differences)
    ]
    names = failed.values()
    gone = [known for known in suite.differences if not fnmatch.filter(names, _plain(known))]
    return new, gone if whole else []


def _plain(pattern: str) -> str:
    """Return a pattern in which brackets are those of a test's parameters."""
    return pattern.replace("[", "[[]")


def check(suite: Suite, folder: Path, arguments: Sequence[str]) -> bool:
    """Run a suite and print the outcome; return whether it is as expected."""
    for package in suite.needs:
        try:
            version(package)
        except PackageNotFoundError:
            raise SystemExit(
                f"the tests of {suite.name} need {package}: pip install {package}"
            ) from None
    root = suite.find(folder)
    outcome = run(suite, root, arguments)
    whole = "-k" not in arguments and suite.every == 1
    new, gone = judge(suite, outcome.failed, whole=whole)
    fails_alone: list[str] = []
    if new:
        again = [str(root / name) for name in new]
        alone = replace(suite, tests=())
        fails_alone = [*run(alone, root, again, with_ours=False).failed]
    print(
        f"{suite.name} {version(suite.needs[0])}: {dict(outcome.counts)}, {outcome.seconds:.0f} s"
    )
    print(f"  calls served {sum(outcome.served.values())}: {dict(outcome.served)}")
    for reason, count in outcome.refused.most_common():
        print(f"  calls refused {count}: {reason}")
    for known, reason in suite.differences.items():
        print(f"  differs: {known}: {reason}")
    for name in new:
        how = "fails without ours, too" if name in fails_alone else "FAILS WITH OURS"
        print(f"  {how}: {name}: {outcome.failed[name].partition(chr(10))[0]}")
    for known in gone:
        print(f"  DOES NOT FAIL any more, take it off the list: {known}")
    return not gone and {*new} <= {*fails_alone} and bool(outcome.served)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], metavar="SUITE")
    parser.add_argument("--folder", type=Path, help="where tests are put and left")
    own_options, pytest_options = sys.argv[1:], []
    if "--" in own_options:
        at = own_options.index("--")
        own_options, pytest_options = own_options[:at], own_options[at + 1 :]
    asked = parser.parse_args(own_options)
    with tempfile.TemporaryDirectory() as name:
        folder = asked.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        good = [check(SUITES[suite], folder, pytest_options) for suite in asked.suites or SUITES]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
