"""Time calls on one GPU: ``python -m benchmarks.systems.one_gpu``.

The same 1 GiB of float32 lies on the GPU in 1, 4, 64 and 1,024 chunks. A sample is the time from
the call of a function to its result in memory with the GPU synchronised, Dask included; a
time is the lower quartile of the samples. Peers are CuPy and PyTorch, on the whole array without
chunks, and dask.array on four chunks. Results are compared with a peer's before they are timed.

``--write`` makes the figures of docs/one-gpu.md from benchmarks/results/one_gpu/*.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np

from .. import report
from . import node, order

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results" / "one_gpu"
PAGE = HERE.parent / "docs" / "one-gpu.md"

#: The columns of the array, the numbers of its chunks, and those that Dask's own functions get.
COLUMNS, CHUNKS, PEER_CHUNKS = 4096, (1, 4, 64, 1024), 4
SAMPLES, THREADS = 8, 4
NODE, THREADED, DASK, CUPY, TORCH = "Node", "threads", "dask.array", "CuPy", "PyTorch"

Row = dict[str, Any]
Call = Callable[..., Any]


class Work(NamedTuple):
    """A call, and the same by others.

    Attributes
    ----------
    ours : callable
        Called with `dask_coop` or `dask.array`, an array and labels.
    cupy, torch : callable or None
        Called with the whole array, and the whole labels.
    dask : bool
        Whether dask.array has the function.
    of : {"table", "line", "few", "points", "mask"}
        The array: of two axes, of one, of a thousand different values, of 64 columns, or of bools.
    groups : int
        The number of groups of the labels; 0 for none.
    keeps : bool
        Whether the result is as large as the array, and stays on the GPU.
    beside : bool
        Whether a second array of the same numbers, in another order, is in the place of labels.
    most : int
        The largest number of chunks.
    """

    ours: Call
    cupy: Call | None = None
    torch: Call | None = None
    dask: bool = False
    of: str = "table"
    groups: int = 0
    keeps: bool = False
    beside: bool = False
    most: int = CHUNKS[-1]


#: Of a call that takes tenths of a second for a thousand chunks.
_few_chunks = partial(Work, most=64)


def zonal(func: str, n: int) -> Call:
    """Return a reduction by lazy labels of `n` groups."""

    def call(m: Any, x: Any, by: Any) -> Any:
        return m.groupby_reduce(x, by, func=func, expected_groups=np.arange(n))[0]

    return call


def works() -> dict[str, Work]:
    """Return the calls by name."""
    import cupy

    table = {
        "sum": Work(lambda m, x, _: m.sum(x), lambda x: x.sum(), lambda t: t.sum(), True),
        "nanmean": Work(lambda m, x, _: m.nanmean(x), lambda x: x.mean(), None, True),
        "histogram, 256 bins": Work(
            lambda m, x, _: m.histogram(x, 256, (0.0, 1.0))[0],
            lambda x: cupy.histogram(x, 256, (0.0, 1.0))[0],
            None,
            True,
        ),
        "cumsum": Work(
            lambda m, x, _: m.cumsum(x, axis=0),
            lambda x: cupy.cumsum(x),
            lambda t: t.cumsum(0),
            True,
            of="line",
            keeps=True,
        ),
        "describe": Work(lambda m, x, _: m.describe(x).mean, lambda x: x.mean()),
        "std, axis 0": Work(
            lambda m, x, _: m.std(x, axis=0), lambda x: x.std(0), lambda t: t.std(0), True
        ),
        "argmax, axis 1": Work(
            lambda m, x, _: m.argmax(x, axis=1),
            lambda x: x.argmax(1),
            lambda t: t.argmax(1),
            True,
        ),
        "histogram by line, 16 bins": Work(
            lambda m, x, _: m.histogram(x, 16, (0.0, 1.0), axis=1)[0]
        ),
        "median": Work(lambda m, x, _: m.median(x), lambda x: cupy.median(x)),
        "topk 10": Work(
            lambda m, x, _: m.topk(x, 10),
            lambda x: cupy.sort(cupy.partition(x, -10)[-10:])[::-1],
            lambda t: t.topk(10),
            True,
            of="line",
        ),
        "unique": Work(
            lambda m, x, _: m.unique(x), lambda x: cupy.unique(x), lambda t: t.unique(), of="few"
        ),
        "move_mean 7": Work(lambda m, x, _: m.move_mean(x, 7, axis=0), keeps=True),
        "ffill": Work(lambda m, x, _: m.ffill(x, axis=0), keeps=True),
    }
    for func, n in (("sum", 1000), ("mean", 1000), ("max", 1000), ("sum", 10_000), ("max", 10_000)):
        index = partial(_index_add, n) if func == "sum" else None
        binned = partial(_bincount, n) if func == "sum" else None
        table[f"zonal {func}, {n:,} groups"] = Work(zonal(func, n), binned, index, groups=n)
    return table | pairs() | lines()


def pairs() -> dict[str, Work]:
    """Return the calls that take two arrays, or columns as variables."""
    import cupy

    square = ((0.0, 1.0), (0.0, 1.0))
    return {
        "average, weights": _few_chunks(
            lambda m, x, w: m.average(x, weights=w),
            lambda x, w: cupy.average(x, weights=w),
            lambda t, w: (t * w).sum() / w.sum(),
            beside=True,
        ),
        "var, weights": _few_chunks(lambda m, x, w: m.var(x, weights=w), beside=True),
        "linregress": _few_chunks(lambda m, x, y: m.linregress(y, x).slope, of="line", beside=True),
        "cov of 64 variables": _few_chunks(
            lambda m, x, _: m.cov(x, rowvar=False),
            lambda x: cupy.cov(x, rowvar=False),
            lambda t: t.T.cov(),
            of="points",
        ),
        "binned mean, 1,000 x 1,000": _few_chunks(
            lambda m, x, y: m.binned_statistic_2d(x, y, x, "mean", 1000, square).statistic,
            of="line",
            beside=True,
        ),
    }


def lines() -> dict[str, Work]:
    """Return the calls that order elements, or follow lines of them."""
    import cupy
    from cupyx.scipy import ndimage

    return {
        "longest_run, axis 0": _few_chunks(lambda m, x, _: m.longest_run(x, axis=0), of="mask"),
        "run_lengths, axis 0": _few_chunks(
            lambda m, x, _: m.run_lengths(x, axis=0), of="mask", keeps=True
        ),
        "ewm_mean": _few_chunks(lambda m, x, _: m.ewm_mean(x, 0, span=20), keeps=True),
        "ewm_var": _few_chunks(lambda m, x, _: m.ewm_var(x, 0, span=20), keeps=True),
        "move_median 30": _few_chunks(lambda m, x, _: m.move_median(x, 30, axis=0), keeps=True),
        "sort": _few_chunks(
            lambda m, x, _: m.sort(x), cupy.sort, lambda t: t.sort()[0], of="line", keeps=True
        ),
        "rankdata, axis 1": _few_chunks(lambda m, x, _: m.rankdata(x, axis=1), keeps=True),
        "mode": _few_chunks(lambda m, x, _: m.mode(x, None).mode, of="few"),
        "approx_nunique": _few_chunks(lambda m, x, _: m.approx_nunique(x)),
        "median_abs_deviation": _few_chunks(lambda m, x, _: m.median_abs_deviation(x, None)),
        "coarsen 4 x 4": _few_chunks(
            lambda m, x, _: m.coarsen(np.mean, x, {0: 4, 1: 4}),
            lambda x: x.reshape(len(x) // 4, 4, -1, 4).mean((1, 3)),
            keeps=True,
        ),
        "label": _few_chunks(
            lambda m, x, _: m.label(x)[0],
            lambda x: ndimage.label(x)[0],
            of="mask",
            keeps=True,
        ),
    }


def _bincount(n: int, x: Any, by: Any) -> Any:
    import cupy

    return cupy.bincount(by.ravel(), x.ravel(), n)


def _index_add(n: int, t: Any, by: Any) -> Any:
    import torch

    return torch.zeros(n, device="cuda").index_add_(0, by.view(-1), t.view(-1))


def close(result: Any, wanted: Any) -> bool:
    """Return whether a result, on the GPU or the host, equals the wanted one."""
    a, b = (np.asarray(x.get() if hasattr(x, "get") else x, "f8") for x in (result, wanted))
    return bool(np.allclose(a, b, rtol=1e-4))


def timed(call: Callable[[], Any], synchronise: Callable[[], None]) -> float:
    """Return the lower quartile of the milliseconds of some calls."""
    times = []
    for _ in range(SAMPLES):
        synchronise()
        begin = time.perf_counter()
        result = call()
        synchronise()
        times.append((time.perf_counter() - begin) * 1e3)
        del result
    return float(np.percentile(times, 25))


def chunked(x: Any, n: int, name: str) -> da.Array:
    """Return an array with `n` chunks in memory."""
    import cupy

    size, rest = len(x) // n, (0,) * (x.ndim - 1)
    name = f"{name}-{n}"
    graph = {(name, i, *rest): x[i * size : (i + 1) * size].copy() for i in range(n)}
    sizes = ((size,) * n, *((length,) for length in x.shape[1:]))
    return da.Array(graph, name, sizes, meta=cupy.empty((0,) * x.ndim, x.dtype))


def run(work: Work, m: Any, x: Any, by: Any, scheduler: Any) -> Any:
    """Return the result of a call, computed or persisted."""
    y = work.ours(m, x, by)
    with dask.config.set(scheduler=scheduler, num_workers=THREADS):
        return y.persist() if work.keeps else y.compute()


def measure(gib: float, only: Sequence[str] = ("",)) -> Iterator[Row]:
    """Yield a row for each call, number of chunks and contender."""
    import cupy

    import dask_coop as dc

    rows = int(gib * 2**30) // 4 // COLUMNS
    x = cupy.random.default_rng(0).random((rows, COLUMNS), dtype="f4")
    wholes = {
        "table": x,
        "few": cupy.floor(x * 1000),
        "line": x.reshape(-1),
        "points": x.reshape(-1, 64),
        "mask": x > 0.5,
    }
    synchronise, free = (
        cupy.cuda.Device().synchronize,
        cupy.get_default_memory_pool().free_all_blocks,
    )
    for name, work in works().items():
        if not any(part in name for part in only):
            continue
        whole = wholes[work.of]
        labels = [(x * work.groups).astype("i4")] if work.groups else []
        labels = [whole[::-1].copy()] if work.beside else labels
        wanted = None
        if work.cupy is not None:
            call = partial(work.cupy, whole, *labels)
            wanted = call()
            yield {"work": name, "by": CUPY, "ms": timed(call, synchronise)}
        if work.torch is not None and (by_torch := _torch(work, whole, labels)) is not None:
            yield {"work": name, "by": TORCH, "ms": timed(by_torch, synchronise)}
            by_torch = None
        for n in filter(work.most.__ge__, CHUNKS):
            y = chunked(whole, n, f"x-{work.of}")
            by = chunked(labels[0], n, f"by-{name}") if labels else None
            with dc.Node([0]) as here:
                contenders: list[Any] = [(NODE, dc, here.get), (THREADED, dc, "threads")]
                if work.dask and n == PEER_CHUNKS:
                    contenders.append((DASK, da, "threads"))
                for contender, module, scheduler in contenders:
                    row = {"work": name, "by": contender, "chunks": n}
                    call = partial(run, work, module, y, by, scheduler)
                    try:
                        result = call()
                        if work.keeps:
                            result, expected = result[-1].compute(), wanted
                            expected = None if wanted is None else wanted[-1]
                        else:
                            expected = wanted
                        if expected is not None and not close(result, expected):
                            raise ArithmeticError("the result is wrong")
                        row["ms"] = timed(call, synchronise)
                    except Exception as error:  # a peer may fail
                        row["note"] = f"{type(error).__name__}: {error}"[:200]
                    if contender == NODE:
                        row["explain"] = here.explain()
                    yield row
                    result = None
                    free()
            y = by = None
        free()


def _torch(work: Work, whole: Any, labels: list[Any]) -> Callable[[], Any] | None:
    try:
        import torch
    except ImportError:
        return None
    assert work.torch is not None
    inputs = [torch.as_tensor(whole, device="cuda")]
    others = [torch.as_tensor(by, device="cuda") for by in labels]
    inputs += [by.long() if work.groups else by for by in others]
    call = partial(work.torch, *inputs)
    call()
    return call


def figures(folder: Path) -> str:
    """Return the figures of the page for the results in `folder`."""
    blocks = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        times: dict[str, dict[Any, float]] = {}
        for row in results["rows"]:
            if "ms" in row:
                times.setdefault(row["work"], {})[row["by"], row.get("chunks")] = row["ms"]
        columns = [
            *((CUPY, None), (TORCH, None), (DASK, PEER_CHUNKS)),
            *((by, n) for by in (NODE, THREADED) for n in CHUNKS if n != PEER_CHUNKS),
        ]
        columns = [column for column in columns if any(column in of for of in times.values())]
        head = ["call", *(f"{by}, {n:,}" if n else by for by, n in columns)]
        lines = [
            [work, *(f"{of[column]:.1f}" if column in of else "" for column in columns)]
            for work, of in times.items()
        ]
        target = f"../benchmarks/results/{folder.name}/{path.name}"
        blocks += [*order.heading(path, results["machine"]), report.excerpt(head, lines, target)]
    return "\n\n".join(blocks) or "No results are there yet."


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the array")
    parser.add_argument("--only", nargs="+", default=[""], help="works whose names contain one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/one-gpu.md anew")
    options = parser.parse_args()
    if not options.write:
        rows = []
        for row in measure(options.gib, options.only):
            rows.append(row)
            print(row, flush=True)
        machine = order.facts(gpu=True)
        options.results.mkdir(parents=True, exist_ok=True)
        name = str(machine["gpu"]["name"]).lower().replace(" ", "-")
        text = json.dumps({"machine": machine, "rows": rows}, indent=1)
        (options.results / f"{name}.json").write_text(text)
    if options.results == RESULTS:
        node.write(figures(RESULTS), PAGE)


if __name__ == "__main__":
    main()
