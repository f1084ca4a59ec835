"""What docs/reliability.md says of the result of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import report as tables
from benchmarks.systems import node
from benchmarks.timers import processor
from dask_coop.cli import info
from soak.run import ALLOWED, WHO, count, quarters

REPOSITORY = Path(__file__).parents[2]
RESULT = REPOSITORY / "benchmarks" / "results" / "soak" / "cpu.json"
PAGE = REPOSITORY / "docs" / "reliability.md"

#: What there is none of where all is well, in words.
FAULTS = {
    "wrong": "wrong results",
    "lost": "results lost while no worker was killed or retired",
    "hung": "calls past their deadline",
    "left": "rounds that left something on workers or the scheduler",
    "grown": "threads, descriptors or memory that grew",
}


def machine() -> dict[str, Any]:
    """Return what a run is made on."""
    import psutil

    return {
        "processor": processor(),
        "processors": psutil.cpu_count(),
        "versions": info.facts()["versions"],
    }


def summary(report: dict[str, Any]) -> str:
    """Return the figures of a run."""
    by, events = report["by"], dict(report["events"])
    vain = sum(events.pop(name) for name in [*events] if name.endswith(", in vain"))
    parts = [
        f"{report['date']}. {tables.versions_of(report)}. {report['processors']} processors "
        f"({report['processor']}), seed {report['seed']}.",
        f"{count(report):,} calls in {report['seconds']:,} s: {by.get('collective', 0):,} by "
        f"collectives, of which {sum(report['fell back'].values()):,} fell back on graphs, and "
        f"{by.get('graph', 0):,} by graphs. {report['raised']:,} were to raise what their monoid "
        f"raises, and did. {report['lost with a worker']:,} asked for results of scans that had "
        "been lost with a worker, and raised `CancelledError`.",
        tables.table(
            ["what there was none to be of", "there were"],
            [[words, str(len(report[name]))] for name, words in FAULTS.items()],
        ),
        tables.table(
            ["event", "times"],
            [[name, f"{n:,}"] for name, n in sorted(events.items())]
            + [["begun, but what it needed had gone", f"{vain:,}"]],
        ),
    ]
    if report["fell back"]:
        reasons = sorted(report["fell back"].items(), key=lambda each: (-each[1], each[0]))
        rows = [[reason.replace("|", "/"), f"{n:,}"] for reason, n in reasons]
        parts.append(tables.table(["why a collective ran as a graph", "times"], rows))
    if len(report["rounds"]) >= 4:
        parts.append(used(report["rounds"]))
    return "\n\n".join(parts)


def used(rounds: list[dict[str, Any]]) -> str:
    """Return what the two processes used, as a table."""
    rows = []
    for who in WHO:
        for what in ALLOWED:
            unit, scale = (" MiB", 1 << 20) if what == "memory" else ("", 1)
            shown = [f"{n / scale:.0f}{unit}" for n in quarters(rounds, who, what)]
            rows.append([who, what, *shown])
    head = ["process", "", "first quarter", "second", "third", "last"]
    return tables.table(head, rows)


def write() -> None:
    """Write the figures into the page, between its marks."""
    node.write(summary(json.loads(RESULT.read_text())), PAGE)
