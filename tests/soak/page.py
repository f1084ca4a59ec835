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

#: What there is none of where all is well, in words.
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
    """Return what was found, by what there is to be none of."""
    found = {words: report[name] for name, words in FAULTS.items() if name in report}
    phases = report.get("phases", {})
    return found | {
        f"broken promises of the phase {name}": phase["faults"] for name, phase in phases.items()
    }


def summary(report: dict[str, Any]) -> str:
    """Return the figures of a run."""
    machine = f"{report['processors']} processors ({report['processor']})"
    if gpus := report["gpus"]:
        machine = f"{len(gpus)} {gpus[0]}, {machine}"
    parts = [f"{report['date']}. {tables.versions_of(report)}. {machine}."]
    if "calls" in report:
        parts.append(of_calls(report))
    there_were = [[words, str(len(found))] for words, found in faults(report).items()]
    parts.append(tables.table(["what there was none to be of", "there were"], there_were))
    if phases := report.get("phases"):
        parts.append(of_phases(phases))
    if "calls" in report:
        parts += details(report)
    return "\n\n".join(parts)


def of_calls(report: dict[str, Any]) -> str:
    """Say how many random calls there were, and what of them."""
    by = report["by"]
    return (
        f"{count(report):,} random calls in {report['seconds']:,} s, seed {report['seed']}: "
        f"{by.get('collective', 0):,} by collectives, of which "
        f"{sum(report['fell back'].values()):,} fell back on graphs, and "
        f"{by.get('graph', 0):,} by graphs. {report['raised']:,} were to raise what their monoid "
        f"raises, and did. {report['lost with a worker']:,} asked for results of scans that had "
        "been lost with a worker, and raised `CancelledError`."
    )


def of_phases(phases: dict[str, dict[str, Any]]) -> str:
    """Return what the phases did, as a table."""
    rows = []
    for name, phase in phases.items():
        counts = {**phase["counts"], "calls that ran as graphs": sum(phase["fell back"].values())}
        done = ", ".join(f"{what}: {n:,}" for what, n in counts.items())
        rows.append([name, phase["promise"], done, f"{phase['seconds']:.0f}"])
    return tables.table(["phase", "what holds in it", "what was done", "seconds"], rows)


def details(report: dict[str, Any]) -> list[str]:
    """Return the tables of random calls."""
    events = dict(report["events"])
    vain = sum(events.pop(name) for name in [*events] if name.endswith(", in vain"))
    parts = [
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
    return parts


def figures() -> str:
    """Return the figures of the last runs, by chunks."""
    parts = []
    for path, words in zip(RESULTS.values(), ("NumPy", "CuPy"), strict=True):
        parts += [f"### With chunks of {words}", summary(json.loads(path.read_text()))]
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
