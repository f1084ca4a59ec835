"""The pages of results: ``python -m benchmarks.report`` writes docs/performance.md anew.

Every figure comes from benchmarks/results/*.json. The page in docs/ has what most readers want to
know and a few rows; benchmarks/results/tables.md has all rows, and so has the page of another
folder. Importing this module does not import matplotlib; without it the page has no plots.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .targets import HOST_TARGETS, LEAST_OF_DASK, TARGETS, Row, Target, kinds, read
from .threads import THREADS, name_of

HERE = Path(__file__).resolve().parent
#: The folder of results in a checkout, and its page; None for an installed package.
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "performance.md" if (HERE.parent / "docs").is_dir() else None

#: All rows, beside the results of a checkout.
TABLES_NAME = "tables.md"
#: The most rows of a table in docs/.
MOST_ROWS = 10
#: Software whose versions pages name; files of results name all.
NAMED = ("dask_coop", "CuPy", "Dask", "NumPy", "Numba", "Python")

PEERS = (
    *("CUB", "CuPy", "PyTorch", "NumPy", "Dask", "Dask blelloch"),
    *("bottleneck", "numbagg", "boost-histogram", "fast-histogram"),
)
OURS = "dask_coop"

HEAD = """# All timings

`python -m benchmarks.report` writes this page from the samples in {results}, which `make bench`
takes.

All contenders get the same arrays in one process. A time counts only if the result matches NumPy's:
integers and counts exactly; above {host:,} elements, the same in float64 on the GPU. On a GPU a
sample is a batch of calls between two device events, queued while a kernel holds the stream, so it
leaves out the host's time for a call (`host_ms` in the samples). Calls walk through at least {sets}
inputs, which together are {caches} times as large as the second-level cache. Times are medians of
{samples}; contenders take turns. Our time is that of one chunk, with its result left on the GPU, as
CuPy leaves it.

Without a GPU, the host's clock times NumPy chunks; medians are of {host_samples}. *chunks* are
calls on one chunk by one thread, without a graph or scheduler; Dask's are whole calls. *threads*
are whole calls on one large array with more and more threads, and *arrays* whole calls on arrays in
memory. In *holes* a tenth of the elements is NaN; peers that add float32 in float32 may be off by
{naive:.0%}.

The *floor* is the time to move the necessary bytes at the rate of a copy, or of a read where little
is written, measured in the same run. For products it is the time to issue the instructions at the
highest clock.
"""

LEAD = """# Performance

{findings}

A time counts only if the result matches NumPy's. Figures are medians of several samples; contenders
take turns on the same arrays. Times on a GPU leave out what the host needs for a call. `make bench`
repeats the measurements; `benchmarks/{name}` in the repository has all of them and explains the
method. [Sixty xarray operations](operations.md) compares whole calls, and
[a script run unchanged](install.md#how-fast) a whole script.
"""


def write(folder: Path) -> list[Path]:
    """Write the pages of the results in `folder`, and their plots beside them."""
    ours = PAGE is not None and folder.resolve() == RESULTS
    full = folder / (TABLES_NAME if ours else "performance.md")
    full.parent.mkdir(parents=True, exist_ok=True)
    written = [full]
    for path in sorted(folder.glob("*.json")):
        try:
            from .plots import draw
        except ModuleNotFoundError as error:
            if error.name != "matplotlib":
                raise
            print("no plots: matplotlib is not installed", file=sys.stderr)
            break
        written += draw(path, json.loads(path.read_text()))
    full.write_text(text(folder))
    if ours and PAGE is not None:
        PAGE.write_text(lead(folder, PAGE.parent))
        written.append(PAGE)
    return written


def text(folder: Path) -> str:
    """Return the page of all rows of the results in `folder`."""
    from .cases import HOST_ELEMENTS
    from .chunks import NAIVE
    from .timers import CACHES, HOST_SAMPLES, LEAST_SETS, SAMPLES

    parts = [
        HEAD.format(
            results=f"`{folder.name}`",
            host=HOST_ELEMENTS,
            caches=CACHES,
            sets=LEAST_SETS,
            samples=_in_words(SAMPLES),
            host_samples=_in_words(HOST_SAMPLES),
            naive=NAIVE,
        )
    ]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        parts.append(section(path.stem, found, [f"{path.stem}-{k}.svg" for k in kinds(found)]))
    return "\n".join(parts)


def lead(folder: Path, start: Path) -> str:
    """Return the page in docs/, with links relative to `start`: findings, plots, few rows."""
    findings: list[str] = []
    parts: list[str] = []
    to = Path(os.path.relpath(folder.resolve(), start.resolve())).as_posix()
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        lines = largest_of(list(merged(found["rows"])))
        findings += list(findings_of(found["machine"], lines))
        machine, gpu = found["machine"], found["machine"]["gpu"]
        where = gpu["name"] if gpu else f"{machine['processors']} cores, no GPU"
        parts += [f"## {where}", f"{machine['date']}. {versions_of(machine)}."]
        parts += [f"![{SAID[kind]}]({to}/{path.stem}-{kind}.svg)" for kind in kinds(found)]
        compared = [line for line in lines if line["primitive"] not in ("threads", "arrays")]
        rows = [row for line in compared if (row := beside(line)) is not None]
        if rows:
            head = ["work", "dtype", "bins", f"{OURS}, ms", "fastest peer, ms", "peer", "factor"]
            parts.append(excerpt(head, rows, f"{to}/{path.name}"))
            slow = sorted((float(row[-1]), f"{row[0]} {row[1]}") for row in rows)
            slower = [f"{name} ({factor:g})" for factor, name in slow if factor < SLOWER]
            parts.append(f"Slower than a peer: {', '.join(slower) or 'nothing'}.")
    listed = "\n".join(f"- {finding}" for finding in findings)
    begin = LEAD.format(findings=listed, name=f"{folder.name}/{TABLES_NAME}").rstrip()
    return "\n\n".join([begin, *parts]) + "\n"


#: What a plot shows, by its kind.
SAID = {
    "threads": "Throughput against the number of threads",
    "sizes": "Time against size, beside CUB, CuPy and PyTorch",
    "bins": "Throughput of a histogram against the number of bins",
}
#: A factor below this one is a slower call, not a variation of times.
SLOWER = 0.9


def findings_of(machine: Row, lines: list[Row]) -> Iterator[str]:
    """Yield what a reader in a hurry wants to know of one machine, a sentence each."""
    each = {
        kind: [r for line in lines if line["primitive"] == kind and (r := ratio(line)) is not None]
        for kind in {line["primitive"] for line in lines}
    }
    if gpu := machine["gpu"]:
        read = [line for line in lines if line["primitive"] in ("reduce", "scan", "histogram")]
        shares = [line["floor_ms"] / line["times"][OURS] for line in read if OURS in line["times"]]
        ratios = sorted(r for line in read if (r := ratio(line)) is not None)
        yield (
            f"**On a GPU** ({gpu['name']}), half of the reductions, scans and histograms reach "
            f"{median(shares):.0%} or more of what memory allows. The fastest of CUB, CuPy and "
            f"PyTorch takes {median(ratios):.2g} times as long (median of {len(ratios)} cases, "
            f"from {ratios[0]:.2g} to {ratios[-1]:,.0f})."
        )
        return
    if ratios := sorted(each.get("chunks", [])):
        slow = sum(r < SLOWER for r in ratios)
        yield (
            f"**On one core**, the fastest of NumPy, bottleneck, numbagg, boost-histogram and "
            f"fast-histogram takes {median(ratios):.2g} times as long (median of {len(ratios)} "
            f"cases, from {ratios[0]:.2g} to {ratios[-1]:.2g}; less than {SLOWER} times in {slow} "
            "of them). Sums and extrema, which memory limits, are about equal; histograms, "
            "variances and running sums gain most."
        )
    arrays = [line for line in lines if line["primitive"] == "arrays"]
    if ratios := sorted(r for line in arrays if (r := ratio(line, ("Dask",))) is not None):
        yield (
            f"**Whole calls** on {machine['processors']} cores: `dask.array` takes "
            f"{median(ratios):.2g} times as long (median of {len(ratios)} calls, from "
            f"{ratios[0]:.2g} to {ratios[-1]:.2g})."
        )
    threads = [line for line in lines if line["primitive"] == "threads"]
    # On a few cores, gains tell little.
    if machine["processors"] >= 8 and (
        gains := [t[name_of(1)] / t[OURS] for t in (line["times"] for line in threads)]
    ):
        yield (
            f"**{machine['processors']} cores** are {min(gains):.2g} to {max(gains):.2g} times as "
            "fast as one thread."
        )


def largest_of(lines: list[Row]) -> list[Row]:
    """Return the lines of the largest arrays of one axis, and those of all others."""
    flat = [line for line in lines if len(line["shape"]) == 1 and line["primitive"] != "threads"]
    largest = max((line["shape"][0] for line in flat), default=0)
    return [line for line in lines if line not in flat or line["shape"][0] == largest]


def beside(line: Row) -> list[str] | None:
    """Return a row on this library and its fastest peer, if both have a time."""
    peer, ours = best(line), line["times"].get(OURS)
    if peer is None or ours is None or line["data"] != "uniform":
        return None
    bins = f"{line['bins']:,}" if line["bins"] else ""
    times = [number(ours), number(peer[1]), peer[0], f"{peer[1] / ours:#.2g}".rstrip(".")]
    return [line["work"], line["dtype"], bins, *times]


def excerpt(head: list[str], rows: Sequence[list[str]], target: str, most: int = MOST_ROWS) -> str:
    """Return a table of a few rows, evenly spaced, and a link to the file with all of them."""
    most = min(len(rows), most)
    chosen = sorted({round(i * (len(rows) - 1) / max(most - 1, 1)) for i in range(most)})
    name = Path(target).name
    said = f"{len(chosen)} of {len(rows)} rows; [{name}]({target}) has all."
    return f"{table(head, [rows[i] for i in chosen])}\n\n{said}"


def _in_words(samples: Sequence[tuple[float, int]]) -> str:
    """Return the sentence on the number of samples for calls of given milliseconds."""
    ends, counts = zip(*samples, strict=True)
    fewer = (f"{n} above {end:g} ms" for end, n in zip(ends, counts[1:], strict=False))
    return f"{counts[0]} samples, " + ", ".join(fewer)


def versions_of(machine: dict[str, Any], names: Iterable[str] = NAMED) -> str:
    """Return the versions of the named software, by default what affects results most."""
    versions = machine["versions"]
    return ", ".join(f"{name} {versions[name]}" for name in names if versions.get(name))


def section(name: str, found: dict[str, Any], pictures: Iterable[str]) -> str:
    """Return the section on one file of results."""
    machine, lines = found["machine"], list(merged(found["rows"]))
    gpu = machine["gpu"]
    rates = ", ".join(
        f"{what} {c['bytes'] / c['ms'] / 1e6:,.0f} GB/s" for what, c in found["ceilings"].items()
    )
    on = "" if gpu else f"{machine['processor']}, {machine['processors']} processors. "
    blocks = [
        f"## {gpu['name'] if gpu else 'Without a GPU'} ({name})",
        f"{machine['date']}, {machine['seconds']} s in all. {on}"
        f"{versions_of(machine, machine['versions'])}. Ceilings: {rates}.",
    ]
    shown = largest_of(lines)
    flat = [line for line in shown if len(line["shape"]) == 1 and line["primitive"] != "threads"]
    largest = max((line["shape"][0] for line in flat), default=0)
    blocks += ["### The aims", aims(lines, largest, TARGETS if gpu else HOST_TARGETS)]
    blocks += ["### Plots"] + [f"![{Path(p).stem}]({p})" for p in pictures]
    for primitive in dict.fromkeys(line["primitive"] for line in shown):
        chosen = [line for line in shown if line["primitive"] == primitive]
        unit, show = TABLES.get(primitive, ("milliseconds", details))
        blocks += [f"### {primitive}: {unit}", show(chosen)]
    if gpu and by_size(lines):
        blocks += ["### By size: the best other time over that of dask_coop", by_size(lines)]
    if failures := [line for line in lines if line["failures"]]:
        blocks += ["### Without a time", without(failures)]
    return "\n\n".join(blocks) + "\n"


def merged(rows: list[Row]) -> Iterator[Row]:
    """Yield a line for each case: its times by contender, and why others have none."""
    lines: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        about = ("primitive", "work", "dtype", "data", "bins")
        key = (*map(row.get, about), tuple(row["shape"]), row.get("chunks"))
        line = lines.setdefault(key, {**row, "times": {}, "failures": {}, "repeatable": {}})
        if row["status"] == "ok":
            line["times"][row["contender"]] = row["ms"]
            line["repeatable"][row["contender"]] = row.get("repeatable")
        else:
            line["failures"][row["contender"]] = f"{row['status']}: {row['note']}"
    yield from lines.values()


def best(line: Row, among: Iterable[str] = PEERS) -> tuple[str, float] | None:
    """Return the fastest of the peers and its milliseconds."""
    times = [(ms, peer) for peer, ms in line["times"].items() if peer in among]
    return min(times)[::-1] if times else None


def ratio(line: Row, among: Iterable[str] = PEERS) -> float | None:
    """Return how many times faster this library is than the fastest of the peers."""
    found, ours = best(line, among), line["times"].get(OURS)
    return found[1] / ours if found and ours else None


def aims(lines: list[Row], largest: int, targets: Iterable[Target]) -> str:
    """Return the table of this library's aims and the ratios that it reaches."""
    peers = [peer for peer in PEERS if any(peer in line["times"] for line in lines)]
    head = ["work", OURS, *peers, "best peer / ours", "wanted", "reached"]
    return table(head, (aim(target, lines, largest, peers) for target in targets))


def aim(target: Target, lines: list[Row], largest: int, peers: Sequence[str] = PEERS) -> list[str]:
    """Return the row of one target."""
    line = target.find(lines, largest)
    if line is None:
        return [target.label, *[""] * (len(peers) + 2), target.wanted, "not measured"]
    times = line["times"]
    reached = target.reached(line, lines, largest)
    verdict = line["failures"].get(OURS, "no other time").removeprefix("missing: ")
    if reached is not None:
        verdict = f"{number(reached)}, {'yes' if reached >= target.least else 'no'}"
    cells = [number(times.get(name)) for name in (OURS, *peers)]
    return [target.label, *cells, number(ratio(line)), target.wanted, verdict]


def details(lines: list[Row]) -> str:
    """Return the times of every contender."""
    peers = [peer for peer in PEERS if any(peer in line["times"] for line in lines)]
    head = ["work", "dtype", "shape", "data", "bins", "floor", OURS, "of the floor", "same bits"]
    return table([*head, *peers, "best peer / ours"], (detail(line, peers) for line in lines))


def detail(line: Row, peers: list[str]) -> list[str]:
    """Return one row of `details`."""
    ours, floor = line["times"].get(OURS), line["floor_ms"]
    share = f"{floor / ours:.0%}" if ours and floor else ""
    same = {True: "yes", False: "no"}.get(line["repeatable"].get(OURS), "")
    bins = f"{line['bins']:,}" if line["bins"] else ""
    return [
        *(line["work"], line["dtype"], shape(line), line["data"], bins, number(floor)),
        *(number(ours), share, same),
        *(number(line["times"].get(peer)) for peer in peers),
        number(ratio(line)),
    ]


def calls(lines: list[Row]) -> str:
    """Return the table of whole calls beside Dask's, and the number of them that are as fast."""
    beside = [r for line in lines if (r := ratio(line, ("Dask",))) is not None]
    slow = sum(r < LEAST_OF_DASK for r in beside)
    head = ["work", "dtype", "shape", "chunks", OURS, "Dask", "Dask / ours", "Dask blelloch"]
    rows = []
    for line in lines:
        times, found = line["times"], ratio(line, ("Dask",))
        mark = f" (below {LEAST_OF_DASK})" if found is not None and found < LEAST_OF_DASK else ""
        rows.append(
            [
                *(line["work"], line["dtype"], shape(line), str(line["chunks"])),
                *(number(times.get(OURS)), number(times.get("Dask"))),
                *(number(found) + mark, number(times.get("Dask blelloch"))),
            ]
        )
    return (
        f"{len(beside) - slow} of {len(beside)} calls take at most 1 / {LEAST_OF_DASK} of the time "
        f"of Dask's function of the same name.\n\n{table(head, rows)}"
    )


def by_threads(lines: list[Row]) -> str:
    """Return rates of the input by the number of threads, and the gain of the most over one."""
    names = [name_of(n) for n in THREADS]
    fewer = [name for name in names if any(name in line["times"] for line in lines)]
    columns = (*fewer, OURS, "Dask")
    head = ["work", "shape", *fewer, f"{OURS}, all", "all / one", "Dask, all"]
    rows = []
    for line in lines:
        times = line["times"]
        one, ours = times.get(name_of(1)), times.get(OURS)
        rates = [number(read(line) / times[n] / 1e6) if n in times else "" for n in columns]
        gain = number(one / ours) if one and ours else ""
        rows.append([line["work"], shape(line), *rates[:-1], gain, rates[-1]])
    return table(head, rows)


#: The tables of primitives that are not shown by the default one.
TABLES = {"arrays": ("milliseconds", calls), "threads": ("GB/s", by_threads)}


def by_size(lines: list[Row]) -> str:
    """Return the ratios to the best peer, a column for each size."""
    flat = [line for line in lines if len(line["shape"]) == 1 and line["data"] == "uniform"]
    sizes = sorted({line["shape"][0] for line in flat})
    rows: dict[tuple[Any, ...], dict[int, str]] = {}
    for line in flat:
        row = rows.setdefault((line["work"], line["dtype"], line["bins"]), {})
        row[line["shape"][0]] = number(ratio(line))
    head = ["work", "dtype", "bins", *(shape({"shape": [n]}) for n in sizes)]
    cells = (
        [work, dtype, f"{bins:,}" if bins else "", *(row.get(n, "") for n in sizes)]
        for (work, dtype, bins), row in rows.items()
        if len(row) > 1
    )
    return table(head, cells)


def without(lines: list[Row]) -> str:
    """Return the reasons why contenders have no time, each once."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        for contender, why in line["failures"].items():
            reasons.setdefault((contender, line["work"], why), []).append(line["dtype"])
    rows = (
        [*key, ", ".join(dict.fromkeys(dtypes)), str(len(dtypes))]
        for key, dtypes in reasons.items()
    )
    return table(["contender", "work", "reason", "dtypes", "cases"], rows)


def shape(line: Row) -> str:
    """Return the shape of a case in readable form."""
    sizes = line["shape"]
    if len(sizes) == 1 and sizes[0] & (sizes[0] - 1) == 0:
        return f"2^{sizes[0].bit_length() - 1}"
    return " x ".join(map(str, sizes))


def number(value: float | None) -> str:
    """Return a number with three significant digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for _path in write(RESULTS):
        print(f"written: {os.path.relpath(_path)}")
