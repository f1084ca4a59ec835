"""Run the GPU tests and write the outcome to docs/verified.json, one entry for each CUDA.

``python tools/gpu_run.py --add REPORT`` adds a report that tests/fuzz wrote to FUZZ_REPORT on a
GPU, or tools/sanitize.py to SANITIZE_REPORT.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
TARGET = REPOSITORY / "docs" / "verified.json"


class Outcome:
    """Counts the outcomes of tests, and of files that fail before they have tests."""

    def __init__(self) -> None:
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self._collected: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # Every worker of xdist collects every file.
        if report.outcome != "passed" and report.nodeid not in self._collected:
            self._collected.add(report.nodeid)
            self.counts[report.outcome] += 1


def table(entries: list[dict[str, Any]]) -> str:
    """Return the outcomes as a page of the docs: of the tests, the sanitizer and random cases."""
    tests = [entry for entry in entries if _kind(entry) == "passed"]
    page = "# Where the GPU tests ran\n\n" + _rows(
        [*_MACHINE, "commit", "passed", "failed", "skipped", "note"], tests
    )
    sanitized = [entry for entry in entries if _kind(entry) == "sanitized"]
    if sanitized:
        tools = sorted({tool for entry in sanitized for tool in entry["sanitized"]})
        page += "\n## What compute-sanitizer said (`make gpu-sanitize`)\n\n" + _rows(
            [*_MACHINE, "commit", "seconds", *tools], [{**e, **e["sanitized"]} for e in sanitized]
        )
    fuzzed = [entry for entry in entries if _kind(entry) == "cases"]
    if not fuzzed:
        return page
    page += "\n## Where random cases ran (`make fuzz`)\n\n"
    columns = [*_MACHINE, "commit", "seconds", "processes", "cases", "wrong"]
    totals = [
        {**e, "cases": f"{sum(e['cases'].values()):,}", "wrong": sum(e["failures"].values())}
        for e in fuzzed
    ]
    page += _rows(columns, totals) + "\nThe cases by engine and family:\n\n"
    families = [
        {"cuda": entry["cuda"], "engine": engine, **{k: f"{n:,}" for k, n in cases.items()}}
        for entry in fuzzed
        for engine, cases in entry.get("engines", {"graph": entry["cases"]}).items()
    ]
    names = sorted({name for entry in fuzzed for name in entry["cases"]})
    return page + _rows(["cuda", "engine", *names], families)


_MACHINE = ("date", "gpus", "driver", "cuda", "cupy")


def _kind(entry: dict[str, Any]) -> str:
    """Return the key that identifies an entry among those of other runs."""
    return next(key for key in ("cases", "sanitized", "passed") if key in entry)


def _rows(columns: list[str], entries: list[dict[str, Any]]) -> str:
    rows = [columns, ["---"] * len(columns)]
    for entry in entries:
        if "gpus" in entry:
            entry = {**entry, "gpus": f"{len(entry['gpus'])} x {entry['gpus'][0]}"}
        rows.append([str(entry.get(column, "")) for column in columns])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def machine() -> dict[str, Any]:
    """Return the machine that runs the tests, and the date."""
    import cupy

    runtime = cupy.cuda.runtime
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpus": [
            runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())
        ],
        "driver": runtime.driverGetVersion(),
        "cuda": runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
    }


def commit() -> str:
    """Return the commit of the repository, or outside of one that of FUZZ_COMMIT."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except OSError:
        return os.environ.get("FUZZ_COMMIT", "")
    return os.environ.get("FUZZ_COMMIT") or done.stdout.strip()


def add(entry: dict[str, Any]) -> None:
    """Write an entry to the file and the page, replacing the last one of the same machine."""
    entries = json.loads(TARGET.read_text()) if TARGET.exists() else []

    def same(other: dict[str, Any]) -> bool:
        alike = all(other[key] == entry[key] for key in ("cuda", "gpus"))
        return alike and _kind(other) == _kind(entry)

    entries = [*(other for other in entries if not same(other)), entry]
    TARGET.write_text(json.dumps(entries, indent=2) + "\n")
    TARGET.with_suffix(".md").write_text(table(entries))


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments`, or add a report; return the exit status."""
    if arguments[:1] == ["--add"]:
        add(json.loads(Path(arguments[1]).read_text()))
        return 0
    outcome = Outcome()
    folder = str(REPOSITORY / "tests")
    status = pytest.main(["-q", "-m", "gpu", folder, *arguments], plugins=[outcome])
    add({**machine(), "commit": commit(), **outcome.counts})
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
