"""Other people's workloads and tests, plainly and with this library: tasks, seconds and memory.

``python -m benchmarks.systems.others`` runs each script of workloads/ in processes of its own, in
turn plainly and by ``python -m dask_coop run``, and compares results. ``--write`` makes the figures
of docs/others.md from benchmarks/results/workloads/*.json; suites.json there is what
``python tools/upstream.py --results`` wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .. import report
from . import collective, node, order

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "workloads"
PAGE = HERE.parent / "docs" / "others.md"
SCRIPTS = Path(__file__).with_name("workloads")

PLAIN, OURS = "plain", "dask_coop run"

#: Who wants it, and how results may differ, by script and arguments of both ways of running it.
WORKS: dict[str, tuple[str, str, list[str], list[str]]] = {
    "resampling": ("dask/dask#11853", "", [], []),
    "vorticity": ("pangeo-data/distributed-array-examples#1", "", [], []),
    "quadratic_means": ("pangeo-data/distributed-array-examples#2", "", [], []),
    "anomalies": ("pangeo-data/distributed-array-examples#4", "", [], []),
    "climatology": ("coiled/benchmarks#1552", "", [], []),
    "zonal_means": ("coiled/benchmarks#1547", "", [], []),
    "circulation": ("coiled/benchmarks#1554", "", [], []),
    "heat_waves": ("Ouranosinc/xclim#213", "", [], []),
    "stack_of_images": ("astropy/ccdproc#624", "", [], []),
    "sums_of_labels": (
        "dask/dask-image#238",
        "one import: dask_coop.ndmeasure for dask_image.ndmeasure",
        ["dask_image.ndmeasure", "6667"],
        ["dask_coop.ndmeasure", "6667"],
    ),
    "contrast_limits": ("napari/napari#9486", "Dask's percentiles are approximate", [], []),
    "buckets": ("pytroll/pyresample#418", "", [], []),
}

Row = dict[str, Any]


def run(work: str, by: str, limit: int) -> Row:
    """Return what a script measures in a process of its own, or the reason why it does not."""
    arguments = WORKS[work][2 if by == PLAIN else 3]
    command = [sys.executable, *["-m", "dask_coop", "run"] * (by == OURS)]
    command += [str(SCRIPTS / f"{work}.py"), *arguments]
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    options: Row = {"env": environment, "capture_output": True, "text": True, "check": False}
    try:
        done = subprocess.run(command, timeout=limit, **options)
    except subprocess.TimeoutExpired:
        return {"error": f"longer than {limit} s"}
    if done.returncode:
        return {"error": done.stderr.strip().rpartition("\n")[2][:200]}
    told: Row = json.loads(done.stdout.splitlines()[-1])
    return told


def best(works: list[str], rounds: int, limit: int, at_once: int) -> Iterator[Row]:
    """Yield the least of each figure, by work and contender.

    Raises
    ------
    ArithmeticError
        If the results of both differ, and are not said to.
    """

    def of_both(work: str) -> list[Row]:
        found: dict[str, list[Row]] = {PLAIN: [], OURS: []}
        for _ in range(rounds):
            for by, rows in found.items():
                rows.append(run(work, by, limit))
        kept = []
        for by, rows in found.items():
            good = [row for row in rows if "error" not in row]
            least = {name: min(row[name] for row in good) for name in good[0]} if good else rows[0]
            kept.append({"work": work, "by": by} | least)
        return kept

    with ThreadPoolExecutor(at_once) as pool:
        for rows in pool.map(of_both, works):
            checks = [row["check"] for row in rows if "check" in row]
            differs = WORKS[rows[0]["work"]][1]
            if not np.allclose(checks, checks[0] if checks else 0, rtol=1e-4) and not differs:
                raise ArithmeticError(f"results differ: {rows}")
            yield from rows


def workloads(results: Row) -> str:
    """Return the table of workloads."""
    by = {(row["work"], row["by"]): row for row in results["rows"]}
    table = []
    for work in dict.fromkeys(row["work"] for row in results["rows"]):
        whose, differs, *_ = WORKS[work]
        repository, number = whose.split("#")
        link = f"[{whose}](https://github.com/{repository}/issues/{number})"
        cells = [f"[{work}](../benchmarks/systems/workloads/{work}.py)", link]
        for name, scale, form in (
            ("tasks", 1, ",.0f"),
            ("build_s", 1, ".1f"),
            ("s", 1, ".1f"),
            ("bytes", 2**20, ",.0f"),
        ):
            pair = [by[work, who].get(name) for who in (PLAIN, OURS)]
            cells.append(" / ".join("-" if v is None else f"{v / scale:{form}}" for v in pair))
        errors = [
            f"{who}: {by[work, who]['error']}" for who in (PLAIN, OURS) if "error" in by[work, who]
        ]
        table.append([*cells, "; ".join([*[differs] * bool(differs), *errors]) or "nothing"])
    head = ["script", "who", "tasks", "to build, s", "to compute, s", "peak, MiB", "what differs"]
    return report.table(head, table)


def suites(rows: list[Row]) -> str:
    """Return the table of suites of tests."""
    table = []
    for row in rows:
        by_reason = sorted(row["differences"].items(), key=lambda item: -item[1])
        differing = "; ".join(f"{count}: {reason}" for reason, count in by_reason)
        share = f", one in {row['every']}" if row["every"] > 1 else ""
        cells = [f"{row['suite']} {row['version']}{share}", f"{row['passed']:,}"]
        table.append([*cells, f"{row['served']:,}", differing.replace("|", "or") or "none"])
    return report.table(["suite", "tests passed", "calls served", "tests that differ"], table)


def figures(folder: Path) -> str:
    """Return the figures of the page for the results in `folder`."""
    parts = []
    for path in sorted(folder.glob("*-cores.json")):
        results = json.loads(path.read_text())
        machine = results["machine"]
        parts += order.heading(path, machine)
        parts += [machine["note"], workloads(results)]
    path = folder / "suites.json"
    if path.exists():
        parts += ["### Suites", suites(json.loads(path.read_text()))]
    return "\n\n".join(parts) or "No results are there yet."


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(WORKS), help="scripts to run")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind")
    parser.add_argument("--limit", type=int, default=600, help="seconds for a process")
    parser.add_argument("--at-once", type=int, default=1, help="scripts that run at a time")
    parser.add_argument("--note", default="Nothing else ran on the machine.", help="how it ran")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/others.md anew")
    options = parser.parse_args()
    if not options.write:
        rows = best(options.only, options.rounds, options.limit, options.at_once)
        machine = order.facts(gpu=False) | {"note": options.note}
        collective.keep(machine, rows, options.results / f"{os.cpu_count()}-cores.json")
    if options.write or options.results == RESULTS:
        node.write(figures(RESULTS), PAGE)


if __name__ == "__main__":
    main()
