"""The figures of docs/transfer.md, made from the results of `benchmarks.systems.transfer`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .. import report

Row = dict[str, Any]

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "transfer"
PAGE = HERE.parent / "docs" / "transfer.md"

PINNED, BY_HAND = "pinned memory", "cupy.asarray, one thread"
DA, NODE = "dask.array on CuPy, threads", "dask_coop.Node"
CLUSTER = "dask_coop, LocalCUDACluster"
#: With a worker's threads: while one waits for its next task, the others copy.
CLUSTERS = {1: CLUSTER, 4: f"{CLUSTER}, 4 threads a worker"}

LINKS = ("copy to the GPU", "copy to the host")
TO_GPU, TO_HOST = "to_gpu", "to_host"
WORKS = ("histogram, 256 bins", "sum", "describe")
SOURCES = ("NumPy memory", ".npy map", "Zarr, uncompressed", "Zarr, Zstd")
CUMSUM = "cumsum from host to host"
LARGE = f"{WORKS[0]} of the array seen several times"
INTO_FILE = "cumsum of it into a file"
WRITING = "writing a file alone"

#: The memory of a GPU that large arrays may use.
LIMIT_BYTES = 8 << 30

#: Rates by work, contender and number of GPUs; failed parts have none.
Rates = dict[tuple[str, str, int], float]


class Aim(NamedTuple):
    """An aim of a work.

    Attributes
    ----------
    what, unit : str
    wanted : dict
        The wanted value, by the number of GPUs.
    found : callable
        Returns the value from the rates, for a number of GPUs; NaN if it was not measured.
    """

    what: str
    unit: str
    wanted: dict[int, float]
    found: Callable[[Rates, int], float]


def _rate(rates: Rates, work: str, contender: str, gpus: int) -> float:
    return rates.get((work, contender, gpus), math.nan)


def _of_link(rates: Rates, gpus: int) -> float:
    return _rate(rates, TO_GPU, NODE, gpus) / _rate(rates, LINKS[0], PINNED, gpus)


def _least(source: str) -> Callable[[Rates, int], float]:
    def found(rates: Rates, gpus: int) -> float:
        each = [_rate(rates, f"{work} from {source}", NODE, gpus) for work in WORKS]
        # min would skip a NaN.
        return math.nan if any(map(math.isnan, each)) else min(each)

    return found


def _of_each_link(rates: Rates, gpus: int) -> float:
    links = [_rate(rates, way, PINNED, gpus) for way in LINKS]
    return _rate(rates, CUMSUM, NODE, gpus) / min(links)


def _of_file(rates: Rates, gpus: int) -> float:
    ways = [_rate(rates, way, PINNED, gpus) for way in LINKS]
    slowest = min([*ways, _rate(rates, WRITING, "dask.array", 0)])
    return _rate(rates, INTO_FILE, NODE, gpus) / slowest


AIMS = (
    Aim("to_gpu, of the pinned copy's rate", "", {1: 0.85, 2: 0.6}, _of_link),
    Aim(
        f"Node: histogram, sum, describe from {SOURCES[0]}, the slowest",
        "GB/s",
        {1: 45.0, 2: 65.0},
        _least(SOURCES[0]),
    ),
    Aim(
        f"the same from a {SOURCES[1]}",
        "GB/s",
        {1: 40.0, 2: 60.0},
        _least(SOURCES[1]),
    ),
    Aim(f"Node: {CUMSUM}, of the link each way", "", {1: 0.6}, _of_each_link),
    Aim(
        f"Node in 8 GiB: {LARGE}",
        "GB/s",
        {1: 45.0, 2: 65.0},
        lambda rates, gpus: _rate(rates, LARGE, NODE, gpus),
    ),
    Aim(
        f"Node in 8 GiB: {INTO_FILE}, of the slower of the link and the file system",
        "",
        {1: 0.6, 2: 0.6},
        _of_file,
    ),
    Aim(
        f"LocalCUDACluster, 4 threads a worker: histogram from a {SOURCES[1]}",
        "GB/s",
        {2: 40.0},
        lambda rates, gpus: _rate(rates, f"{WORKS[0]} from {SOURCES[1]}", CLUSTERS[4], gpus),
    ),
)


def figures(folder: Path) -> str:
    """Return the figures of the page for the results in `folder`."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        machine, rows = results["machine"], results["rows"]
        versions = report.versions_of(machine)
        parts += [
            f"### {machine['gpus']} x {(machine['gpu'] or {}).get('name')} ({path.stem})",
            f"{machine['date']}. {versions}. {machine['bytes'] / 2**30:g} GiB of float32 in chunks "
            f"of {machine['chunk'] / 2**20:g} MiB; medians of up to {machine['samples']} calls, "
            f"from the call to the result with every GPU synchronised; {machine['seconds']} s in "
            "all. GB/s of the array, to the result or, of what ends on the host or in a file, each "
            "way.",
            aims(rows),
            measured(rows),
        ]
        parts += notes(rows)
    return "\n\n".join(parts) or "No results are there yet."


def aims(rows: list[Row]) -> str:
    """Return the table of aims beside the results."""
    rates: Rates = {(r["work"], r["contender"], r["gpus"]): r["rate"] for r in rows if "rate" in r}
    lines = []
    for aim in AIMS:
        for gpus in sorted({r["gpus"] for r in rows} & aim.wanted.keys()):
            value, wanted = aim.found(rates, gpus), aim.wanted[gpus]
            reached = "yes" if value >= wanted else "no"
            shown = [_shown(wanted, aim.unit), _shown(value, aim.unit)]
            lines.append([aim.what, str(gpus), *shown, reached])
    for r in rows:
        if "peak" in r:
            most, limit = r["peak"], LIMIT_BYTES
            shown = [f"{n / 2**30:.2f} GiB" for n in (limit, most)]
            reached = "yes" if most <= limit else "no"
            lines.append([f"memory of a GPU: {r['work']}", str(r["gpus"]), *shown, reached])
    return report.table(["work", "GPUs", "wanted", "measured", "reached"], lines)


def measured(rows: list[Row]) -> str:
    """Return all rates, beside that of a copy from pinned memory."""
    links = {r["gpus"]: r["rate"] for r in rows if r["work"] == LINKS[0] and "rate" in r}
    lines = []
    for r in rows:
        gpus, rate = r["gpus"], r.get("rate")
        ratio = f"{rate / links[gpus]:.2f}" if rate and gpus in links else ""
        shown = f"{rate:.1f}" if rate else "failed"
        size = f"{r['bytes'] / 2**30:.0f}" if rate else ""
        lines.append([r["work"], r["contender"], str(gpus or ""), size, shown, ratio])
    return report.table(["work", "by", "GPUs", "GiB", "GB/s", "of the copy to the GPU"], lines)


def notes(rows: list[Row]) -> list[str]:
    """Return the reasons of failed parts, and the node's explanations of large arrays."""
    lines = []
    for r in rows:
        name = f"{r['work']}, {r['contender']}, GPUs: {r['gpus']}"
        if "note" in r:
            lines.append(f"Failed: {name}: `{' '.join(r['note'].split())}`")
        if r.get("explain"):
            lines.append(f"{name}:\n\n```text\n{r['explain']}\n```")
    return lines


def _shown(value: float | None, unit: str) -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{value:.1f} {unit}" if unit else f"{value:.2f}"
