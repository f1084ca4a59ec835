"""What docs/reliability.md says of the result of a run."""

from __future__ import annotations

import datetime
import json
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import report as tables
from benchmarks.systems import node
from benchmarks.timers import processor
from dask_coop.cli import info
from soak.run import ALLOWED, WHO, count, quarters

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "benchmarks" / "results" / "soak"
#: By the chunks of the run.
RESULTS = {"numpy": FOLDER / "cpu.json", "cupy": FOLDER / "gpu.json"}
PAGE = REPOSITORY / "docs" / "reliability.md"

#: Kinds of faults, in words.
FAULTS = {
    "wrong": "wrong results",
    "lost": "results lost while no worker was killed or retired",
    "hung": "calls past their deadline",
    "left": "rounds that left something on workers or the scheduler",
    "grown": "threads, descriptors or memory that grew",
}


def machine(xp: Any) -> dict[str, Any]:
    """Return what a run with chunks of NumPy or CuPy is made on."""
    import psutil

    facts = info.facts()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "processors": psutil.cpu_count(),
        "gpus": [] if xp.__name__ == "numpy" else [gpu["name"] for gpu in facts["gpus"]],
        "versions": facts["versions"],
    }


def faults(report: dict[str, Any]) -> dict[str, list[str]]:
    """Return the faults of a run by their kind."""
    found = {words: report[name] for name, words in FAULTS.items() if name in report}
    phases = report.get("phases", {})
    return found | {
        f"broken promises in phase {name}": phase["faults"] for name, phase in phases.items()
    }


def summary(report: dict[str, Any]) -> str:
    """Return the figures of a run."""
    machine = f"{report['processors']} processors ({report['processor']})"
    if gpus := report["gpus"]:
        machine = f"{len(gpus)} {gpus[0]}, {machine}"
    parts = [f"{report['date']}. {tables.versions_of(report)}. {machine}."]
    if "calls" in report:
        parts.append(of_calls(report))
    found = [[words, str(len(each))] for words, each in faults(report).items()]
    parts.append(tables.table(["must be zero", "found"], found))
    if len(report.get("rounds", ())) >= 4:
        parts.append(used(report["rounds"]))
    return "\n\n".join(parts)


def of_calls(report: dict[str, Any]) -> str:
    """Return a sentence on the random calls."""
    by = report["by"]
    return (
        f"{count(report):,} random calls in {report['seconds']:,} s: "
        f"{by.get('collective', 0):,} collectives, of which "
        f"{sum(report['fell back'].values()):,} fell back to graphs, and {by.get('graph', 0):,} "
        f"graphs. {report['raised']:,} calls raised the error of their monoid, as they must. "
        f"{report['lost with a worker']:,} asked for a scan's result that was lost with a worker, "
        "and raised `CancelledError`."
    )


def figures() -> str:
    """Return the figures of the last runs, by chunks."""
    parts = []
    for path, words in zip(RESULTS.values(), ("NumPy", "CuPy"), strict=True):
        parts += [f"### {words} chunks", summary(json.loads(path.read_text()))]
        link = f"../benchmarks/results/soak/{path.name}"
        parts.append(f"[{path.name}]({link}) has events, fallbacks and all phases.")
    return "\n\n".join(parts)


def used(rounds: list[dict[str, Any]]) -> str:
    """Return what the two processes used, as a table."""
    rows = []
    for who, what in product(WHO, ALLOWED):
        if what in rounds[0][who]:
            unit, scale = (" MiB", 1 << 20) if what.endswith("memory") else ("", 1)
            shown = [f"{n / scale:.0f}{unit}" for n in quarters(rounds, who, what)]
            rows.append([who, what, *shown])
    head = ["process", "", "first quarter", "second", "third", "last"]
    return tables.table(head, rows)


def write() -> None:
    """Write the figures into the page, between its marks."""
    node.write(figures(), PAGE)
