"""Moving windows: ``python -m benchmarks.systems.windows [--cpu]``, on a GPU or without one.

Means, maxima and standard deviations of windows along either axis of one large array, beside CuPy
and PyTorch, or bottleneck. Every result is compared with the peer's, except at the borders, before
its time is recorded. On a GPU a time is that between two events; on the host it is the least of
several, for which the two take turns. ``python -m benchmarks.systems.windows --write`` makes the
figures of docs/windows.md from benchmarks/results/windows/*.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import collective, node, order

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "windows"
PAGE = HERE.parent / "docs" / "windows.md"

OURS, CUPY, TORCH, COPY = "dask_coop", "CuPy", "PyTorch", "a copy"
BOTTLENECK = "bottleneck"

Row = dict[str, Any]

#: Windows of the GPU and of the host.
WINDOWS, HOST_WINDOWS = (30, 5, 200), (5, 30, 500)


def close(expected: Any, skip: int, axis: int, result: Any) -> bool:
    """Return whether results match a peer's, for windows within the array."""
    inner = (*(slice(None),) * axis, slice(skip, -skip or None))
    for begin in range(0, len(result), 1 << 12):
        part = slice(begin, begin + (1 << 12))
        if axis:
            a, b = result[part][inner], expected[part][inner]
        else:
            inside = slice(max(begin, skip), min(begin + (1 << 12), len(result) - skip))
            a, b = result[inside], expected[inside]
        if a.size and float(abs(a - b).max()) > 1e-4:
            return False
    return True


def on_gpu(n: int, samples: int) -> Iterator[Row]:
    """Measure windows over `n` float32 on one GPU, by the function of chunks."""
    from dask_coop import chunks
    from dask_coop.algebra.windows import Window

    gpu = order.Gpu(samples)
    xp = gpu.xp
    side = 1 << (n.bit_length() // 2)
    x = xp.random.default_rng(0).random((n // side, side), dtype="f4")
    size = f"2^{n.bit_length() - 1} float32"
    backend, y = chunks.backend_of(x), xp.empty_like(x)
    yield gpu.row(f"copy of {size}", COPY, partial(xp.copyto, y, x), None)
    del y
    for window in WINDOWS:
        for name in ("mean", "max", "std"):
            for axis in (0, 1):
                work = f"move_{name} of {size}, window {window}, axis {axis}"
                halo = x[:0] if axis == 0 else x[:, :0]
                ours = partial(backend.move, Window(name, axis, window, window), x, halo)
                peers = _of_peers(gpu, name, x, window, axis) if name != "std" else {}
                check = None
                if CUPY in peers:
                    check = partial(close, peers[CUPY](), window, axis)
                yield gpu.row(work, OURS, ours, check)
                del check
                gpu.free()
                for by, call in peers.items():
                    yield gpu.row(work, by, call, None)
                gpu.free()


def _of_peers(gpu: order.Gpu, name: str, x: Any, window: int, axis: int) -> dict[str, Any]:
    """Return other libraries' calls for a window."""
    from cupyx.scipy import ndimage

    calls: dict[str, Callable[[], Any]] = {}
    function = ndimage.uniform_filter1d if name == "mean" else ndimage.maximum_filter1d
    # Windows that end at their element.
    given = {"mode": "nearest", "origin": (window - 1) // 2}
    calls[CUPY] = lambda: function(x, window, axis, **given)
    try:
        import torch
    except ImportError:
        return calls
    t = torch.as_tensor(x, device="cuda")
    pool = torch.nn.functional.avg_pool2d if name == "mean" else torch.nn.functional.max_pool2d
    kernel = (window, 1) if axis == 0 else (1, window)
    calls[TORCH] = lambda: pool(t[None], kernel, stride=1)
    return calls


def on_host(samples: int) -> Iterator[Row]:
    """Measure NumPy chunks with one thread, beside bottleneck."""
    import bottleneck

    from dask_coop import chunks
    from dask_coop.algebra.windows import Window

    for dtype in ("f8", "f4"):
        x = np.random.default_rng(0).standard_normal((2000, 2000)).astype(dtype)
        backend = chunks.backend_of(x)
        for name in ("sum", "mean", "std", "max"):
            for window in HOST_WINDOWS:
                for axis in (0, 1):
                    spec = Window(name, axis, window, window)
                    halo = x[:0] if axis == 0 else x[:, :0]
                    theirs = partial(getattr(bottleneck, f"move_{name}"), x, window, axis=axis)
                    ours = partial(backend.move, spec, x, halo)
                    work = f"move_{name} of 4 10^6 {x.dtype.name}, window {window}, axis {axis}"
                    np.testing.assert_allclose(ours(), theirs(), rtol=2e-2, atol=2e-2)
                    times = least({OURS: ours, BOTTLENECK: theirs}, samples)
                    for by, ms in times.items():
                        yield {"work": work, "by": by, "ms": ms}


def least(calls: dict[str, Callable[[], Any]], samples: int) -> dict[str, float]:
    """Return the least time in ms of each of several calls, which take turns."""
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(samples):
        for by, call in calls.items():
            begin = time.perf_counter()
            call()
            times[by] = min(times[by], 1e3 * (time.perf_counter() - begin))
    return times


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--power", type=int, default=30, help="arrays have 2**POWER elements")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/windows.md anew")
    options = parser.parse_args()
    if not options.write:
        host = options.cpu
        rows = on_host(options.samples) if host else on_gpu(1 << options.power, options.samples)
        path = options.results / ("cpu.json" if host else "gpu.json")
        collective.keep(order.facts(not host), rows, path)
    if options.write or options.results == RESULTS:
        node.write(order.compared(RESULTS), PAGE)


if __name__ == "__main__":
    main()
