"""The command line: ``dask-coop``, or ``python -m dask_coop``: describe, run, info, warm, bench.

What the user can put right ends in one line on stderr and exit status 2; anything else is a bug and
keeps its traceback.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from dask.utils import format_bytes

from dask_coop import __version__
from dask_coop.cli import info, run
from dask_coop.cli.readable import readable
from dask_coop.cli.readers import Chunks, Source, open_source
from dask_coop.cli.summaries import Summary, summarize
from dask_coop.errors import UserError

MOST_BINS = 2**24
OPTIONAL = {
    "h5py": "h5py",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "skimage": "scikit-image",
    "zarr": "zarr",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process, if not given.

    Returns
    -------
    int
        The exit status: 0, 2 for what the user can put right, 130 after Ctrl-C.
    """
    parser = _parser()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        given = parser.parse_args(words)
        if given.run is None:
            parser.print_help()
        elif given.run is _run:
            run.require(given.target, given.module)
            # argparse takes a "--" behind the script for its own.
            if words[-len(given.arguments) - 1] == "--":
                given.arguments.insert(0, "--")
        else:
            given.run(given)
    except UserError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        message = (
            f"the package {OPTIONAL[error.name]} is not installed; run `pip install dask-coop[cli]`"
        )
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    else:
        # What a script raises is its own, with its traceback.
        if given.run is _run:
            _run(given)
        return 0
    print("dask_coop: error:", " ".join(message.split()), file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        # As it was typed.
        prog="dask-coop" if Path(sys.argv[0]).stem == "dask-coop" else "python -m dask_coop",
        description="Histograms and statistics of arrays of any size, on GPUs or without.",
    )
    parser.add_argument("--version", action="version", version=f"dask_coop {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands")

    describe = commands.add_parser(
        "describe",
        help="statistics and the histogram of all values of an array",
        description="Prints statistics of all values, and writes their histogram as a PNG.",
    )
    describe.set_defaults(run=_describe)
    describe.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a .npy, .zarr, .h5, .hdf5, .nc, .png, .jpg or .tif file, or skimage:NAME for a "
        "picture that comes with scikit-image",
    )
    describe.add_argument(
        "--bins", type=_bins, default=256, metavar="N", help="bins of the histogram (256)"
    )
    describe.add_argument(
        "--range",
        type=_limit,
        nargs=2,
        metavar=("LO", "HI"),
        help="outer edges of the histogram, numbers or dates (least and greatest value)",
    )
    describe.add_argument(
        "--chunks",
        type=_chunks,
        default="auto",
        metavar="C",
        help="the chunks' shape: 'auto', a number for all axes, or one for each, as 512,512,3",
    )
    describe.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for the PNGs (this one)"
    )
    describe.add_argument(
        "--dataset", metavar="NAME", help="which array of an HDF5 or netCDF file or Zarr group"
    )
    describe.add_argument(
        "--cluster",
        action="store_true",
        help="run on a cluster of processes, one for each GPU or CPU",
    )
    describe.add_argument("--cpu", action="store_true", help="leave GPUs alone")

    script = commands.add_parser(
        "run",
        help="a script whose dask.array, NumPy and xarray calls this library serves",
        description="Runs a script as Python does, with dask_coop installed in the place of the "
        "functions of dask.array, xarray and flox that it serves; the script stays as it is.",
    )
    script.set_defaults(run=_run)
    script.add_argument(
        "--chunks",
        choices=("numpy", "cupy"),
        default="numpy",
        help="cupy: work on GPUs, with chunks that were made for NumPy (numpy)",
    )
    script.add_argument(
        "--report", action="store_true", help="print at the end what was served by what, and why"
    )
    script.add_argument("-m", dest="module", action="store_true", help="run a module by its name")
    script.add_argument("target", metavar="SCRIPT", help="a script, or with -m a module")
    script.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script"
    )

    info = commands.add_parser(
        "info",
        help="what this machine offers",
        description="Prints the GPUs of this machine, the links between them, and versions.",
    )
    info.set_defaults(run=_info)
    info.add_argument("--json", action="store_true", help="the same as JSON")

    warm = commands.add_parser(
        "warm",
        help="compile kernels and loops ahead",
        description="Compiles the kernels that public functions launch, and where there is Numba "
        "the loops over NumPy chunks, so that no call has to wait for a compiler, into the folders "
        "that `info` names.",
    )
    warm.set_defaults(run=_warm)
    warm.add_argument(
        "--only",
        type=_names,
        default=(),
        metavar="A,B...",
        help="some of reductions, scans, histograms, products (all)",
    )
    warm.add_argument(
        "--dtypes",
        type=_names,
        default=(),
        metavar="A,B...",
        help="dtypes of the data (float32,float64,int32,int64,uint8; of loops the three wide ones)",
    )
    warm.add_argument(
        "--arch",
        type=_names,
        default=(),
        metavar="A,B...",
        help="architectures, such as sm_90, for kernels and no loops (those of the GPUs here)",
    )

    bench = commands.add_parser(
        "bench",
        help="time the kernels beside other libraries",
        description="Times the kernels beside CUB, CuPy and PyTorch, or without a GPU the NumPy "
        "chunks beside NumPy, Dask, bottleneck, numbagg, boost-histogram and fast-histogram; "
        "writes all samples, a page and plots.",
    )
    bench.set_defaults(run=_bench)
    bench.add_argument(
        "--only",
        type=_names,
        default=(),
        metavar="NAMES",
        help="some of reduce,scan,histogram,transpose,matmul (all with a GPU), "
        "chunks,arrays,threads (all without)",
    )
    bench.add_argument(
        "--sizes",
        type=_sizes,
        default=(),
        metavar="N,N...",
        help="sizes as powers of two (16,18,20,22,24,26,28,30; without a GPU up to 24)",
    )
    bench.add_argument(
        "--whole",
        type=_size,
        metavar="N",
        help="elements of the array that all threads work on, as a power of two (30 with 16 "
        "processors and more, else 26)",
    )
    bench.add_argument("--quick", action="store_true", help="tiny sizes: does everything work?")
    bench.add_argument("--cpu", action="store_true", help="leave the GPU alone")
    bench.add_argument("--name", help="of the results (that of the GPU)")
    bench.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (benchmarks/results in a checkout; for --quick and elsewhere "
        "./bench-results)",
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


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
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 'auto' nor whole numbers above zero with commas between"
        )
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _sizes(text: str) -> tuple[int, ...]:
    powers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(8 <= power <= 40 for power in powers):
        raise argparse.ArgumentTypeError(f"{text!r} is not whole numbers from 8 to 40 with commas")
    return tuple(1 << power for power in sorted(powers))


def _size(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 8 to 40")
    return _sizes(text)[0]


def _bench(given: argparse.Namespace) -> None:
    benchmarks = _benchmarks()
    if unknown := set(given.only) - set(benchmarks.PRIMITIVES):
        known = ", ".join(benchmarks.PRIMITIVES)
        raise UserError(f"--only {','.join(sorted(unknown))}: choose among {known}")
    if given.out is not None:
        _require_writable(given.out)
    options = "only", "sizes", "quick", "cpu", "whole", "name", "out"
    for path in benchmarks.run(**{key: getattr(given, key) for key in options}):
        print(f"written: {path}")


def _benchmarks() -> Any:
    """Import the benchmarks: from the installed package, else from beside it."""
    package = Path(__file__).resolve().parents[1]
    paths = [folder / "benchmarks" / "__init__.py" for folder in (package, package.parent)]
    for path in paths:
        if path.is_file():
            spec = spec_from_file_location("dask_coop.benchmarks", path)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[spec.name] = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise FileNotFoundError(
        f"the benchmarks are neither in {paths[0].parent} nor in {paths[1].parent}; "
        "install the package again"
    )


def _run(given: argparse.Namespace) -> None:
    how = {"module": given.module, "chunks": given.chunks, "tell": given.report}
    run.run(given.target, given.arguments, **how)


def _info(given: argparse.Namespace) -> None:
    facts = info.facts()
    print(json.dumps(facts, indent=2) if given.json else info.as_text(facts))


def _warm(given: argparse.Namespace) -> None:
    from dask_coop.cli import warm

    for line in warm.run(given.only, given.dtypes, given.arch):
        print(line, flush=True)


def _describe(given: argparse.Namespace) -> None:
    # All that can be found wrong before the work starts is found here.
    if given.range is not None:
        low, high = given.range
        alike = isinstance(low, float) == isinstance(high, float)
        if not (alike and np.isfinite(low) and np.isfinite(high) and low < high):
            shown = " ".join(f"{x:g}" if isinstance(x, float) else readable(x) for x in given.range)
            raise UserError(
                f"--range {shown}: give two finite numbers, or two dates, the lesser first"
            )
    from dask_coop.cli import backends, figures

    sources = [open_source(text, given.dataset, given.chunks) for text in given.sources]
    _require_writable(given.out)
    figure_paths = _figure_paths(sources, given.out)

    with backends.start(given.cluster, given.cpu) as runtime:
        for text, source, path in zip(given.sources, sources, figure_paths, strict=True):
            _print_source(text, source, runtime.name)
            try:
                x = runtime.move(source.array)
                summary = summarize(x, given.bins, given.range, runtime.compute)
            except UserError as error:
                raise UserError(f"{text}: {error}") from error
            except OSError as error:
                raise UserError(f"{text}: cannot read all of it: {error}") from error
            _print_summary(source, summary)
            subtitle = f"{_shape(x.shape)} {x.dtype}: {summary.inside:,} values in bins"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                figures.save_summary(path, source.name, subtitle, summary)
            except OSError as error:
                raise UserError(f"--out {given.out}: cannot write {path}: {error}") from error
            print(f"figure: {path}\n", flush=True)


def _require_writable(folder: Path) -> None:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"--out {folder}: {existing} is not a folder; name another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"--out {folder}: {existing} is not writable; name another folder")


def _figure_paths(sources: list[Source], folder: Path) -> list[Path]:
    """Return a file for each source, none of which is another's or a source."""
    taken = {source.path.resolve() for source in sources}
    paths = []
    for source in sources:
        stem = re.sub(r"[^\w.-]+", "-", source.stem)
        path, number = folder / f"{stem}-histogram.png", 1
        while path.resolve() in taken:
            number += 1
            path = folder / f"{stem}-histogram-{number}.png"
        taken.add(path.resolve())
        paths.append(path)
    return paths


def _print_source(text: str, source: Source, backend: str) -> None:
    x = source.array
    print(f"source: {text}" + (f" ({source.name})" if source.name not in text else ""))
    print(f"shape: {_shape(x.shape)} ({format_bytes(x.size * x.dtype.itemsize)})")
    print(f"dtype: {x.dtype}")
    for note in source.notes:
        print(note)
    largest = tuple(map(max, x.chunks))
    print(f"chunks: {math.prod(x.numblocks)} of {_shape(largest)}")
    print(f"backend: {backend}", flush=True)


def _print_summary(source: Source, summary: Summary) -> None:
    rows = summary.rows()
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"  {name:<{width}}  {readable(value)}")
    share = summary.counts.max() / summary.inside
    if (
        share > 0.5
        and len(summary.counts) > 2
        and summary.statistics["min"] < summary.statistics["max"]
    ):
        print(f"note: one bin holds {share:.1%} of the values; --range LO HI would spread them")
    size = source.array.size * source.array.dtype.itemsize
    seconds = summary.seconds
    reads = "1 read" if summary.reads == 1 else f"{summary.reads} reads"
    rate = summary.reads * size / seconds / 1e9
    print(f"time: {seconds:.2f} s for {reads} of {format_bytes(size)}, {rate:.3g} GB/s")


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one value"
