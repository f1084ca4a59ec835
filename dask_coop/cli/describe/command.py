"""``describe``: print statistics and quantiles of all values of arrays, and draw pictures."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import format_bytes

from dask_coop.api.call.drawings import readable
from dask_coop.cli.describe.readers import Chunks, Source, as_user_errors
from dask_coop.cli.describe.sources import join, open_sources, split
from dask_coop.cli.describe.summaries import QUANTILES, STATISTICS, Summary, summarize
from dask_coop.cli.output import say
from dask_coop.compiled.waits import compiled_apart
from dask_coop.errors import UserError

MOST_BINS = 2**24


def add_to(commands: Any) -> None:
    """Add the command and its options to a parser's subparsers."""
    describe = commands.add_parser(
        "describe",
        help="print statistics and quantiles of arrays in files, and draw their histograms",
        description="Prints statistics and exact quantiles of all finite values of each array. "
        "Writes no file unless --figure, --out or --html asks for one.",
    )
    describe.set_defaults(run=run)
    describe.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a .npy, .npz, .zarr, .h5, .hdf5, .nc, .csv, .png, .jpg or .tif file, its URL, a "
        "folder of such files, a pattern, - for a .npy on stdin, or skimage:NAME for a picture "
        "that comes with scikit-image",
    )
    describe.add_argument(
        "--join",
        action="store_true",
        help="describe all sources as one array, joined along the first axis",
    )
    describe.add_argument(
        "--each",
        type=int,
        metavar="AXIS",
        help="describe each index along an axis separately, such as -1 for the channels of a "
        "picture",
    )
    describe.add_argument(
        "--bins", type=_bins, default=256, metavar="N", help="number of bins (default: 256)"
    )
    describe.add_argument(
        "--range",
        type=_limit,
        nargs=2,
        metavar=("LO", "HI"),
        help="outer edges of the histogram, two numbers or two dates (default: the least and the "
        "greatest value)",
    )
    describe.add_argument(
        "--chunks",
        type=_chunks,
        default="auto",
        metavar="C",
        help="shape of the chunks: 'auto', one number for all axes, or one for each axis, as in "
        "512,512,3",
    )
    describe.add_argument(
        "--figure", action="store_true", help="write a histogram of each array as a PNG"
    )
    describe.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write the PNGs into this folder; implies --figure (default: the current folder)",
    )
    describe.add_argument(
        "--html", type=Path, metavar="FILE", help="write one page with all tables and histograms"
    )
    describe.add_argument(
        "--dataset",
        metavar="NAME",
        help="describe one array of an HDF5, netCDF or .npz file or a Zarr group, or one column of "
        "a .csv (default: all that hold numbers or dates)",
    )
    describe.add_argument(
        "--cluster",
        action="store_true",
        help="start processes on this machine, one for each GPU or CPU, and run on them",
    )
    describe.add_argument(
        "--json", action="store_true", help="print the results as JSON, and nothing else"
    )
    describe.add_argument("--quiet", action="store_true", help="print only errors")
    describe.add_argument("--cpu", action="store_true", help="use no GPU")


def _bins(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_BINS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MOST_BINS}")
    return int(text)


def _limit(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return np.datetime64(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor a date such as 2020-01-31"
        ) from None


def _chunks(text: str) -> Chunks:
    if text == "auto":
        return text
    numbers = [int(number) if number.strip().isdecimal() else 0 for number in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 'auto' nor whole numbers above zero with commas between"
        )
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def run(options: argparse.Namespace) -> None:
    """Describe the sources, and write the pictures and the page that the options ask for.

    Parameters
    ----------
    options : argparse.Namespace
        The options of `add_to`.

    Raises
    ------
    UserError
        If a source cannot be opened, read or described, or a file cannot be written.
    """
    # Check everything that can be checked before the work starts.
    if options.range is not None:
        low, high = options.range
        same_kind = isinstance(low, float) == isinstance(high, float)
        if not (same_kind and np.isfinite(low) and np.isfinite(high) and low < high):
            shown = " ".join(f"{x:g}" if isinstance(x, float) else readable(x) for x in (low, high))
            raise UserError(
                f"--range {shown}: give two finite numbers, or two dates, the lesser first"
            )
    folder = options.out or Path()
    draws = options.figure or options.out is not None
    if draws:
        require_writable(folder)
    with TemporaryDirectory(prefix="dask-coop-") as scratch:
        opened = open_sources(options.sources, options.dataset, options.chunks, scratch)
        sources = [join(opened)] if options.join else opened
        if options.each is not None:
            sources = [index for source in sources for index in split(source, options.each)]
        inputs = {source.path.resolve() for source in opened}
        if options.html is not None:
            _require_page(options.html, inputs)
        paths = _figure_paths(sources, inputs, folder) if draws else [None] * len(sources)
        _describe(options, sources, paths)


def _describe(
    options: argparse.Namespace, sources: list[Source], figure_paths: Sequence[Path | None]
) -> None:
    from dask_coop.cli import backends

    if options.html is not None or any(figure_paths):
        # If matplotlib is missing, say so before the work starts.
        from dask_coop.cli.describe import figures, page

    prints, facts, sections = not (options.json or options.quiet), [], []
    with backends.start(options.cluster, options.cpu, bar=not options.quiet) as runtime:
        for source, path in zip(sources, figure_paths, strict=True):
            opened = _opened(source, runtime.name)
            if prints:
                say("\n".join(opened))
            with as_user_errors(source):
                x, codes = runtime.move(source.array), source.codes
                if codes is not None:
                    codes = codes.like(runtime.move(codes.array))
                summary = summarize(x, options.bins, options.range, runtime.compute, codes)
            timed = _timed(summary)
            if prints:
                say("\n".join([*_table(summary), *timed]))
            if options.html is not None:
                sections.append(page.Section(source.name, [*opened, *timed], summary))
            if path is not None:
                subtitle = f"{_shape(x.shape)} {x.dtype}: {summary.inside:,} values in bins"
                with _as_user_errors(f"--out {path.parent}"):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    figures.save_summary(path, source.name, subtitle, summary)
            if prints:
                say("" if path is None else f"figure: {path}\n")
            if options.json:
                facts.append(_facts(source, summary, runtime.name, path))
    if options.html is not None:
        with _as_user_errors(f"--html {options.html}"):
            options.html.parent.mkdir(parents=True, exist_ok=True)
            page.write(options.html, sections)
        if prints:
            say(f"page: {options.html}")
    if options.json:
        say(json.dumps(facts))


@contextmanager
def _as_user_errors(option: str) -> Iterator[None]:
    """Turn the errors of a file that cannot be written into UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{option}: cannot write it: {error}") from error


def _require_page(path: Path, inputs: set[Path]) -> None:
    if path.is_dir():
        raise UserError(f"--html {path}: it is a folder; name a file, such as {path}/page.html")
    if path.resolve() in inputs:
        raise UserError(f"--html {path}: it is one of the sources; name another file")
    require_writable(path.parent, f"--html {path}")


def require_writable(folder: Path, option: str = "") -> None:
    """Raise UserError if no files can be written into a folder, which may not exist yet."""
    option = option or f"--out {folder}"
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"{option}: {existing} is not a folder; name another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{option}: {existing} is not writable; name another folder")


def _figure_paths(sources: list[Source], taken: set[Path], folder: Path) -> list[Path]:
    """Return a path for the picture of each source, all different and none in `taken`.

    Raises
    ------
    UserError
        If one of them cannot be written.
    """
    taken, paths = set(taken), []
    for source in sources:
        stem = re.sub(r"[^\w.-]+", "-", source.stem)
        path, number = folder / f"{stem}-histogram.png", 1
        while path.resolve() in taken:
            number += 1
            path = folder / f"{stem}-histogram-{number}.png"
        if path.is_dir():
            raise UserError(f"--out {folder}: {path} is a folder; name another")
        taken.add(path.resolve())
        paths.append(path)
    return paths


def _opened(source: Source, backend: str) -> list[str]:
    """Return the lines on a source that are printed before it is read."""
    x, text = source.array, source.text
    return [
        f"source: {text}" + (f" ({source.name})" if source.name not in text else ""),
        f"shape: {_shape(x.shape)} ({format_bytes(_size(x))})",
        f"dtype: {x.dtype}",
        *source.notes,
        f"chunks: {math.prod(x.numblocks)} of {_shape(_largest_chunk(x))}",
        f"backend: {backend}",
    ]


def _table(summary: Summary) -> list[str]:
    rows = summary.rows()
    width = max(map(len, rows))
    return [f"  {name:<{width}}  {readable(value)}" for name, value in rows.items()]


def _timed(summary: Summary) -> list[str]:
    """Return the lines behind the table: a note if one bin holds most values, and the time."""
    lines = []
    fraction = summary.counts.max() / summary.inside
    if (
        fraction > 0.5
        and len(summary.counts) > 2
        and summary.statistics["min"] < summary.statistics["max"]
    ):
        lines.append(
            f"note: one bin holds {fraction:.1%} of the values; --range LO HI spreads them"
        )
    size, seconds = summary.nbytes, summary.seconds
    reads = "1 read" if summary.reads == 1 else f"{summary.reads} reads"
    rate = summary.reads * size / seconds / 1e9
    lines.append(
        f"time: {seconds:.2f} s for {reads} of {format_bytes(size)}, {rate:.3g} GB/s"
        f"{compiled_apart(summary.compiling)}"
    )
    return lines


def _facts(source: Source, summary: Summary, backend: str, figure: Path | None) -> dict[str, Any]:
    """Return all results as a dict for JSON."""
    x = source.array
    quantiles = zip(QUANTILES.values(), summary.quantiles.values(), strict=True)
    return {
        "source": source.text,
        "name": source.name,
        "shape": x.shape,
        "dtype": str(x.dtype),
        "chunks": _largest_chunk(x),
        "notes": source.notes,
        "backend": backend,
        **{name: _plain(summary.statistics[name]) for name in STATISTICS},
        "infinite": summary.infinite,
        "quantiles": {str(fraction): _plain(value) for fraction, value in quantiles},
        "histogram": {
            "counts": summary.counts.tolist(),
            "edges": [_plain(edge) for edge in summary.values(summary.edges)],
            "below": summary.below,
        },
        "reads": summary.reads,
        "seconds": summary.seconds,
        "compiling": summary.compiling,
        "figure": figure and str(figure),
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON: dates as text, durations as numbers of the dtype's unit."""
    if isinstance(value, np.datetime64):
        return str(value)
    value = value.view("i8") if isinstance(value, np.timedelta64) else value
    value = value.item() if isinstance(value, np.generic) else value
    # JSON has neither NaN nor infinities.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _size(x: da.Array) -> int:
    return int(x.size * x.dtype.itemsize)


def _largest_chunk(x: da.Array) -> tuple[int, ...]:
    return tuple(map(max, x.chunks))


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one value"
