"""Parse and run the commands of ``dask-coop``, or ``python -m dask_coop``.

An error that the user can correct ends in one line on stderr and exit status 2; any other error is
a bug and keeps its traceback.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

from dask_coop import __version__
from dask_coop.cli import info, run
from dask_coop.cli.describe import command as describe
from dask_coop.cli.output import finish, say
from dask_coop.cuda import archive
from dask_coop.errors import UserError, pip_install

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
        By default those of the process.

    Returns
    -------
    int
        The exit status: 0, 2 for an error that the user can correct, 130 after Ctrl-C.
    """
    parser = _parser()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options, unknown = parser.parse_known_args(words)
        if options.run is _worker:
            options.arguments = unknown
        elif unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        if options.run is None:
            parser.print_help()
            finish()
        elif options.run is _run:
            run.require(options.target, options.module)
            # argparse drops a "--" behind the script.
            if words[-len(options.arguments) - 1] == "--":
                options.arguments.insert(0, "--")
        else:
            options.run(options)
    except UserError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        message = f"the package {OPTIONAL[error.name]} is not installed; run `{pip_install('cli')}`"
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except SystemExit:
        # After --help or --version.
        finish()
        raise
    else:
        # A script runs outside of `try`, so that its exceptions keep their traceback.
        if options.run is _run:
            _run(options)
        return 0
    print("dask_coop: error:", " ".join(message.split()), file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        # The name that the user typed.
        prog="dask-coop" if Path(sys.argv[0]).stem == "dask-coop" else "python -m dask_coop",
        description="Histograms and statistics of arrays of any size, on GPUs or without.",
    )
    parser.add_argument("--version", action="version", version=f"dask_coop {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands")

    describe.add_to(commands)

    command = commands.add_parser(
        "run",
        help="run a script with dask_coop accelerating its Dask, NumPy and xarray calls",
        description="Runs a script as Python does. dask_coop replaces functions of Dask, NumPy, "
        "xarray, flox and xhistogram meanwhile; the script needs no change.",
    )
    command.set_defaults(run=_run)
    command.add_argument(
        "--chunks",
        choices=("numpy", "cupy"),
        default="numpy",
        help="cupy: move the chunks to GPUs and work there (default: numpy)",
    )
    command.add_argument(
        "--report", action="store_true", help="print which calls dask_coop ran, at the end"
    )
    command.add_argument(
        "-m", dest="module", action="store_true", help="run a module, as python -m does"
    )
    command.add_argument(
        "target", metavar="SCRIPT", help="a script, or with -m the name of a module"
    )
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script"
    )

    command = commands.add_parser(
        "worker",
        help="start one worker of a cluster, with all GPUs of this machine",
        usage="%(prog)s [--gpus N,N...] SCHEDULER [options of `dask worker`]",
        description="Starts one worker process that uses all GPUs of this machine: it works on "
        "each chunk on the GPU that holds it, and runs a collective as one launch on all GPUs. "
        "Other options are passed to `dask worker`, such as --scheduler-file, --interface, --name, "
        "--nthreads (default: the number of GPUs), --memory-limit (default: all memory) and "
        "--no-nanny.",
        allow_abbrev=False,
    )
    command.set_defaults(run=_worker)
    command.add_argument(
        "--gpus",
        type=_ordinals,
        metavar="N,N...",
        help="use only these of the GPUs that CUDA_VISIBLE_DEVICES allows, by the numbers of "
        "`info` (default: all)",
    )

    command = commands.add_parser(
        "info",
        help="print GPUs, versions, settings, and what slows this machine down",
        description="Prints the GPUs of this machine, the links between them, versions, folders of "
        "compiled code, settings, and what slows this machine down.",
    )
    command.set_defaults(run=_info)
    command.add_argument("--json", action="store_true", help="print JSON")

    command = commands.add_parser(
        "warm",
        help="compile kernels and loops ahead of their first use",
        description="Compiles the kernels of GPUs and, with Numba, the loops over NumPy chunks, "
        "into the folders that `info` names, so that no call waits for a compiler.",
    )
    command.set_defaults(run=_warm)
    command.add_argument(
        "--only",
        type=_names,
        default=(),
        metavar="A,B...",
        help="some of reductions, scans, histograms, products (default: all)",
    )
    command.add_argument(
        "--dtypes",
        type=_names,
        default=(),
        metavar="A,B...",
        help="dtypes of the data (default: float32,float64,int32,int64,uint8; for loops "
        "float64,int64,float32)",
    )
    command.add_argument(
        "--arch",
        type=_names,
        default=(),
        metavar="A,B...",
        help="compile only kernels, for these architectures, such as sm_90 (default: those of the "
        "GPUs here)",
    )
    command.add_argument(
        "--archive",
        type=Path,
        nargs="?",
        const=archive.file(),
        metavar="FILE",
        help="compile the kernels of common statistics of float32 and float64 into a file, for "
        "sm_80, sm_90 and sm_100 (default: the file that wheels contain)",
    )

    command = commands.add_parser(
        "bench",
        help="compare the speed with other libraries",
        description="With a GPU, compares the speed of kernels with CUB, CuPy and PyTorch; without "
        "one, that of NumPy chunks with NumPy, Dask, bottleneck, numbagg, boost-histogram and "
        "fast-histogram. Writes all samples, a page and plots.",
    )
    command.set_defaults(run=_bench)
    command.add_argument(
        "--only",
        type=_names,
        default=(),
        metavar="NAMES",
        help="with a GPU, some of reduce,scan,histogram,transpose,matmul; without one, some of "
        "chunks,arrays,threads (default: all)",
    )
    command.add_argument(
        "--sizes",
        type=_sizes,
        default=(),
        metavar="N,N...",
        help="sizes as powers of two (default: 16,18,20,22,24,26,28,30; without a GPU up to 24)",
    )
    command.add_argument(
        "--whole",
        type=_size,
        metavar="N",
        help="elements of the array that all threads work on, as a power of two (default: 30 "
        "with 16 processors or more, else 26)",
    )
    command.add_argument(
        "--quick", action="store_true", help="only test that it works, on tiny arrays"
    )
    command.add_argument("--cpu", action="store_true", help="use no GPU")
    command.add_argument("--name", help="name of the results (default: that of the GPU)")
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (default: benchmarks/results in a checkout; elsewhere, and "
        "with --quick, ./bench-results)",
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _ordinals(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers) or len({*numbers}) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not different whole numbers with commas")
    return tuple(map(int, numbers))


def _sizes(text: str) -> tuple[int, ...]:
    powers = [int(number) if number.isdecimal() else 0 for number in text.split(",")]
    if not all(8 <= power <= 40 for power in powers):
        raise argparse.ArgumentTypeError(f"{text!r} is not whole numbers from 8 to 40 with commas")
    return tuple(1 << power for power in sorted(powers))


def _size(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 8 to 40")
    return _sizes(text)[0]


def _bench(options: argparse.Namespace) -> None:
    benchmarks = _benchmarks()
    if unknown := set(options.only) - set(benchmarks.PRIMITIVES):
        known = ", ".join(benchmarks.PRIMITIVES)
        raise UserError(f"--only {','.join(sorted(unknown))}: choose among {known}")
    if options.out is not None:
        describe.require_writable(options.out)
    names = "only", "sizes", "quick", "cpu", "whole", "name", "out"
    for path in benchmarks.run(**{name: getattr(options, name) for name in names}):
        say(f"written: {path}")


def _benchmarks() -> Any:
    """Import the benchmarks, from inside the package or else from the folder beside it."""
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


def _run(options: argparse.Namespace) -> None:
    run.run(
        options.target,
        options.arguments,
        module=options.module,
        chunks=options.chunks,
        with_report=options.report,
    )


def _worker(options: argparse.Namespace) -> None:
    from dask_coop.cli import worker

    worker.run(options.gpus, options.arguments)


def _info(options: argparse.Namespace) -> None:
    facts = info.facts()
    say(json.dumps(facts, indent=2) if options.json else info.as_text(facts))


def _warm(options: argparse.Namespace) -> None:
    from dask_coop.cli import warm

    if options.archive is None:
        lines = warm.run(options.only, options.dtypes, options.arch)
    elif options.only:
        raise UserError("--archive takes no --only: an archive has programs of all groups")
    else:
        lines = warm.write_archive(options.archive, options.dtypes, options.arch)
    for line in lines:
        say(line)
