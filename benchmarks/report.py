"""The page of results: ``python -m benchmarks.report`` writes docs/performance.md anew.

Every figure on the page comes from benchmarks/results/*.json; each file has a section and plots.
Importing this module does not import matplotlib; without it the page has no plots.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .targets import HOST_TARGETS, LEAST_OF_DASK, TARGETS, Row, Target, kinds, read
from .threads import THREADS, name_of

HERE = Path(__file__).resolve().parent
#: The folder of results in a checkout, and its page; None for an installed package.
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "performance.md" if (HERE.parent / "docs").is_dir() else None

#: The most rows of a table in docs/; the page of another folder shows all.
MOST_ROWS = 10

PEERS = (
    *("CUB", "CuPy", "PyTorch", "NumPy", "Dask", "Dask blelloch"),
    *("bottleneck", "numbagg", "boost-histogram", "fast-histogram"),
)
OURS = "dask_coop"

HEAD = """# Performance

Written by `python -m benchmarks.report` from the samples in {results}, which `make bench` takes.

How it is measured: all contenders get the same arrays in one process, and a time is written down
only after the result was held to NumPy's (integers and counts exact; above {host:,} elements to
the same in float64 on the GPU). On a GPU a sample is a batch of calls between two device events,
queued while a kernel holds the stream: the time of a call is the device's alone, launches
following one another, without what the host needs for a call (`host_ms` in the samples). Calls
walk through several inputs, at least {sets}, and together {caches} times the second-level cache.
Times are medians of {samples};
contenders take them in turn. What is timed of this library is the work on one chunk, its result
left on the GPU as CuPy leaves it.

Without a GPU the host's clock times NumPy chunks, and medians are of
{host_samples}. *chunks* are calls on one chunk
by one thread, without the building of a graph and without a scheduler; Dask's are whole. *threads*
are whole calls on one large array by more and more threads, *arrays* whole calls on arrays in
memory: from the call to the chunks of the result. In *holes* a tenth is NaN; peers that add float32
up in float32, one after the other, may be off by {naive:.0%}.

The *floor* is the bytes that must be moved at the rate of a copy, or of a read where little is
written, that was measured in the same run; for products it is the instructions that must be
issued, at the highest clock.
"""


def write(folder: Path) -> list[Path]:
    """Write the page of the results in `folder`, and their plots beside them."""
    page = PAGE if PAGE is not None and folder.resolve() == RESULTS else folder / "performance.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    written = [page]
    for path in sorted(folder.glob("*.json")):
        try:
            from .plots import draw
        except ModuleNotFoundError as error:
            if error.name != "matplotlib":
                raise
            print("no plots: matplotlib is not installed", file=sys.stderr)
            break
        written += draw(path, json.loads(path.read_text()))
    page.write_text(text(folder, page.parent))
    return written


def text(folder: Path, start: Path) -> str:
    """Return the page of the results in `folder`, with links that are relative to `start`."""
    from .cases import HOST_ELEMENTS
    from .chunks import NAIVE
    from .timers import CACHES, HOST_SAMPLES, LEAST_SETS, SAMPLES

    def relative(path: Path) -> str:
        return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()

    parts = [
        HEAD.format(
            results=f"`{relative(folder)}`",
            host=HOST_ELEMENTS,
            caches=CACHES,
            sets=LEAST_SETS,
            samples=_in_words(SAMPLES),
            host_samples=_in_words(HOST_SAMPLES),
            naive=NAIVE,
        )
    ]
    most = MOST_ROWS if folder.resolve() == RESULTS else None
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        pictures = [path.with_name(f"{path.stem}-{kind}.svg") for kind in kinds(found)]
        parts.append(section(path.stem, found, [relative(picture) for picture in pictures], most))
        if most is not None:
            parts.append(f"[{path.name}]({relative(path)}) has all rows.\n")
    return "\n".join(parts)


def _in_words(samples: Sequence[tuple[float, int]]) -> str:
    """Return the sentence on the number of samples for calls of given milliseconds."""
    ends, counts = zip(*samples, strict=True)
    fewer = (f"{n} above {end:g} ms" for end, n in zip(ends, counts[1:], strict=False))
    return f"{counts[0]} samples, " + ", ".join(fewer)


def versions_of(machine: dict[str, Any]) -> str:
    """Return the versions of all software of a machine that affects results."""
    return ", ".join(
        f"{name} {version}" for name, version in machine["versions"].items() if version
    )


def section(
    name: str, found: dict[str, Any], pictures: Iterable[str], most: int | None = None
) -> str:
    """Return the section on one file of results."""
    machine, lines = found["machine"], list(merged(found["rows"]))
    gpu = machine["gpu"]
    versions = versions_of(machine)
    rates = ", ".join(
        f"{what} {c['bytes'] / c['ms'] / 1e6:,.0f} GB/s" for what, c in found["ceilings"].items()
    )
    on = "" if gpu else f"{machine['processor']}, {machine['processors']} processors. "
    blocks = [
        f"## {gpu['name'] if gpu else 'Without a GPU'} ({name})",
        f"{machine['date']}, {machine['seconds']} s in all. {on}{versions}. Ceilings: {rates}.",
    ]
    flat = [line for line in lines if len(line["shape"]) == 1 and line["primitive"] != "threads"]
    largest = max((line["shape"][0] for line in flat), default=0)
    blocks += ["### The aims", aims(lines, largest, TARGETS if gpu else HOST_TARGETS)]
    blocks += ["### Plots"] + [f"![{Path(p).stem}]({p})" for p in pictures]
    shown = [line for line in lines if line not in flat or line["shape"][0] == largest]
    for primitive in dict.fromkeys(line["primitive"] for line in shown):
        chosen = [line for line in shown if line["primitive"] == primitive]
        unit, show = TABLES.get(primitive, ("milliseconds", details))
        blocks += [f"### {primitive}: {unit}", shortened(show(chosen), most)]
    if sized := gpu and by_size(lines):
        blocks += [
            "### By size: the best other time over that of dask_coop",
            shortened(sized, most),
        ]
    if failures := [line for line in lines if line["failures"]]:
        blocks += ["### Without a time", shortened(without(failures), most)]
    return "\n\n".join(blocks) + "\n"


def shortened(text: str, most: int | None) -> str:
    """Return a text that ends in a table, with at most `most` of its rows, evenly spaced."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| ---")) + 1
    head, rows = lines[:first], lines[first:]
    if most is None or len(rows) <= most:
        return text
    step = (len(rows) - 1) / (most - 1)
    chosen = [rows[round(i * step)] for i in range(most)]
    return "\n".join([*head, *chosen, "", f"{most} of {len(rows)} rows."])


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
