"""Order and selection: ``python -m benchmarks.systems.order [--cpu]``, on a GPU or without one.

Quantiles, masks, the largest elements and distinct values of one large array, beside CuPy, PyTorch
and CUB, or NumPy and Dask. Every result is compared with the peer's, or with a sort, before its
time is recorded. On a GPU a time is that between two events: of the kernels and of the host's work
between them. ``python -m benchmarks.systems.order --write`` makes the figures of docs/order.md from
benchmarks/results/order/*.json.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .. import report
from ..contenders import find_nvcc
from . import collective, node

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "order"
PAGE = HERE.parent / "docs" / "order.md"

OURS, CUPY, TORCH, CUB = "dask_coop", "CuPy", "PyTorch", "CUB"
#: Without the cost of a call of Dask, which the peers do not have.
CHUNK = "dask_coop, the function of a chunk"

#: The most rows of a file of comparisons that a page shows.
MOST_ROWS = 10
NUMPY, DASK = "NumPy", "Dask"

Row = dict[str, Any]
Call = Callable[[], Any]

NINE = np.linspace(0.1, 0.9, 9)


class Gpu:
    """Times calls on the current GPU by events."""

    def __init__(self, samples: int) -> None:
        import cupy

        self.xp: Any = cupy
        self.samples: int = samples

    def row(self, work: str, by: str, call: Call, check: Callable[[Any], bool] | None) -> Row:
        """Return the median time of a call in ms, or the reason why it was not timed."""
        try:
            result = call()
            if check is not None and not check(result):
                raise ValueError("the result is wrong")
            del result
            times = []
            for _ in range(self.samples):
                begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
                begin.record()
                call()
                end.record()
                end.synchronize()
                times.append(float(self.xp.cuda.get_elapsed_time(begin, end)))
        except Exception as error:
            return {"work": work, "by": by, "note": f"{type(error).__name__}: {error}"[:200]}
        finally:
            self.free()
        return {"work": work, "by": by, "ms": statistics.median(times)}

    def free(self) -> None:
        """Free unused memory."""
        gc.collect()
        self.xp.get_default_memory_pool().free_all_blocks()
        try:
            import torch
        except ImportError:
            return
        torch.cuda.empty_cache()


def whole(x: Any) -> Any:
    """Return an array on the GPU as a Dask array in one chunk."""
    import dask.array as da

    return da.from_array(x, chunks=-1, name=False, asarray=False)


def quantiles(x: Any, q: Any) -> Any:
    """Return quantiles of a chunk, by the steps of tasks, on the host."""
    from dask_coop import chunks
    from dask_coop.algebra.digits import Asked, count_digits, descend, finish, first_digit
    from dask_coop.algebra.monoids import COUNTS
    from dask_coop.algebra.operation import bind
    from dask_coop.algebra.quantiles import Quantiles
    from dask_coop.graph import tasks

    op = bind(COUNTS, np.dtype("i8"), np.dtype("i8"), "quantile")
    asked = Quantiles(None if q is None else np.asarray(q))
    digits = first_digit(x.dtype, Asked(asked))
    rounds = count_digits(x.dtype, 2 * max(1, np.size(q)))
    for number in range(rounds):
        (table,) = tasks.count(x, op=op, grid=digits)
        table = chunks.asarray(table, "numpy")
        if number < rounds - 1:
            digits = descend(digits, table)
        if number < min(2, rounds - 2):
            x = tasks.collect(x, grid=digits)
    wanted, low, high = finish(digits, table)
    return asked.end(low, high, wanted.gamma, wanted.size)


def data(xp: Any, n: int) -> Iterator[tuple[str, Any]]:
    """Yield float32 arrays of several distributions with their names, one after the other."""
    rng = xp.random.default_rng(0)
    x = rng.random(n, dtype="f4")
    yield "uniform", x
    yield "normal", rng.standard_normal(n, dtype="f4")
    x[:] = 3
    yield "all equal", x
    x[n // 3] = 7
    yield "all but one equal", x
    x.view("u4")[:] = 0x3F800000 + rng.integers(0, 256, n, dtype="u4")
    yield "keys that share 3 of 4 bytes", x
    x[:] = xp.arange(n, dtype="f4")
    yield "sorted", x


def on_gpu(n: int, samples: int) -> Iterator[Row]:
    """Measure everything on one GPU, with arrays of `n` elements, or as the works say."""
    gpu = Gpu(samples)
    xp = gpu.xp
    try:
        import torch
    except ImportError:
        torch = None
    size = f"2^{n.bit_length() - 1}"
    for name, x in data(xp, n):
        for q, what in ((None, "median"), (NINE, "nine quantiles")):
            check = None
            if name in ("uniform", "normal"):
                ordered = xp.sort(x)
                at = np.quantile(np.arange(n, dtype="f8"), 0.5 if q is None else q)
                below = xp.asnumpy(ordered[xp.asarray(np.floor(at).astype("i8"))])
                above = xp.asnumpy(ordered[xp.asarray(np.ceil(at).astype("i8"))])
                del ordered
                gpu.free()

                check = partial(_between, below, above)
            work = f"{what} of {size} float32, {name}"
            yield gpu.row(work, OURS, partial(quantiles, x, q), check)
        if name == "uniform":
            if torch is not None:
                t = torch.as_tensor(x, device="cuda")
                yield gpu.row(f"median of {size} float32, uniform", TORCH, t.median, None)
                del t
            part = x[: n // 4]
            work = f"median of 2^{n.bit_length() - 3} float32, uniform"
            yield gpu.row(work, OURS, partial(quantiles, part, None), None)
            yield gpu.row(work, CUPY, partial(xp.median, part), None)
        gpu.free()
    del x
    wide = [xp.random.default_rng(1).random(n)]
    for q, what in ((None, "median"), (NINE, "nine quantiles")):
        work = f"{what} of {size} float64, uniform"
        yield gpu.row(work, OURS, partial(quantiles, wide[0], q), None)
    wide.clear()
    yield from lines(gpu, n // 1024, torch)
    yield from masks(gpu, n // 4, torch)
    yield from largest(gpu, n, torch)
    yield from distinct(gpu, n // 4, torch)


def _between(low: Any, high: Any, result: Any) -> bool:
    return bool(np.all((low <= result) & (result <= high)))


def _same(expected: Any, result: Any) -> bool:
    return bool((result == expected).all())


def _both(values: Any, counts: Any, result: Any) -> bool:
    return _same(values, result[0]) and _same(counts, result[1])


def lines(gpu: Gpu, count: int, torch: Any) -> Iterator[Row]:
    """Measure quantiles along an axis of 365."""
    import dask_coop as dc

    xp = gpu.xp
    for axis, shape in ((0, (365, count)), (1, (count, 365))):
        x = xp.random.default_rng(2).random(shape, dtype="f4")
        work = f"median along axis {axis} of {shape[0]} x {shape[1]} float32"
        lazy = dc.median(whole(x), axis=axis)
        expected = xp.median(x, axis=axis)
        yield gpu.row(
            work,
            OURS,
            partial(lazy.compute, scheduler="synchronous"),
            partial(_same, expected),
        )
        yield gpu.row(work, CUPY, partial(xp.median, x, axis=axis), None)
        if torch is not None:
            t = torch.as_tensor(x, device="cuda")
            yield gpu.row(work, TORCH, partial(t.median, dim=axis), None)
            del t
        del x


def masks(gpu: Gpu, n: int, torch: Any) -> Iterator[Row]:
    """Measure a mask that selects about half of the elements, and the indices of its true ones."""
    from dask_coop.chunks.cupy import select

    xp = gpu.xp
    rng = xp.random.default_rng(3)
    x, mask = rng.random(n, dtype="f4"), rng.random(n, dtype="f4") < 0.5
    size = f"2^{n.bit_length() - 1}"
    kept, where = f"x[mask], {size} float32, half kept", f"flatnonzero of {size} bool, half"
    wanted = x[mask]
    yield gpu.row(kept, OURS, lambda: select.compress(x, mask), partial(_same, wanted))
    yield gpu.row(kept, CUPY, lambda: x[mask], None)
    if torch is not None:
        t, m = torch.as_tensor(x, device="cuda"), torch.as_tensor(mask, device="cuda")
        yield gpu.row(kept, TORCH, lambda: torch.masked_select(t, m), None)
    yield by_cub(gpu, kept, "select_flagged", x, mask)
    wanted = xp.flatnonzero(mask)
    yield gpu.row(where, OURS, lambda: select.flatnonzero(mask), partial(_same, wanted))
    yield gpu.row(where, CUPY, lambda: xp.flatnonzero(mask), None)
    if torch is not None:
        yield gpu.row(where, TORCH, lambda: torch.nonzero(m), None)


def largest(gpu: Gpu, n: int, torch: Any) -> Iterator[Row]:
    """Measure the 1,000 largest elements."""
    import dask_coop as dc
    from dask_coop.chunks.cupy import topk

    xp = gpu.xp
    x = xp.random.default_rng(4).random(n, dtype="f4")
    work = f"topk(1000) of 2^{n.bit_length() - 1} float32"
    lazy = dc.topk(whole(x), 1000)
    wanted = xp.sort(x)[::-1][:1000].copy()
    gpu.free()
    yield gpu.row(
        work,
        OURS,
        partial(lazy.compute, scheduler="synchronous"),
        partial(_same, wanted),
    )
    chunk = partial(topk.largest, x.reshape(1, -1), 1000, False)
    yield gpu.row(work, CHUNK, chunk, lambda state: _same(wanted, state[0][0]))
    yield gpu.row(work, CUPY, lambda: xp.partition(x, n - 1000)[-1000:], None)
    if torch is not None:
        t = torch.as_tensor(x, device="cuda")
        yield gpu.row(work, TORCH, lambda: torch.topk(t, 1000), None)
        del t
    yield by_cub(gpu, work, "topk", x, None)


def distinct(gpu: Gpu, n: int, torch: Any) -> Iterator[Row]:
    """Measure distinct values with their counts, of a small range and of all integers."""
    import dask

    import dask_coop as dc
    from dask_coop.algebra.operation import Operation
    from dask_coop.chunks import distinct as values_of
    from dask_coop.chunks.cupy import unique

    xp = gpu.xp
    monoid = values_of.distinct(counts=True)
    for what, factor, share in (
        ("one after the other", 1, 0),
        ("far apart", 4000, 0),
        ("far apart, one of them half of all", 4000, 0.5),
    ):
        rng = xp.random.default_rng(5)
        x = rng.integers(0, 10**6, n, dtype="i4") * factor - 2 * 10**9
        x = x.astype("i4")
        x[rng.random(n, dtype="f4") < share] = 7
        work = f"unique with counts of 2^{n.bit_length() - 1} int32, 10^6 of them {what}"
        lazy = dc.unique(whole(x), return_counts=True)
        values, counts = xp.unique(x, return_counts=True)
        ours = partial(dask.compute, *lazy, scheduler="synchronous")
        yield gpu.row(work, OURS, ours, partial(_both, values, counts))
        op = Operation(monoid, x.dtype, x.dtype)
        chunk = partial(unique.distinct, op, monoid, x)
        yield gpu.row(work, CHUNK, chunk, partial(_both, values, counts))
        yield gpu.row(work, CUPY, partial(xp.unique, x, return_counts=True), None)
        if torch is not None:
            t = torch.as_tensor(x, device="cuda")
            yield gpu.row(work, TORCH, partial(torch.unique, t, return_counts=True), None)
            del t
        del x, values, counts


@cache
def cub() -> Any:
    """Return cub_order.cu as a library, or the reason why it cannot be compiled."""
    nvcc = find_nvcc()
    if nvcc is None:
        return "there is no nvcc"
    path = Path(tempfile.mkdtemp(prefix="dask_coop-cub-")) / "order.so"
    options = ["-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
    command = [nvcc, *options, "-o", str(path), str(HERE / "cub_order.cu")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    return made.stderr.strip()[-200:] if made.returncode else ctypes.CDLL(str(path))


def by_cub(gpu: Gpu, work: str, name: str, x: Any, flags: Any) -> Row:
    """Measure CUB, if nvcc is installed and headers have the function."""
    library = cub()
    if isinstance(library, str):
        return {"work": work, "by": CUB, "note": library}
    if name == "topk" and not library.has_topk():
        return {"work": work, "by": CUB, "note": "these headers have no DeviceTopK"}
    size, pointer, number = ctypes.c_size_t(), ctypes.c_void_p, ctypes.c_longlong
    out = gpu.xp.empty(x.size if flags is not None else 1000, x.dtype)
    found = gpu.xp.zeros(1, "i8")
    arguments: list[Any] = [pointer(x.data.ptr)]
    if flags is not None:
        arguments += [pointer(flags.data.ptr), pointer(out.data.ptr), pointer(found.data.ptr)]
        arguments += [number(x.size)]
    else:
        arguments += [pointer(out.data.ptr), number(x.size), number(1000)]
    function = getattr(library, name)
    if function(None, ctypes.byref(size), *arguments):
        return {"work": work, "by": CUB, "note": "CUB refused"}
    temp = gpu.xp.empty(max(1, size.value), "u1")

    def call() -> bool:
        return not function(pointer(temp.data.ptr), ctypes.byref(size), *arguments)

    return gpu.row(work, CUB, call, bool)


def together(gpus: int, chunks: int, samples: int) -> Iterator[Row]:
    """Measure the median of 16 GiB on several GPUs, from the call to the result."""
    import cupy
    import dask.array as da

    import dask_coop as dc

    size = (1 << 32) // chunks

    def make(block_id: Any) -> Any:
        return cupy.random.default_rng(block_id[0]).random(size, dtype="f4")

    meta = cupy.empty(0, "f4")
    work = f"median of 16 GiB float32 in {chunks} chunks on {gpus} GPUs"
    with dc.Node(range(gpus)) as each:
        x = da.map_blocks(make, chunks=((size,) * chunks,), dtype="f4", meta=meta).persist()
        yield calls(work, "dask_coop.Node", lambda: dc.median(x).compute(), samples)
        yield {"work": work, "by": "what the node says", "note": each.explain()[:400]}
        del x
    cupy.get_default_memory_pool().free_all_blocks()
    from dask_cuda import LocalCUDACluster
    from distributed import Client, wait

    with (
        LocalCUDACluster(CUDA_VISIBLE_DEVICES=list(range(gpus)), dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(gpus)
        x = da.map_blocks(make, chunks=((size,) * chunks,), dtype="f4", meta=meta).persist()
        wait(x)
        call = lambda: dc.median(x, engine="collective")  # noqa: E731
        yield calls(work, 'engine="collective"', call, samples)


def calls(work: str, by: str, call: Call, samples: int) -> Row:
    """Return the median time of a call by the host's clock, in ms."""
    try:
        found = float(call())
        if not abs(found - 0.5) < 1e-4:
            raise ValueError(f"the median is {found}")
        call()
        times = []
        for _ in range(samples):
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
    except Exception as error:
        return {"work": work, "by": by, "note": f"{type(error).__name__}: {error}"[:300]}
    return {"work": work, "by": by, "ms": statistics.median(times)}


def on_host(samples: int) -> Iterator[Row]:
    """Measure whole calls on NumPy chunks, and the memory that they take besides the chunks."""
    n = 10**8
    for call, by in ((_whole_ours, OURS), (_whole_numpys, NUMPY)):
        yield alone(f"quantile 0.3 of 10^8 float64 in 100 chunks of {8 * n // 10**8} MB", by, call)
    for call, by in ((_time_ours, OURS), (_time_dasks, DASK)):
        yield alone("median along time of 365 x 721 x 360 float32, chunks of 30 days", by, call)


def alone(work: str, by: str, call: Callable[[], dict[str, float]]) -> Row:
    """Measure in a separate process, whose memory is that of the call."""
    code = f"import json; from benchmarks.systems import order as o; m = o.{call.__name__}()"
    code += "; print(json.dumps(m))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if made.returncode:
        return {"work": work, "by": by, "note": made.stderr.strip()[-200:]}
    return {"work": work, "by": by, **json.loads(made.stdout.splitlines()[-1])}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _measured(call: Call, samples: int = 3) -> dict[str, float]:
    before, times = _peak(), []
    for _ in range(samples):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return {"ms": statistics.median(times), "bytes": _peak() - before}


def _series() -> Any:
    return np.random.default_rng(0).random(10**8)


def _whole_ours() -> dict[str, float]:
    import dask.array as da

    import dask_coop as dc

    array = _series()
    x = da.from_array(array, chunks=10**6, name=False)
    dc.quantile(x[: 10**7], 0.3).compute()
    return _measured(lambda: dc.quantile(x, 0.3).compute())


def _whole_numpys() -> dict[str, float]:
    array = _series()
    return _measured(lambda: np.quantile(array, 0.3))


def _time_ours() -> dict[str, float]:
    return _along_time("ours")


def _time_dasks() -> dict[str, float]:
    return _along_time("dask")


def _along_time(by: str) -> dict[str, float]:
    import dask.array as da

    import dask_coop as dc

    array = np.random.default_rng(1).random((365, 721, 360), dtype="f4")
    x = da.from_array(array, chunks=(30, 721, 360), name=False)
    lazy = dc.median(x, axis=0) if by == "ours" else da.median(x, axis=0)
    lazy[:10, :10].compute()
    return _measured(lazy.compute)


def facts(gpu: bool) -> dict[str, Any]:
    """Return the machine and the versions of everything."""
    import os

    from dask_coop.cli import info

    known = info.facts()
    versions = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": known["versions"],
        "cores": os.cpu_count(),
    }
    return versions | ({"gpu": next(iter(known["gpus"]), None)} if gpu else {})


def heading(path: Path, machine: dict[str, Any]) -> list[str]:
    """Return the lines above the results of a file: the machine, the date and the versions."""
    name = (machine.get("gpu") or {}).get("name") or f"{machine['cores']} cores, no GPU"
    return [f"### {name} ({path.stem})", f"{machine['date']}. {report.versions_of(machine)}."]


def compared(folder: Path) -> str:
    """Return ten rows of each result file in `folder`, ours beside the best peer, and a link."""
    blocks = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        times: dict[str, dict[str, float]] = {}
        for row in results["rows"]:
            if "ms" in row:
                times.setdefault(row["work"], {})[row["by"]] = row["ms"]
        lines = []
        for work, by in times.items():
            ours = by.get(OURS)
            by = {name: ms for name, ms in by.items() if OURS not in name}
            if ours is not None and by:
                peer = min(by, key=lambda name: by[name])
                lines.append(
                    [work, f"{ours:.2f}", f"{by[peer]:.2f}", peer, f"{by[peer] / ours:.1f}"]
                )
        head = ["work", f"{OURS}, ms", "best peer, ms", "peer", "peer / dask_coop"]
        blocks += heading(path, results["machine"])
        target = f"../benchmarks/results/{folder.name}/{path.name}"
        blocks.append(report.excerpt(head, lines, target))
    return "\n\n".join(blocks) or "No results are there yet."


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--power", type=int, default=30, help="arrays have 2**POWER elements")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/order.md anew")
    options = parser.parse_args()
    if not options.write:
        if options.cpu:
            rows, name = on_host(options.samples), "cpu"
        else:
            from cupy.cuda import runtime

            gpus = min(2, runtime.getDeviceCount())
            alone = on_gpu(1 << options.power, options.samples)
            rows, name = chain(alone, together(gpus, 32, options.samples)), "gpu"
        collective.keep(facts(not options.cpu), rows, options.results / f"{name}.json")
    if options.write or options.results == RESULTS:
        node.write(compared(RESULTS), PAGE)


if __name__ == "__main__":
    main()
