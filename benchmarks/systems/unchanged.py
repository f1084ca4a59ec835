"""A script written for xarray and Dask, run unchanged, with this library installed or not.

``python -m benchmarks.systems.unchanged [--gpu]`` runs field.py in separate processes, in turn
plainly and by ``python -m dask_coop run``, and compares their results. With ``--stored`` the field
is in a Zarr store. ``--write`` makes the figures of docs/install.md, and the picture of README.md,
from benchmarks/results/install/*.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from .. import report
from . import collective, node, order

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "install"
PAGE = HERE.parent / "docs" / "install.md"
SCRIPT = Path(__file__).with_name("field.py")

#: The end of the names of results of a stored field.
STORED = "-stored"

DASK, OURS, GPU = "Dask", "dask_coop", "dask_coop, --chunks cupy"
COMMANDS: dict[str, list[str]] = {
    DASK: [],
    OURS: ["-m", "dask_coop", "run"],
    GPU: ["-m", "dask_coop", "run", "--chunks", "cupy"],
}

#: The label and colour of a bar, by contender.
BARS = {
    OURS: ("dask_coop", "#c8553d"),
    GPU: ("dask_coop, chunks on the GPU", "#8d3b72"),
}

Row = dict[str, Any]


def write_store(folder: Path, gib: float) -> Path:
    """Write days of rounded temperatures on a grid, compressed as xarray does, and return where."""
    days = int(gib * 2**30 / 4 / 256 / 360)
    chunks = (180, 128, 180)
    noise = da.random.default_rng(0).standard_normal((days, 256, 360), dtype="f4", chunks=chunks)
    season = 280 + 10 * np.sin(np.arange(days, dtype="f4") / 365.25 * 2 * np.pi)
    values = (noise + da.from_array(season, chunks[0])[:, None, None]).round(2)
    coords = {"time": xr.date_range("1900-01-01", periods=days)}
    t = xr.DataArray(values, dims=("time", "lat", "lon"), coords=coords, name="t2m")
    path = folder / "field.zarr"
    t.to_dataset().to_zarr(path, consolidated=False)
    return path


def run(by: str, gib: float, samples: int, store: Path | None = None) -> list[Row]:
    """Return the script's times, from a separate process."""
    command = [sys.executable, *COMMANDS[by], str(SCRIPT), "--gib", str(gib)]
    command += ["--samples", str(samples)]
    command += ["--store", str(store)] if store else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) | {"by": by} for line in done.stdout.splitlines()]


def compare(
    names: list[str], gib: float, samples: int, rounds: int, store: Path | None = None
) -> list[Row]:
    """Return the median times of each work by contender: of first calls, and of later ones.

    Dask alone, which keeps nothing of a store, reads it once.

    Raises
    ------
    ArithmeticError
        If the results differ.
    """
    found: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    means: dict[str, float] = {}
    for by in names * rounds:
        for row in run(by, gib, 1 if store and by == DASK else samples, store):
            expected = means.setdefault(row["work"], row["mean"])
            if not math.isclose(row["mean"], expected, rel_tol=1e-4):
                raise ArithmeticError(f"{row['work']} of {by} is {row['mean']}, not {expected}")
            first, later = found.setdefault((row["work"], by), ([], []))
            first.append(row["s"][0])
            later += row["s"][1:]
            print(row, flush=True)
    median = statistics.median
    return [
        {"work": work, "by": by, "s": median(later or first), "first": median(first), "gib": gib}
        for (work, by), (first, later) in found.items()
    ]


def figures(folder: Path) -> str:
    """Return the figures of the page for the results in `folder`."""
    parts = []
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stem):
        results = json.loads(path.read_text())
        machine, rows = results["machine"], results["rows"]
        parts += order.heading(path, machine)
        times = {(row["work"], row["by"]): row["s"] for row in rows}
        names = list(dict.fromkeys(row["by"] for row in rows))
        works = list(dict.fromkeys(row["work"] for row in rows))
        for by in names:
            mine = [row for row in rows if row["by"] == by]
            times["all", by] = sum(row["s"] for row in mine)
            times["first calls of all", by] = sum(row["first"] for row in mine)
        table = []
        for work in [*works, "all", "first calls of all"]:
            cells = [f"{times[work, by]:.2f}" for by in names]
            cells += [f"{times[work, DASK] / times[work, by]:.1f}" for by in names[1:]]
            table.append([work, *cells])
        head = ["work", *(f"{by}, s" for by in names), *(f"factor, {by}" for by in names[1:])]
        where = ", in a Zarr store in a memory file system" if path.stem.endswith(STORED) else ""
        parts += [f"A field of {rows[0]['gib']:g} GiB{where}.", report.table(head, table)]
    return "\n\n".join(parts) or "No results are there yet."


def draw(folder: Path) -> Path:
    """Draw how many times as fast each work is, beside the results: one panel a machine."""
    import matplotlib
    from matplotlib.figure import Figure

    paths = sorted(folder.glob("*.json"), key=lambda path: path.stem)
    figure = Figure(figsize=(4.4 * len(paths), 4.2), layout="constrained")
    # The same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "dask_coop", "svg.fonttype": "none"}):
        for axes, path in zip(
            figure.subplots(1, len(paths), squeeze=False).flat, paths, strict=True
        ):
            results = json.loads(path.read_text())
            rows, machine = results["rows"], results["machine"]
            works = list(dict.fromkeys(row["work"] for row in rows))
            names = list(dict.fromkeys(row["by"] for row in rows))
            seconds = {(row["work"], row["by"]): row["s"] for row in rows}
            ours = [by for by in names if by != DASK]
            height = 0.8 / len(ours)
            for number, by in enumerate(ours):
                factors = [seconds[work, DASK] / seconds[work, by] for work in works]
                places = [place + height * number - 0.4 + height / 2 for place in range(len(works))]
                label, color = BARS[by]
                bars = axes.barh(places, factors, height, color=color, label=label)
                texts = [f"{f:.0f} times" if f >= 10 else f"{f:.1f} times" for f in factors]
                axes.bar_label(bars, texts, padding=3, fontsize=8)
            axes.axvline(1, color="0.3", linewidth=1, linestyle="--")
            gpu = f", {machine['gpu']['name']}" if "gpu" in machine else ""
            stored = " of Zarr" if path.stem.endswith(STORED) else ""
            size = f"{rows[0]['gib']:g} GiB{stored}"
            axes.set_title(f"{machine['cores']} cores{gpu}: {size}", fontsize=10)
            axes.set_yticks(range(len(works)), works)
            axes.invert_yaxis()
            axes.margins(x=0.18)
            axes.set_xlabel("times as fast as dask.array")
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = figure.axes[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        target = folder / "unchanged.svg"
        figure.savefig(target, metadata={"Date": None})
    return target


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="on GPUs, too")
    parser.add_argument("--gib", type=float, default=2.0, help="size of the field")
    parser.add_argument("--stored", type=Path, help="write the field to a Zarr store here")
    parser.add_argument("--samples", type=int, default=3, help="calls in a process")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each kind")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/install.md anew")
    options = parser.parse_args()
    if not options.write:
        names = [DASK, OURS, GPU] if options.gpu else [DASK, OURS]
        with TemporaryDirectory(dir=options.stored) as folder:
            store = write_store(Path(folder), options.gib) if options.stored else None
            rows = compare(names, options.gib, options.samples, options.rounds, store)
        stem = ("gpu" if options.gpu else "cpu") + (STORED if options.stored else "")
        path = options.results / f"{stem}.json"
        collective.keep(order.facts(options.gpu), rows, path)
    if options.write or options.results == RESULTS:
        node.write(figures(RESULTS), PAGE)
        draw(RESULTS)


if __name__ == "__main__":
    main()
