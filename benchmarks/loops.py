"""Timings of the loops over NumPy chunks of two trees of this repository, taken in turn.

``python benchmarks/loops.py OLD NEW [PART OF A CASE'S NAME]`` compiles missing loops, checks that
the results of both have the same bits, and prints the least and the median times, and their ratios,
on one thread. Cases are called as tasks call them: in lines, in few columns and in many. Each tree
runs in a process that reads commands from its standard input.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import product
from statistics import median
from typing import Any

#: The calls of a case in a row, the least seconds of each case, and the number of such rows.
_SECONDS, _ROUNDS = 0.01, 11

#: Shapes: lines in a row, short ones, and few, some and many side by side; and the axis along them.
_LAYOUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "line": ((1 << 18,), 0),
    "rows": ((2048, 96), 1),
    "few": ((20_000, 9), 0),
    "some": ((9_000, 20), 0),
    "many": ((100, 2500), 0),
}


def _cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    import numpy as np

    from dask_coop.algebra import monoids as rows
    from dask_coop.algebra.central_moments import moments_up_to
    from dask_coop.algebra.fills import fill, weighted_mean
    from dask_coop.algebra.operation import Operation, bind
    from dask_coop.algebra.scan_spec import ScanSpec
    from dask_coop.algebra.windows import Window
    from dask_coop.chunks.numpy import backend

    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(3, 1, shape) for name, (shape, _) in _LAYOUTS.items()}
    masks = {name: rng.random(shape) for name, (shape, _) in _LAYOUTS.items()}
    reduced = [rows.SUM, rows.PROD, rows.MEAN, rows.VAR, rows.COMPENSATED_SUM, rows.MIN, rows.MAX]
    reduced += [rows.MOMENTS, rows.SQUARES, rows.ANY, rows.LOGADDEXP, moments_up_to(4)]
    scanned = [rows.SUM, rows.COMPENSATED_SUM, rows.PROD, rows.MAX, rows.LOGADDEXP]
    series = {"ffill": fill(None), "ffill 3": fill(3), "ewm": weighted_mean(0.1, True, False)}
    series["ewm recursive"] = weighted_mean(0.1, False, False)
    statistics: Any = ("sum", "mean", "std", "min")
    for layout, dtype in product(_LAYOUTS, ("f4", "f8", "i4")):
        element, axis, mask = np.dtype(dtype), _LAYOUTS[layout][1], masks[layout]
        x, floats, name = arrays[layout].astype(dtype), dtype != "i4", f"{dtype} {layout}"
        gaps = np.where(mask < 0.1, np.nan, x).astype(dtype) if floats else x
        for row in reduced:
            if not floats and row in (rows.LOGADDEXP, rows.COMPENSATED_SUM):
                continue
            op = Operation(row, element, row.output(element))
            yield f"lift {row.name} {name}", partial(backend.lift, op, x, (axis,))
            whole = partial(backend.lift, op, x, (axis,), mask < 0.5)
            yield f"lift where {row.name} {name}", whole
            if floats and row not in (rows.MOMENTS, rows.ANY, rows.LOGADDEXP):
                op = Operation(row, element, row.output(element), True)
                yield f"lift skipna {row.name} {name}", partial(backend.lift, op, gaps, (axis,))
        for row in scanned:
            if not floats and row in (rows.LOGADDEXP, rows.COMPENSATED_SUM):
                continue
            op = bind(row, element, row.output(element), "scan", False)
            for way, heads in (("", None), ("exclusive ", None), ("heads ", mask < 0.02)):
                spec = ScanSpec(axis, exclusive=way == "exclusive ")
                call = partial(backend.scan_on, op, x, spec, None, heads)
                yield f"scan {way}{row.name} {name}", call
        for kind, row in series.items() if floats else ():
            op = Operation(row, element, row.output(element))
            yield f"scan {kind} {name}", partial(backend.scan_on, op, gaps, ScanSpec(axis))
            yield f"lift {kind} {name}", partial(backend.lift, op, gaps, (axis,))
        for statistic, length in product(statistics if floats else (), (5, 60)):
            window = Window(statistic, axis, length, length, 1)
            halo = np.take(x, range(length - 1), axis)
            yield f"move {statistic} {length} {name}", partial(backend.move, window, x, halo)


def _serve() -> None:
    cases = dict(_cases())
    print(json.dumps([*cases]), flush=True)
    for line in sys.stdin:
        name, times = json.loads(line)
        call, spent = cases[name], []
        if not times:
            begin = time.perf_counter()
            digest = sha256(pickle.dumps(call())).hexdigest()
            print(json.dumps([digest, time.perf_counter() - begin]), flush=True)
            continue
        for _ in range(times):
            begin = time.perf_counter()
            call()
            spent.append(time.perf_counter() - begin)
        print(json.dumps(spent), flush=True)


class _Tree:
    """A process that runs the cases of a tree."""

    def __init__(self, root: str) -> None:
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, os.path.abspath(__file__), "--serve"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment, cwd=root, text=True
        )
        self.cases = self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def call(self, name: str, times: int) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, times]) + "\n")
        self._process.stdin.flush()
        return self._read()


def main(old: str, new: str, only: str = "") -> None:
    """Print the times of two trees, and the number of cases that got slower by more than 3%."""
    trees, slower, compiling = (_Tree(old), _Tree(new)), 0, [0.0, 0.0]
    for name in (name for name in trees[0].cases if only in name):
        first = [tree.call(name, 0) for tree in trees]
        compiling = [so_far + one[1] for so_far, one in zip(compiling, first, strict=True)]
        times = max(1, min(50, int(_SECONDS / min(trees[0].call(name, 3)))))
        spent: list[list[float]] = [[], []]
        for number in range(_ROUNDS):
            for which in (0, 1) if number % 2 else (1, 0):
                spent[which] += trees[which].call(name, times)
        least, middle = [*map(min, spent)], [*map(median, spent)]
        ratio, bits = least[1] / least[0], first[0][0] == first[1][0]
        slower += ratio > 1.03
        print(
            f"{name:36} {least[0] * 1e6:9.1f} {least[1] * 1e6:9.1f} us, x {ratio:.3f}, median x "
            f"{middle[1] / middle[0]:.3f}{'' if bits else '  OTHER BITS'}"
            f"{'  SLOWER' if ratio > 1.03 else ''}",
            flush=True,
        )
    print(f"{slower} are slower; first calls took {compiling[0]:.1f} and {compiling[1]:.1f} s")


if __name__ == "__main__":
    _serve() if sys.argv[1:] == ["--serve"] else main(*sys.argv[1:])
