"""Runs a short list of cases under every tool of compute-sanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def cases() -> None:
    """Launch every kind of kernel once, on small and odd sizes."""
    import cupy
    import numpy as np

    from dask_coop import monoids
    from dask_coop.bins import find_bins
    from dask_coop.chunks import cuda

    f4 = np.dtype("f4")
    counts = monoids.bind(monoids.COUNTS, np.dtype("i8"), np.dtype("i8"), "cases")
    for shape in ((5,), (100_003,), (300, 257), (7, 5000), (5, 700, 9)):
        x = cupy.asarray(np.random.default_rng(0).random(shape, dtype="f4"))
        for axis in range(x.ndim):
            for monoid in (monoids.SUM, monoids.MINMAX, monoids.MOMENTS):
                cuda.lift(monoids.bind(monoid, f4, f4, "cases"), x, (axis,))
            cuda.scan(monoids.bind(monoids.SUM, f4, f4, "cases"), x, axis, None)
        for n in (10, 60_000):
            cuda.histogram(counts, x, find_bins(n, (0, 1), f4), None)
    cupy.cuda.runtime.deviceSynchronize()


def main() -> int:
    """Run the cases under every tool; return the worst exit status."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise SystemExit("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    worst = 0
    for tool in TOOLS:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "1"]
        result = subprocess.run([*command, sys.executable, __file__, "--cases"], check=False)
        print(f"{tool}: {'clean' if result.returncode == 0 else 'found something'}", flush=True)
        worst = max(worst, result.returncode)
    return worst


if __name__ == "__main__":
    if sys.argv[1:] == ["--cases"]:
        cases()
    else:
        raise SystemExit(main())
