"""From the host to the result: ``python -m benchmarks.systems.transfer [--gpus 1 2]``, on GPUs.

An array of float32 lies on the host: in memory, in a .npy file in the page cache, and in Zarr. The
GPUs copy, count, sum and scan it, in chunks. A sample is the time from the call to its result with
every GPU synchronised; a rate is that of the array's bytes. The upper bound is the rate of a copy
from pinned memory, measured in the same run. A time is recorded only after its result has been
checked. A part that fails gives a row with the reason.

``python -m benchmarks.systems.transfer --write`` makes the figures of docs/transfer.md from
benchmarks/results/transfer/*.json.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from . import collective, node
from .transfer_page import (
    BY_HAND,
    CLUSTERS,
    CUMSUM,
    DA,
    INTO_FILE,
    LARGE,
    LIMIT_BYTES,
    LINKS,
    NODE,
    PAGE,
    PINNED,
    RESULTS,
    SOURCES,
    TO_GPU,
    TO_HOST,
    WORKS,
    WRITING,
    Row,
    figures,
)

#: Bytes of the array, of its chunks, and of slow copies; repeats of the array in large ones.
NBYTES, CHUNK, SLOW, SEEN = 16 << 30, 128 << 20, 2 << 30, 6
#: The most seconds for writing a file.
WRITING_SECONDS = 15.0
THREADS = 16


@dataclass(frozen=True)
class Setting:
    """The sizes and the folder of a measurement.

    Attributes
    ----------
    size, chunk : int
        The elements of the array and of its chunks.
    folder : pathlib.Path
        The folder for files.
    samples : int
        The number of samples of quick parts.
    seen : int
        The number of repeats of the array in the large one.
    """

    size: int
    chunk: int
    folder: Path
    samples: int
    seen: int = SEEN

    @cached_property
    def host(self) -> Any:
        """The array: a block of random numbers below 1, rolled on in every chunk."""
        block = np.random.default_rng(17).integers(0, 1 << 24, self.chunk).astype("f4")
        block *= np.float32(2**-24)
        x = np.empty((self.size // self.chunk, self.chunk), "f4")

        def fill(i: int) -> None:
            at = i * 997 % self.chunk
            x[i, at:], x[i, :at] = block[: self.chunk - at], block[self.chunk - at :]

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fill, range(len(x))))
        return x.reshape(-1)

    def truth(self, seen: int = 1) -> dict[str, Any]:
        """Return the right results for the array repeated `seen` times."""
        count = seen * (self.size // self.chunk)
        total, least, table = self._of_block
        return {"sums": [total] * count, "min": least, WORKS[0]: table * count}

    @cached_property
    def _of_block(self) -> tuple[float, float, Any]:
        block = self.host[: self.chunk]
        # The edges are multiples of powers of two, so that this is exact.
        table = np.bincount((block * 256).astype("i4"), minlength=256)
        return float(block.sum(dtype="f8")), float(block.min()), table

    @cached_property
    def target(self) -> Any:
        """Memory for results of as many elements, whose pages have all been touched."""
        x = np.empty((self.size // self.chunk, self.chunk), "f4")
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda part: part.fill(1), x))
        return x.reshape(-1)

    @cached_property
    def lazy(self) -> Any:
        """The Dask array of its chunks, built like those of from_array, which would copy it."""
        import dask.array as da

        parts = self.host.reshape(-1, self.chunk)
        graph = {("host", i): part for i, part in enumerate(parts)}
        return da.Array(graph, "host", ((self.chunk,) * len(parts),), dtype=self.host.dtype)

    def large(self, seen: int) -> Any:
        """Return the array, repeated."""
        import dask.array as da

        return da.concatenate([self.lazy] * seen)

    def npy(self) -> Any:
        """Return the array from a file."""
        import dask_coop

        path = self.folder / "x.npy"
        if not path.exists():
            np.save(path, self.host)
        return dask_coop.from_npy(path, chunks=self.chunk)

    def zarr(self, **options: Any) -> Any:
        """Return an array of Zarr, as large as the others, or smaller if compressed."""
        import dask.array as da
        import zarr

        size = self.size if options else min(self.size, SLOW // 4)
        path = self.folder / f"{'plain' if options else 'zstd'}.zarr"
        if not path.exists():
            made = zarr.create_array(path, shape=size, chunks=self.chunk, dtype="f4", **options)

            def fill(begin: int) -> None:
                made[begin : begin + self.chunk] = self.host[begin : begin + self.chunk]

            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(fill, range(0, size, self.chunk)))
        return da.from_zarr(path)

    def source(self, name: str) -> Any:
        """Return the array from the source of this name."""
        memory, npy, plain, packed = SOURCES
        opened: dict[str, Callable[[], Any]] = {
            memory: lambda: self.lazy,
            npy: self.npy,
            plain: partial(self.zarr, compressors=None),
            packed: self.zarr,
        }
        return opened[name]()


def row(
    work: str,
    contender: str,
    gpus: int,
    nbytes: int = 0,
    times: list[float] | None = None,
    **more: Any,
) -> Row:
    """Return a row of the results, and print it."""
    made: Row = {"work": work, "contender": contender, "gpus": gpus, "bytes": nbytes, **more}
    if times:
        seconds = statistics.median(times)
        made |= {"rate": nbytes / 1e9 / seconds, "seconds": [round(t, 6) for t in times]}
    shown = f"{made['rate']:8.4g} GB/s" if times else made.get("note")
    print(f"{gpus} GPUs  {work:45} {contender:30} {shown}", flush=True)
    return made


def attempt(
    work: str,
    contender: str,
    gpus: int,
    part: Callable[[], tuple[int, list[float], dict[str, Any]]],
) -> Row:
    """Return the row of a part, from its bytes, times and extras, or the reason why it failed."""
    try:
        nbytes, times, more = part()
    except Exception as error:  # the other parts are still measured
        return row(work, contender, gpus, note=f"{type(error).__name__}: {error}"[:300])
    return row(work, contender, gpus, nbytes, times, **more)


def seconds(run: Callable[[], Any], check: Callable[[Any], None], samples: int) -> list[float]:
    """Return the times of calls; the first one is checked, and counts only if it is alone."""
    times = []
    for turn in range(samples + (samples > 1)):
        start = perf_counter()
        result = run()
        times.append(perf_counter() - start)
        if turn == 0:
            check(result)
        del result
    return times[-samples:]


def synchronise(gpus: int) -> None:
    """Wait for all GPUs."""
    import cupy

    for ordinal in range(gpus):
        cupy.cuda.Device(ordinal).synchronize()


def release(gpus: int) -> None:
    """Return unused memory to the GPUs."""
    import cupy

    for ordinal in range(gpus):
        with cupy.cuda.Device(ordinal):
            cupy.get_default_memory_pool().free_all_blocks()


def used(ordinal: int) -> int:
    """Return the used bytes of a GPU, of all processes."""
    import cupy

    with cupy.cuda.Device(ordinal):
        free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)


@contextmanager
def peak(gpus: int) -> Iterator[dict[int, int]]:
    """Yield the most used bytes of each GPU during the block, read every 2 ms."""
    most = dict.fromkeys(range(gpus), 0)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for ordinal in most:
                most[ordinal] = max(most[ordinal], used(ordinal))
            sleep(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def link(gpus: int, way: str) -> tuple[int, list[float], dict[str, Any]]:
    """Time copies between pinned memory and all GPUs at a time."""
    import cupy
    from cupy.cuda import runtime

    size, rounds = 256 << 20, 8
    copies = []
    for ordinal in range(gpus):
        with cupy.cuda.Device(ordinal):
            ends = cupy.cuda.alloc_pinned_memory(size), cupy.empty(size, "u1").data
            stream = cupy.cuda.Stream(non_blocking=True)
        copies.append((ordinal, ends if way == LINKS[0] else ends[::-1], stream))

    def run() -> None:
        for _ in range(rounds):
            for ordinal, (source, target), stream in copies:
                with cupy.cuda.Device(ordinal):
                    runtime.memcpyAsync(
                        target.ptr, source.ptr, size, runtime.memcpyDefault, stream.ptr
                    )
        for _, _, stream in copies:
            stream.synchronize()

    return size * rounds * gpus, seconds(run, lambda _: None, 5), {}


def by_hand(setting: Setting, gpus: int) -> tuple[int, list[float], dict[str, Any]]:
    """Time cupy.asarray of one chunk after the other."""
    import cupy

    parts = setting.host[: SLOW // 4].reshape(-1, setting.chunk)

    def run() -> Any:
        for i, part in enumerate(parts):
            with cupy.cuda.Device(i % gpus):
                last = cupy.asarray(part)
        synchronise(gpus)
        return last

    def check(last: Any) -> None:
        np.testing.assert_array_equal(last.get(), parts[-1])

    return parts.nbytes, seconds(run, check, setting.samples), {}


def by_threads(setting: Setting, work: str) -> tuple[int, list[float], dict[str, Any]]:
    """Time dask.array on CuPy chunks, on Dask's threads and one GPU."""
    import cupy
    import dask
    import dask.array as da

    x = setting.lazy.map_blocks(cupy.asarray, dtype="f4", meta=cupy.empty(0, "f4"))
    lazy = collective.call(da, work, x)
    options = {"scheduler": "threads", "num_workers": THREADS}
    run = partial(dask.compute, *lazy, **options)
    check = partial(right, setting.truth(), work)
    return x.nbytes, seconds(run, check, setting.samples), {}


def right(truth: dict[str, Any], work: str, results: Any) -> None:
    """Raise unless results are right."""
    collective.check(work, [collective._host(value) for value in results], truth)


def there(setting: Setting, gpus: int) -> tuple[int, list[float], dict[str, Any]]:
    """Time `to_gpu`."""
    import dask_coop

    x = dask_coop.to_gpu(setting.lazy)

    def run() -> Any:
        result = x.persist()
        synchronise(gpus)
        return result

    def check(result: Any) -> None:
        for i in (0, result.npartitions - 1):
            part = setting.host[i * setting.chunk :][: setting.chunk]
            np.testing.assert_array_equal(collective._host(result.blocks[i].compute()), part)

    return x.nbytes, seconds(run, check, setting.samples), {}


def back(setting: Setting) -> tuple[int, list[float], dict[str, Any]]:
    """Time `to_host`, its results dropped."""
    import dask_coop

    x = dask_coop.to_gpu(setting.lazy).persist()
    ends = dask_coop.to_host(x).map_blocks(
        lambda chunk: chunk[-1:].copy(), chunks=((1,) * x.npartitions,), dtype="f4"
    )
    truth = setting.host[setting.chunk - 1 :: setting.chunk]
    check = partial(np.testing.assert_array_equal, truth)
    return x.nbytes, seconds(ends.compute, check, setting.samples), {}


def on_node(
    setting: Setting, gpus: int, work: str, source: str
) -> tuple[int, list[float], dict[str, Any]]:
    """Time one work of the node, for one source of the array."""
    import dask

    import dask_coop

    x = setting.source(source)
    lazy = collective.call(dask_coop, work, dask_coop.to_gpu(x))

    def run() -> Any:
        results = dask.compute(*lazy)
        synchronise(gpus)
        return results

    truth = setting.truth()
    if x.size < setting.size:
        truth = {WORKS[0]: truth[WORKS[0]] // (setting.size // x.size)}
    # Include the time of readers of Zarr files.
    samples = setting.samples if source in SOURCES[:2] else 1
    return x.nbytes, seconds(run, partial(right, truth, work), samples), {}


def to_target(x: Any, target: Any, method: str | None = None) -> None:
    """Scan an array on the GPUs, and write the results into a host array."""
    import dask.array as da

    import dask_coop

    options: dict[str, Any] = {} if method is None else {"method": method}
    scanned = dask_coop.cumsum(dask_coop.to_gpu(x), axis=0, **options)
    da.store(dask_coop.to_host(scanned), target, lock=False)


def host_to_host(setting: Setting, method: str | None) -> tuple[int, list[float], dict[str, Any]]:
    """Time a running sum from the host to existing memory of the host."""
    target = setting.target

    def check(_: None) -> None:
        collective.check("cumsum", [target[setting.chunk - 1 :: setting.chunk]], setting.truth())

    run = partial(to_target, setting.lazy, target, method)
    return target.nbytes, seconds(run, check, setting.samples), {}


def told(gpus: int, most: dict[int, int], before: int, told_by: Any) -> dict[str, Any]:
    """Return the additional fields of a large array's row."""
    return {"peak": max(most.values()), "before": before, "explain": str(told_by)[:600]}


def large(setting: Setting, gpus: int) -> tuple[int, list[float], dict[str, Any]]:
    """Time a histogram of more bytes than the GPUs may hold."""
    import dask

    import dask_coop

    x = setting.large(setting.seen)
    before = max(map(used, range(gpus)))
    with dask_coop.Node(range(gpus), memory_limit=LIMIT_BYTES) as on, peak(gpus) as most:
        lazy = collective.call(dask_coop, WORKS[0], dask_coop.to_gpu(x))
        check = partial(right, setting.truth(setting.seen), WORKS[0])
        times = seconds(partial(dask.compute, *lazy), check, min(setting.samples, 2))
        said = on.explain()
    return x.nbytes, times, told(gpus, most, before, said)


def writing(setting: Setting) -> tuple[int, list[float], dict[str, Any]]:
    """Time writing a file alone, by Dask's threads."""
    import dask.array as da

    x = setting.lazy[: max(SLOW // 4, setting.chunk)]
    path = setting.folder / "plain.npy"
    out = np.lib.format.open_memmap(path, "w+", "f4", x.shape)
    run = partial(da.store, x, out, lock=False, scheduler="threads", num_workers=THREADS)
    try:
        return x.nbytes, seconds(run, lambda _: None, 1), {}
    finally:
        path.unlink()


def into_file(setting: Setting, gpus: int, rate: float) -> tuple[int, list[float], dict[str, Any]]:
    """Time a running sum into a file, as large as the disk and its rate in GB/s allow."""
    import dask_coop

    most = min(0.8 * shutil.disk_usage(setting.folder).free, rate * 1e9 * WRITING_SECONDS)
    seen = int(min(setting.seen, max(1, most // (4 * setting.size))))
    x = setting.large(seen)
    path = setting.folder / "sums.npy"
    out = np.lib.format.open_memmap(path, "w+", "f4", x.shape)

    def check(_: None) -> None:
        found = out[setting.chunk - 1 :: setting.chunk]
        collective.check("cumsum", [found], setting.truth(seen))

    before = max(map(used, range(gpus)))
    try:
        with dask_coop.Node(range(gpus), memory_limit=LIMIT_BYTES) as on, peak(gpus) as most_used:
            times = seconds(partial(to_target, x, out), check, 1)
            said = on.explain()
    finally:
        path.unlink()
    return x.nbytes, times, told(gpus, most_used, before, said)


def on_cluster(
    setting: Setting, workers: int, threads: int
) -> tuple[int, list[float], dict[str, Any]]:
    """Time a histogram on a LocalCUDACluster, from a file."""
    import dask
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    import dask_coop

    x = dask_coop.to_gpu(setting.npy())
    lazy = collective.call(dask_coop, WORKS[0], x)
    options = {"CUDA_VISIBLE_DEVICES": list(range(workers)), "threads_per_worker": threads}
    with (
        LocalCUDACluster(**options, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        # Without CoopPlugin, which would compile other kernels beside the first samples.
        client.wait_for_workers(workers)
        check = partial(right, setting.truth(), WORKS[0])
        times = seconds(partial(dask.compute, *lazy), check, setting.samples)
    return x.nbytes, times, {}


def measure(setting: Setting, gpus: int) -> Iterator[Row]:
    """Measure everything on so many GPUs."""
    import dask_coop

    for way in LINKS:
        yield attempt(way, PINNED, gpus, partial(link, gpus, way))
    yield attempt(TO_GPU, BY_HAND, gpus, partial(by_hand, setting, gpus))
    if gpus == 1:
        for work in WORKS[:2]:
            yield attempt(f"{work} from {SOURCES[0]}", DA, 1, partial(by_threads, setting, work))
    release(gpus)
    with dask_coop.Node(range(gpus)):
        yield attempt(TO_GPU, NODE, gpus, partial(there, setting, gpus))
        yield attempt(TO_HOST, NODE, gpus, partial(back, setting))
        release(gpus)
        for source in SOURCES:
            # Decoding does not depend on the work.
            for work in WORKS if source in SOURCES[:2] else WORKS[:1]:
                part = partial(on_node, setting, gpus, work, source)
                yield attempt(f"{work} from {source}", NODE, gpus, part)
        for method in (None, "sequential") if gpus == 1 else ():
            name = CUMSUM if method is None else f'{CUMSUM}, method="{method}"'
            yield attempt(name, NODE, 1, partial(host_to_host, setting, method))
    release(gpus)
    yield attempt(LARGE, NODE, gpus, partial(large, setting, gpus))
    release(gpus)
    for threads, name in CLUSTERS.items() if gpus == 2 else ():
        part = partial(on_cluster, setting, 2, threads)
        yield attempt(f"{WORKS[0]} from {SOURCES[1]}", name, 2, part)


def write_files(setting: Setting, gpus: list[int]) -> Iterator[Row]:
    """Measure works that write large files, after the files to read are deleted."""
    for path in setting.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    plain = attempt(WRITING, "dask.array", 0, partial(writing, setting))
    yield plain
    for some in gpus:
        release(some)
        part = partial(into_file, setting, some, plain.get("rate", 1.0))
        yield attempt(INTO_FILE, NODE, some, part)


def facts(setting: Setting, gpus: list[int]) -> dict[str, Any]:
    """Return the machine, the versions of everything, and the setting."""
    from dask_coop.cli import info

    known = info.facts()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": next(iter(known["gpus"]), None),
        "versions": known["versions"],
        "gpus": max(gpus),
        "bytes": 4 * setting.size,
        "chunk": 4 * setting.chunk,
        "samples": setting.samples,
    }


def run(results: Path, setting: Setting, gpus: list[int]) -> Path:
    """Measure, and write a file of results."""
    start, rows = perf_counter(), list[Row]()
    machine = facts(setting, gpus)
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{max(gpus)}-gpus.json"
    for one in chain(*(measure(setting, some) for some in gpus), write_files(setting, gpus)):
        rows.append(one)
        machine["seconds"] = round(perf_counter() - start)
        # Write after each row, so that no result is lost with the machine.
        path.write_text(collective.as_text(machine, rows))
    return path


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", help="how many at a time; 1, 2 if there are")
    parser.add_argument("--gib", type=float, default=NBYTES / 2**30, help="GiB of the array")
    parser.add_argument("--quick", action="store_true", help="one sample each")
    parser.add_argument("--out", type=Path, help="folder for large files; by default a temporary")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--write", action="store_true", help="only write docs/transfer.md anew")
    options = parser.parse_args()
    if not options.write:
        import dask
        from cupy.cuda import runtime

        gpus = options.gpus or list(range(1, min(2, runtime.getDeviceCount()) + 1))
        count = max(1, int(options.gib * 2**30) // CHUNK)
        with tempfile.TemporaryDirectory(dir=options.out) as folder:
            samples = 1 if options.quick else 3
            setting = Setting(count * CHUNK // 4, CHUNK // 4, Path(folder), samples)
            # Each sample copies.
            with dask.config.set({"coop.transfer.keep": 0}):
                print(run(options.results, setting, gpus))
    if options.write or options.results == RESULTS:
        node.write(figures(RESULTS), PAGE)


if __name__ == "__main__":
    main()
