"""The figures of docs/transfer.md, made from the results of `benchmarks.systems.transfer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

#: The works that the page shows; the file of results has all.
SHOWN = (
    *(LINKS[0], TO_GPU, TO_HOST, *(f"{WORKS[0]} from {source}" for source in SOURCES)),
    *(CUMSUM, LARGE, INTO_FILE),
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
            "from the call to the result with every GPU synchronised, in GB/s of the array.",
            measured(rows),
            f"[{path.name}](../benchmarks/results/transfer/{path.name}) has all rows.",
        ]
    return "\n\n".join(parts) or "No results are there yet."


def measured(rows: list[Row]) -> str:
    """Return rates by the number of GPUs."""
    counts = sorted({r["gpus"] for r in rows if r["gpus"]})
    rates = {(r["work"], r["contender"], r["gpus"]): r.get("rate") for r in rows}
    lines = []
    for work, by in dict.fromkeys((r["work"], r["contender"]) for r in rows):
        each = [rates.get((work, by, n)) for n in counts]
        if work in SHOWN and any(each):
            lines.append([work, by, *(f"{rate:.1f}" if rate else "" for rate in each)])
    return report.table(["work", "by", *(f"{n} GPU{'s' * (n > 1)}" for n in counts)], lines)
