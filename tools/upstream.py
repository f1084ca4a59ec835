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
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

from suites import SUITES, Suite

REPOSITORY = Path(__file__).parents[1]
IN_PLACE = Path(__file__).parent / "in_place"

#: The reason of a test that no list has.
UNKNOWN = "not explained"

#: Deselects all but one test of so many, chosen by its name, and expected failures.
SHARE = """
from fnmatch import fnmatchcase
from zlib import crc32


def pytest_collection_modifyitems(config, items):
    every, named = {every!r}, [name.replace("[", "[[]") for name in {named!r}]
    run = [
        i
        for i in items
        if crc32(i.name.encode()) % every == 0 or any(fnmatchcase(i.name, n) for n in named)
    ]
    config.hook.pytest_deselected(items=[*{{*items}} - {{*run}}])
    items[:] = run
"""


@dataclass
class Outcome:
    """The outcome of a run: number of tests, failures, and calls that ours served and refused."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0


def run(
    suite: Suite, root: Path, arguments: Sequence[str] = (), *, with_ours: bool = True
) -> Outcome:
    """Run tests in their folder, with or without ours."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plugins = [*suite.support, *[suite.plugin] * with_ours]
        if suite.every > 1:
            named = [*suite.differences, *suite.besides]
            (folder / "a_share.py").write_text(SHARE.format(every=suite.every, named=named))
            plugins.append("a_share")
        report, ini = folder / "report.xml", folder / "pytest.ini"
        ini.write_text("[pytest]\nmarkers =\n    flaky\n    slow\n    xdist_group\n")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-c", str(ini), "--rootdir", str(root), f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1"]  # which tells files
        command += [option for plugin in plugins for option in ("-p", plugin)]
        before = [one for one in [os.environ.get("PYTHONPATH")] if one]
        path = os.pathsep.join([name, str(IN_PLACE), str(REPOSITORY), *before])
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


def known(suite: Suite, test: str) -> str | None:
    """Return why we stand by a test that fails, if it is a known difference."""
    name = test.rpartition("::")[2]
    reasons = (why for one, why in suite.differences.items() if _fits(name, one))
    return next(reasons, None)


def judge(suite: Suite, tests: Sequence[str], *, whole: bool) -> tuple[list[str], list[str]]:
    """Return failures that are not known differences, and known differences that now pass."""
    names = [test.rpartition("::")[2] for test in tests]
    new = [test for test in tests if known(suite, test) is None]
    gone = [one for one in suite.differences if not any(_fits(name, one) for name in names)]
    return new, gone if whole else []


def _fits(name: str, pattern: str) -> bool:
    """Match a test's name, in which brackets are those of its parameters."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def keep(suite: Suite, outcome: Outcome, differing: Sequence[str], path: Path) -> None:
    """Put an outcome into a file of results, in place of that of the suite before.

    Tests that differ are counted by their reasons.
    """
    rows = json.loads(path.read_text()) if path.exists() else []
    row = {"suite": suite.name, "version": version(suite.needs[0]), "every": suite.every}
    row |= {"passed": outcome.counts["passed"], "served": sum(outcome.served.values())}
    row["differences"] = Counter(known(suite, test) or UNKNOWN for test in differing)
    order = [*SUITES]
    rows = [each for each in rows if each["suite"] != suite.name] + [row]
    rows.sort(key=lambda each: order.index(each["suite"]))
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def check(
    suite: Suite, folder: Path, arguments: Sequence[str], results: Path | None = None
) -> bool:
    """Run a suite, print the outcome and keep it; return whether it is as expected."""
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
    new, gone = judge(suite, [*outcome.failed], whole=whole)
    fails_alone: list[str] = []
    if outcome.failed:
        again = [str(root / name) for name in outcome.failed]
        alone = replace(suite, tests=())
        fails_alone = [*run(alone, root, again, with_ours=False).failed]
    differing = [test for test in outcome.failed if test not in fails_alone]
    if results is not None:
        keep(suite, outcome, differing, results)
    print(
        f"{suite.name} {version(suite.needs[0])}: {dict(outcome.counts)}, {outcome.seconds:.0f} s"
    )
    print(f"  calls served {sum(outcome.served.values())}: {dict(outcome.served)}")
    for reason, count in outcome.refused.most_common():
        print(f"  calls refused {count}: {reason}")
    for name in differing:
        how = f"differs: {reason}" if (reason := known(suite, name)) else "FAILS WITH OURS"
        print(f"  {how}: {name}: {outcome.failed[name].partition(chr(10))[0]}")
    for name in fails_alone:
        print(f"  fails without ours, too: {name}")
    for one in gone:
        print(f"  DOES NOT FAIL any more, take it off the list: {one}")
    return not gone and {*new} <= {*fails_alone} and bool(outcome.served)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], metavar="SUITE")
    parser.add_argument("--folder", type=Path, help="where tests are put and left")
    parser.add_argument("--results", type=Path, help="a JSON file to which outcomes are added")
    parser.add_argument("--every", type=int, default=1, help="run at most one test of so many")
    own_options, pytest_options = sys.argv[1:], []
    if "--" in own_options:
        at = own_options.index("--")
        own_options, pytest_options = own_options[:at], own_options[at + 1 :]
    asked = parser.parse_args(own_options)
    with tempfile.TemporaryDirectory() as name:
        folder = asked.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        good = True
        for suite_name in asked.suites or SUITES:
            suite = replace(SUITES[suite_name], every=max(SUITES[suite_name].every, asked.every))
            try:
                good &= check(suite, folder, pytest_options, asked.results)
            except SystemExit as missing:
                # The other suites run nevertheless.
                print(missing)
                good = False
    sys.exit(not good)


if __name__ == "__main__":
    main()
