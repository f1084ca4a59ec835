"""Benchmarks: this library beside others, on the same arrays, in one run and one process.

::

    cases.py        the cases, their data, and the check of results
    reduce.py  scan.py  histogram.py  transpose.py  matmul.py
                    one module a primitive: its cases, the contenders by name, the reference
    chunks.py  arrays.py  threads.py
                    the same without a GPU: one chunk on one thread; whole calls on Dask arrays, all
                    public functions beside dask.array; and a large array by more and more threads
    contenders.py   the libraries; cub.cu, compiled by nvcc
    timers.py       timing of a call, on a GPU or on the host
    measure.py      one case: call, check, time
    report.py       results/*.json -> tables and plots, docs/performance.md
    systems/        clusters, `Node`, and copies from the host, each by itself

``python -m dask_coop bench`` runs it from anywhere; ``python -m benchmarks.report`` in a checkout
writes the page anew. A time is recorded only if the call's result is right.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from dask_coop.compiled.waits import WAITS, compiled_apart

from . import arrays, chunks, histogram, matmul, reduce, scan, threads, transpose
from .cases import QUICK, Primitive
from .measure import DeviceLostError, Row, floor, measure
from .timers import QUICK_SAMPLES, find_timer, machine_facts, times

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
        Names of `PRIMITIVES`. By default those for the GPU, or for the host on a machine without
        a GPU; a quick run without a GPU has all.
    sizes : tuple of int
        Elements of the one-dimensional arrays, ascending; by default those for the machine.
    quick : bool
        Use tiny sizes, to check that everything works.
    cpu : bool
        Do not use the GPU.
    whole : int, optional
        Elements of the array that more and more threads work on; by default as suits the machine.
    name : str, optional
        Name of the results; by default the GPU's, or the number of processors.
    out : pathlib.Path, optional
        A folder. By default ``benchmarks/results`` of a checkout, except for `quick`; otherwise
        ``bench-results``.

    Returns
    -------
    list of pathlib.Path
        The files that it has written.

    Notes
    -----
    An interrupted run writes its measurements to ``bench-results``.
    """
    from . import report

    began, here = perf_counter(), find_timer(cpu)
    scale = QUICK if quick else here.scale
    here.samples = QUICK_SAMPLES if quick else here.samples
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
                compiled = WAITS.seconds()
                found = list(measure(here, case, primitive, floor(here, case, ceilings)))
                rows += found
                seconds = perf_counter() - began
                apart = compiled_apart(WAITS.seconds() - compiled)
                said = ", ".join(map(_said, found))
                print(f"{seconds:5.1f} s {case}: {said}{apart}", flush=True)
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
    """Return the results as JSON, with a line for each row."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n]\n}}\n'
