"""The benchmark: this library beside the others, on the same arrays, in one run and one process.

::

    cases.py        what is measured, the data, and when a result is right
    reduce.py  scan.py  histogram.py  transpose.py  matmul.py
                    one module a primitive: its cases, the contenders by name, the reference
    chunks.py  arrays.py  threads.py
                    the same without a GPU: one chunk on one thread; whole calls on Dask arrays, all
                    that is public beside dask.array; and a large one by more and more threads
    contenders.py   the libraries; cub.cu, compiled by nvcc
    timers.py       how a call is timed, on a GPU or on the host
    measure.py      one case: call, check, time
    report.py       results/*.json -> tables and plots, docs/performance.md
    systems/        clusters, `Node` and copies from the host, by themselves

``python -m dask_coop bench`` runs it from anywhere, ``python -m benchmarks.report`` in a checkout
writes the page anew. No time is written down of a call whose result was not found right.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from . import arrays, chunks, histogram, matmul, reduce, scan, threads, transpose
from .cases import QUICK, Primitive
from .measure import DeviceLostError, Row, floor, measure
from .timers import find_timer, machine_facts, times

PRIMITIVES: dict[str, Primitive] = {
    "reduce": reduce,
    "scan": scan,
    "histogram": histogram,
    "transpose": transpose,
    "matmul": matmul,
    "chunks": chunks,
    "arrays": arrays,
    "threads": threads,
}


def run(
    *,
    only: tuple[str, ...] = (),
    sizes: tuple[int, ...] = (),
    quick: bool = False,
    cpu: bool = False,
    whole: int | None = None,
    name: str | None = None,
    out: Path | None = None,
) -> list[Path]:
    """Measure, and write ``<out>/<name>.json``, the page and its plots.

    Parameters
    ----------
    only : tuple of str
        Names of `PRIMITIVES`; without it those about the GPU, or where there is none the others. A
        quick run without a GPU has all.
    sizes : tuple of int
        Elements of the one-dimensional arrays, ascending; those of the machine without it.
    quick : bool
        Tiny sizes, to see that everything works.
    cpu : bool
        Leave the GPU alone.
    whole : int, optional
        Elements of the array that more and more threads work on; without it as suits the machine.
    name : str, optional
        Of the results; that of the GPU without it, or the number of processors.
    out : pathlib.Path, optional
        A folder. Without it ``benchmarks/results`` of a checkout, but for `quick`, else
        ``bench-results``.

    Returns
    -------
    list of pathlib.Path
        What was written.

    Notes
    -----
    What a run that is interrupted has measured goes to ``bench-results``.
    """
    from . import report

    began, here = perf_counter(), find_timer(cpu)
    scale = QUICK if quick else here.scale
    scale = scale.of_sizes(sizes) if sizes else scale
    scale = replace(scale, whole=whole) if whole is not None else scale
    chosen = only or (tuple(PRIMITIVES) if quick and here.kind == "CPU" else here.primitives)
    nbytes = max(4 * scale.sizes[-1], 1 << 20)
    ceilings = {}
    for what, call in here.ceilings(nbytes).items():
        ceilings[what] = {"bytes": nbytes * (1 + (what == "copy")), **times(here, call, [()])}
    rows: list[Row] = []
    lost: BaseException | None = None
    try:
        for primitive in (PRIMITIVES[name] for name in chosen):
            for case in primitive.cases(scale):
                found = list(measure(here, case, primitive, floor(here, case, ceilings)))
                rows += found
                seconds = perf_counter() - began
                print(f"{seconds:5.1f} s {case}: {', '.join(map(_said, found))}", flush=True)
    except (DeviceLostError, KeyboardInterrupt) as error:
        lost = error
    machine = machine_facts(here) | {"seconds": round(perf_counter() - began)}
    committed = report.PAGE and not quick and not isinstance(lost, KeyboardInterrupt)
    out = out or (report.RESULTS if committed else Path("bench-results"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name or _slug(machine)}.json"
    path.write_text(_json({"machine": machine, "ceilings": ceilings}, rows))
    written = [path, *report.write(out)]
    if lost is not None:
        print(f"not finished; written: {path}", flush=True)
        raise lost
    return written


def _said(row: Row) -> str:
    return f"{row['contender']} " + (f"{row['ms']:.4g} ms" if "ms" in row else row["status"])


def _slug(machine: dict[str, Any]) -> str:
    gpu, cores = machine["gpu"], ["cpu", machine["processors"], "cores"]
    parts = [gpu["name"], "cuda", machine["versions"]["CUDA runtime"]] if gpu else cores
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(map(str, parts)).lower())


def _json(head: dict[str, Any], rows: list[Row]) -> str:
    """Return it as JSON with a line for each row."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n]\n}}\n'
