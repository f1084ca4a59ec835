"""Runs the GPU tests and writes what came out to docs/verified.json, one entry for each CUDA."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest

TARGET = Path(__file__).parent.parent / "docs" / "verified.json"


class Outcome:
    """Counts what the tests report, and the files that report before they have tests."""

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
    """Return the outcomes as a page of the docs."""
    head = "# Where the GPU tests ran\n\n"
    columns = ("date", "gpus", "driver", "cuda", "cupy", "passed", "failed", "skipped")
    rows = [columns, ("---",) * len(columns)]
    for entry in entries:
        gpus = f"{len(entry['gpus'])} x {entry['gpus'][0]}"
        rows.append(tuple(str({**entry, "gpus": gpus}[column]) for column in columns))
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def machine() -> dict[str, Any]:
    """Return what the tests run on, today."""
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


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments`; return its exit status."""
    outcome = Outcome()
    folder = str(Path(__file__).parent)
    status = pytest.main(["-q", "-m", "gpu", folder, *arguments], plugins=[outcome])
    entry = {**machine(), **outcome.counts}
    entries = json.loads(TARGET.read_text()) if TARGET.exists() else []
    same = ("cuda", "gpus")
    entries = [e for e in entries if any(e[key] != entry[key] for key in same)]
    entries.append(entry)
    TARGET.write_text(json.dumps(entries, indent=2) + "\n")
    TARGET.with_suffix(".md").write_text(table(entries))
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
