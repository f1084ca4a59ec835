"""Time the first calls of new processes on a new machine, whose caches are empty: a table.

``python -m benchmarks.systems.first`` on NumPy chunks, ``--gpu`` on CuPy chunks. With ``--again``
each call is made in a second process, which finds what the first has kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

#: Calls of public functions: `x` is an array of two chunks, `x0` the same with a chunk of rows.
CALLS = {
    "sum": "dc.sum(x)",
    "sum, axis 0": "dc.sum(x, axis=0)",
    "mean": "dc.mean(x)",
    "nanmean": "dc.nanmean(x)",
    "std": "dc.std(x)",
    "min": "dc.min(x)",
    "argmax": "dc.argmax(x)",
    "describe": "dc.describe(x)",
    "histogram": "dc.histogram(x, 100, (0, 1))[0]",
    "cumsum, axis 0": "dc.cumsum(x, axis=0)",
    "cumsum, axis 1": "dc.cumsum(x, axis=1)",
    "quantile": "dc.quantile(x, [0.1, 0.5])",
    "median, axis 0": "dc.median(x, axis=0)",
    "groupby sum": "dc.groupby_reduce(x, labels, func='sum')[0]",
    "groupby nanmean": "dc.groupby_reduce(x, labels, func='nanmean')[0]",
    "groupby var": "dc.groupby_reduce(x, labels, func='var')[0]",
    "topk": "dc.topk(x, 5)",
    "unique": "dc.unique((x.ravel() * 100_000).astype('i4'))",
    "move_mean": "dc.move_mean(x, 30, axis=0)",
    "move_max": "dc.move_max(x, 30, axis=0)",
    "ffill": "dc.ffill(x, axis=0)",
}

#: Makes a call twice; prints seconds as JSON, and the templates of the programs that it compiled.
PROCESS = r"""
import json, sys, time
from time import perf_counter as now
call, dtype, gpu = sys.argv[1], sys.argv[2], sys.argv[3] == "gpu"
times = [now()]
import dask, dask.array as da, numpy as np
times.append(now())
import dask_coop as dc
from dask_coop.compiled.waits import WAITS
WAITS.tells = False
times.append(now())
programs = []
if gpu:
    import cupy
    times.append(now())
    cupy.cuda.runtime.free(0)
    times.append(now())
    import dask_coop.chunks.cupy.backend
    from dask_coop.cuda import compiler, launch
    compile_program = compiler.compile_program
    def spied(source, arch):
        programs.append(launch._template(source))
        return compile_program(source, arch)
    compiler.compile_program = spied
    times.append(now())
a = np.random.default_rng(0).random((1024, 1024), dtype)
if gpu:
    a = cupy.asarray(a)
x = da.from_array(a, chunks=(512, 1024), name=False, asarray=False)
labels = np.arange(1024) % 12
begin, compiled = now(), WAITS.seconds()
lazy = eval(call)
dask.compute(lazy, scheduler="synchronous")
if gpu:
    cupy.cuda.runtime.deviceSynchronize()
first, compiled = now() - begin, WAITS.seconds() - compiled
begin = now()
dask.compute(eval(call), scheduler="synchronous")
if gpu:
    cupy.cuda.runtime.deviceSynchronize()
again = now() - begin
steps = [after - before for before, after in zip(times, times[1:])]
print(json.dumps([steps, first, compiled, again, programs]))
"""


def measure(call: str, dtype: str, gpu: bool, folder: str) -> Any:
    """Return what a new process prints, or None with its error on stderr."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": os.path.join(folder, "loops"),
        "DASK_COOP_CACHE": os.path.join(folder, "kernels"),
        "CUPY_CACHE_DIR": os.path.join(folder, "cupy"),
    }
    command = [sys.executable, "-c", PROCESS, call, dtype, "gpu" if gpu else "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-1000:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="CuPy chunks")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="", help="some of the calls, with ; between")
    parser.add_argument("--again", action="store_true", help="also in a second process")
    options = parser.parse_args()
    print("| call | first, s | of it compiling, s | again, s |", end="")
    print(" second process, s |" if options.again else "")
    print("|---|---|---|---|" + "---|" * options.again)
    steps: list[float] = []
    for name in options.only.split(";") if options.only else CALLS:
        with TemporaryDirectory() as folder:
            times = [
                measure(CALLS[name], options.dtype, options.gpu, folder)
                for _ in range(1 + options.again)
            ]
        if None in times:
            print(f"| {name} | failed |")
            continue
        steps, first, compiled, again, programs = times[0]
        row = f"| {name} | {first:.2f} | {compiled:.2f} | {again:.4f} |"
        row += f" {times[1][1]:.2f} |" if options.again else ""
        print(row + (f" compiled: {', '.join(sorted(programs))}" if programs else ""), flush=True)
    names = "Dask and NumPy", "dask_coop", "CuPy", "context", "kernels' modules"
    said = (f"{name} {step:.2f} s" for name, step in zip(names, steps, strict=False))
    print(f"Before the first call: {', '.join(said)}")


if __name__ == "__main__":
    main()
