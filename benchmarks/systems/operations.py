"""Sixty operations of xarray, plainly and with this library installed: seconds and peak memory.

``python -m benchmarks.systems.operations`` makes a field of days on a grid, as field.py does, whose
chunks lie in memory, along time too. Each operation runs in a process of its own: once to compile,
then ``--samples`` times; the table has the median of the seconds, and of the peaks of the process's
memory above that before the call. Results are compared first. ``--write`` makes the figures of
docs/operations.md from benchmarks/results/operations/*.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import dask_coop as dc

from .. import report
from . import collective, node, order
from .field import field
from .workloads.measured import calm, peak

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "operations"
PAGE = HERE.parent / "docs" / "operations.md"

PLAIN, OURS = "plain", "installed"

Row = dict[str, Any]
Work = Callable[[xr.DataArray], Any]

HOURS = np.timedelta64(6, "h")

#: xarray alone needs whole lines for some of them: `whole` joins them.
WORKS: dict[str, Work] = {
    "sum": lambda t: t.sum("time"),
    "mean": lambda t: t.mean("time"),
    "mean of all": lambda t: t.mean(),
    "mean, skipna=False": lambda t: t.mean("time", skipna=False),
    "sum, min_count=10": lambda t: t.sum("time", min_count=10),
    "std": lambda t: t.std("time"),
    "var of lat and lon": lambda t: t.var(("lat", "lon")),
    "min": lambda t: t.min("time"),
    "max of all": lambda t: t.max(),
    "count": lambda t: t.count("time"),
    "any": lambda t: (t > 300).any("time"),
    "days above": lambda t: (t > 300).sum("time"),
    "argmax": lambda t: t.fillna(0).argmax("time"),
    "idxmax": lambda t: t.fillna(0).idxmax("time"),
    "median, whole lines": lambda t: whole(t).median("time"),
    "quantile, whole lines": lambda t: whole(t).quantile([0.1, 0.5, 0.9], "time"),
    "quantile": lambda t: t.quantile([0.1, 0.5, 0.9], "time"),
    "quantile of lat and lon": lambda t: t.quantile(0.9, ("lat", "lon")),
    "rank, whole lines": lambda t: whole(t).rank("time"),
    "cumsum": lambda t: t.cumsum("time"),
    "cumprod": lambda t: (t / 280).cumprod("time"),
    "rolling 7, sum": lambda t: t.rolling(time=7).sum(),
    "ffill": lambda t: t.ffill("time"),
    "bfill, limit=2": lambda t: t.bfill("time", limit=2),
    "interpolate_na, whole lines": lambda t: whole(t).interpolate_na("time"),
    "interp, whole lines": lambda t: whole(t).interp(time=t.time[100:300] + HOURS),
    "integrate": lambda t: t.integrate("time", datetime_unit="D"),
    "cumulative_integrate": lambda t: t.cumulative_integrate("time", datetime_unit="D"),
    "differentiate": lambda t: t.differentiate("time", datetime_unit="D"),
    "polyfit, degree 1": lambda t: t.fillna(0).polyfit("time", 1).polyfit_coefficients,
    "corr with the day before": lambda t: xr.corr(t, t.shift(time=1), "time"),
    "cov with the day before": lambda t: xr.cov(t, t.shift(time=1), "time"),
    "weighted mean": lambda t: t.weighted(np.cos(np.deg2rad(t.lat))).mean(("lat", "lon")),
    "weighted sum": lambda t: t.weighted(np.cos(np.deg2rad(t.lat))).sum(("lat", "lon")),
    "weighted std": lambda t: t.weighted(np.cos(np.deg2rad(t.lat))).std(("lat", "lon")),
    "groupby month, mean": lambda t: t.groupby("time.month").mean(),
    "groupby month, max": lambda t: t.groupby("time.month").max(),
    "groupby month, std": lambda t: t.groupby("time.month").std(),
    "groupby month, count": lambda t: t.groupby("time.month").count(),
    "groupby month, first": lambda t: t.groupby("time.month").first(),
    "groupby year, last": lambda t: t.groupby("time.year").last(),
    "groupby month, median, whole lines": lambda t: whole(t).groupby("time.month").median(),
    "groupby dayofyear, mean": lambda t: t.groupby("time.dayofyear").mean(),
    "groupby season, sum": lambda t: t.groupby("time.season").sum(),
    "anomalies' std": lambda t: (t.groupby("time.month") - t.groupby("time.month").mean()).std(
        "time"
    ),
    "groupby_bins of lat, mean": lambda t: t.groupby_bins("lat", 8).mean(),
    "resample MS, mean": lambda t: t.resample(time="MS").mean(),
    "resample MS, max": lambda t: t.resample(time="MS").max(),
    "resample MS, first": lambda t: t.resample(time="MS").first(),
    "resample 7D, std": lambda t: t.resample(time="7D").std(),
    "resample 1D, mean": lambda t: t.resample(time="1D").mean(),
    "resample 12h, ffill": lambda t: t.resample(time="12h").ffill(),
    "resample 12h, mean": lambda t: t.resample(time="12h").mean(),
    "rolling 30, mean": lambda t: t.rolling(time=30).mean(),
    "rolling 7 centred, mean": lambda t: t.rolling(time=7, center=True).mean(),
    "rolling 30, max": lambda t: t.rolling(time=30).max(),
    "rolling 30, std": lambda t: t.rolling(time=30).std(),
    "rolling 7, construct, mean": lambda t: t.rolling(time=7).construct("window").mean("window"),
    "coarsen 4 x 4, mean": lambda t: t.coarsen(lat=4, lon=4, boundary="trim").mean(),
    "coarsen 30 days, max": lambda t: t.coarsen(time=30, boundary="trim").max(),
    "histogram": lambda t: np.histogram(t.data, bins=100, range=(230, 330))[0],
    "isel by a mask": lambda t: t.isel(time=t.time.dt.month.data == 7).mean("time"),
    "zscore": lambda t: ((t - t.mean("time")) / t.std("time")).max("time"),
}


def whole(t: xr.DataArray) -> xr.DataArray:
    """Return the field with a single chunk along time, and smaller ones along longitude."""
    return t.chunk(time=-1, lat=64, lon=90)


def sample(work: str, by: str, t: xr.DataArray, samples: int, results: Any) -> None:
    """Put a checksum, and seconds and peak bytes of every call, into the pipe `results`."""
    warnings.simplefilter("ignore")
    if by == OURS:
        dc.install()
    seconds, bytes_ = [], []
    try:
        for turn in range(samples + 1):
            before = calm()
            begin = time.perf_counter()
            result = WORKS[work](t).compute(scheduler="threads")
            seconds.append(time.perf_counter() - begin)
            bytes_.append(peak() - before)
            if not turn:
                # Places of elements, not only their sum.
                values = np.asarray(result, "f8").ravel()
                values = values * (1 + np.arange(values.size) % 7)
                check = float(np.nanmean(values))
                del values
            del result
        results.send((check, seconds[1:], bytes_[1:]))
    except Exception as error:
        results.send(f"{type(error).__name__}: {error}")


def measure(t: xr.DataArray, works: list[str], samples: int) -> Iterator[Row]:
    """Yield a row for each operation and contender; one that raises has its message.

    Raises
    ------
    ArithmeticError
        If the results of both differ.
    """
    fork = multiprocessing.get_context("fork")
    for work in works:
        expected = None
        for by in (PLAIN, OURS):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=sample, args=(work, by, t, samples, theirs))
            process.start()
            theirs.close()
            try:
                got = ours.recv()
            except EOFError:
                got = "the process was killed"
            process.join()
            row: Row = {"work": work, "by": by, "gib": t.nbytes / 2**30}
            if isinstance(got, str):
                yield row | {"error": got.splitlines()[0][:200]}
                continue
            check, seconds, bytes_ = got
            expected = check if expected is None else expected
            if not np.isclose(check, expected, rtol=1e-4, equal_nan=True):
                raise ArithmeticError(f"{work} is {check}, not {expected}")
            median = statistics.median
            yield row | {"s": median(seconds), "bytes": median(bytes_)}


def figures(folder: Path) -> str:
    """Return the figures of the page for the results in `folder`."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        machine, rows = results["machine"], results["rows"]
        parts += order.heading(path, machine)
        parts.append(f"A field of {rows[0]['gib']:.2g} GiB.")
        by = {(row["work"], row["by"]): row for row in rows}
        table = []
        for work in dict.fromkeys(row["work"] for row in rows):
            plain, ours = by[work, PLAIN], by[work, OURS]
            cells = [f"{row['s']:.2f}" if "s" in row else "raises" for row in (plain, ours)]
            cells += [f"{row['bytes'] / 2**20:.0f}" if "s" in row else "-" for row in (plain, ours)]
            times = "-"
            if "s" in plain and "s" in ours:
                times = f"{plain['s'] / ours['s']:.2f}"
            table.append([work, *cells[:2], times, *cells[2:]])
        head = [
            "operation",
            "plain, s",
            "installed, s",
            "plain takes x",
            "plain, MiB",
            "installed, MiB",
        ]
        parts.append(report.table(head, table))
    return "\n\n".join(parts) or "No results are there yet."


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=0.5, help="size of the field")
    parser.add_argument("--samples", type=int, default=3, help="calls in a process")
    parser.add_argument("--only", nargs="*", default=list(WORKS), help="operations to measure")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/operations.md anew")
    options = parser.parse_args()
    if not options.write:
        rows = measure(field(options.gib), options.only, options.samples)
        path = options.results / f"{os.cpu_count()}-cores.json"
        collective.keep(order.facts(gpu=False), rows, path)
    if options.write or options.results == RESULTS:
        node.write(figures(RESULTS), PAGE)


if __name__ == "__main__":
    main()
