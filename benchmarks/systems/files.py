"""Time statistics of stored arrays, from the call to the result: docs/files.md.

``python -m benchmarks.systems.files`` writes Zarr arrays, computes the mean of each, then mean and
standard deviation in one read, and adds the speeds to benchmarks/results/files. With ``--cold`` the
page cache forgets the files before each call. With ``--gpu`` it is Zstd in shards, on a Node.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import report
from benchmarks.systems import node, order

RESULTS = Path("benchmarks/results/files")
PAGE = Path("docs/files.md")

#: Calls of which the fastest counts.
SAMPLES = 3
#: MiB of the stored chunks.
CHUNKS = (4, 64)
CODECS = ("Zstd", "Blosc LZ4", "none")
OURS, DASKS = "dc.from_zarr", "da.from_zarr"
ON_HOST, ON_GPU = "decoded by the host's threads", "decoded on the GPU"
#: KiB of a frame of Zstd, and MiB of the shard that has it, which is a chunk of Dask's.
SHARDS = ((256, 64), (256, 256), (1024, 64), (1024, 256), (4096, 256))
#: The functions that one call computes.
WORKS: dict[str, tuple[str, ...]] = {"mean": ("mean",), "mean, std": ("mean", "std")}

Row = dict[str, Any]


def compressors(codec: str) -> Any:
    """Return the compressors of Zarr that a name means."""
    from zarr.codecs import BloscCodec, ZstdCodec

    return {
        "Zstd": [ZstdCodec(level=3)],
        "Blosc LZ4": [BloscCodec(cname="lz4", shuffle="shuffle")],
        "none": None,
    }[codec]


def write(folder: Path, gib: float, codec: str, mib: int) -> Path:
    """Write an array of rounded float32 like a measured quantity, and return its path."""
    import zarr

    path = folder / f"{codec}-{mib}.zarr".replace(" ", "-").lower()
    columns = 1024
    rows = mib * 2**20 // 4 // columns
    n = max(1, round(gib * 1024 / mib))
    array = zarr.create_array(
        path,
        shape=(n * rows, columns),
        chunks=(rows, columns),
        dtype="f4",
        compressors=compressors(codec),
    )
    rng = np.random.default_rng(0)
    for i in range(n):
        smooth = np.sin(np.linspace(i, i + 1, rows))[:, None] * 20
        noise = rng.standard_normal((rows, columns), dtype="f4") * 3
        array[i * rows : (i + 1) * rows] = np.round(smooth + noise, 1)
    return path


def forget(path: Path) -> None:
    """Have the page cache forget the files of a folder."""
    os.sync()
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure(folder: Path, gib: float, threads: int, cold: bool) -> Iterator[Row]:
    """Yield a row for each codec, size of chunks and contender."""
    import dask_coop as dc

    readers = {DASKS: da.from_zarr, OURS: dc.from_zarr}
    for codec, mib in product(CODECS, CHUNKS):
        path = write(folder, gib, codec, mib)
        for work, names in WORKS.items():
            results = set()
            for by, reader in readers.items():
                # Functions of this library would read Dask's arrays, too.
                with dask.config.set({"coop.files.read": False}):
                    times = []
                    for _ in range(SAMPLES):
                        if cold:
                            forget(path)
                        begin = time.perf_counter()
                        x = reader(str(path))
                        lazy = [getattr(dc, name)(x) for name in names]
                        results.add(dask.compute(*lazy, scheduler="threads", num_workers=threads))
                        times.append(time.perf_counter() - begin)
                yield {
                    "codec": codec,
                    "mib": mib,
                    "work": work,
                    "by": by,
                    "cold": cold,
                    "threads": threads,
                    "gib": gib,
                    "decoded_gb_s": x.nbytes / min(times) / 1e9,
                }
            if len(results) > 1:
                raise ArithmeticError(f"the results differ: {results}")
        shutil.rmtree(path)


def write_shards(folder: Path, gib: float, kib: int, mib: int) -> Path:
    """Write such an array in shards of cells, encoded by Zstd, and return its path."""
    import dask_coop as dc

    rows, cell, columns = mib * 2**20 // 4096, kib * 2**10 // 4096, 1024
    n = max(1, round(gib * 1024 / mib)) * rows
    noise = da.random.default_rng(0).standard_normal(
        (n, columns), chunks=(rows, columns), dtype="f4"
    )
    smooth = da.from_array(np.sin(np.arange(n) / 5000).astype("f4") * 20, chunks=rows)
    x = (noise * 3 + smooth[:, None]).round(1)
    path = folder / f"{kib}-{mib}.zarr"
    dc.to_zarr(
        x, path, chunks=(cell, columns), shards=(rows, columns), compressors=compressors("Zstd")
    )
    return path


def measure_on_gpu(folder: Path, gib: float) -> Iterator[Row]:
    """Yield a row for each size of frames and contender, of mean and std in one call on a Node."""
    import dask_coop as dc
    from dask_coop.files.gpu import rules

    on_gpu = rules.why_not
    for kib, mib in SHARDS:
        path = write_shards(folder, gib, kib, mib)
        results = []
        for by in (ON_HOST, ON_GPU):
            # So that frames go to the threads of the host.
            rules.why_not = on_gpu if by == ON_GPU else lambda chain: "measured beside the GPU"
            times = []
            try:
                for _ in range(SAMPLES):
                    with dc.Node():
                        begin = time.perf_counter()
                        x = dc.to_gpu(dc.from_zarr(str(path)), keep=False)
                        values = dask.compute(dc.mean(x), dc.std(x))
                        times.append(time.perf_counter() - begin)
                        results.append(tuple(map(float, values)))
            finally:
                rules.why_not = on_gpu
            yield {
                "kib": kib,
                "mib": mib,
                "by": by,
                "gib": gib,
                "decoded_gb_s": x.nbytes / min(times) / 1e9,
            }
        if len({*results}) > 1:
            raise ArithmeticError(f"the results differ: {results}")
        shutil.rmtree(path)


def figures_on_gpu(rows: list[Row]) -> str:
    """Return the table of frames on a Node."""
    rates: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        rates.setdefault((row["kib"], row["mib"]), {})[row["by"]] = row["decoded_gb_s"]
    lines = [
        [
            *map(str, key),
            f"{of[ON_HOST]:.1f}",
            f"{of[ON_GPU]:.1f}",
            f"{of[ON_GPU] / of[ON_HOST]:.1f}",
        ]
        for key, of in rates.items()
    ]
    return report.table(["KiB a frame", "MiB a Dask chunk", ON_HOST, ON_GPU, "factor"], lines)


def figures(folder: Path) -> str:
    """Return the figures of the page for the results in `folder`."""
    blocks = []
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        blocks += order.heading(path, results["machine"])
        if path.stem.startswith("gpu"):
            blocks.append(figures_on_gpu(results["rows"]))
            continue
        rates: dict[tuple[Any, ...], dict[str, float]] = {}
        largest = max(row["mib"] for row in results["rows"])
        for row in results["rows"]:
            if row["work"] != "mean" or row["mib"] != largest:
                continue
            source = "disk" if row["cold"] else "memory"
            key = source, row["codec"], row["threads"]
            rates.setdefault(key, {})[row["by"]] = row["decoded_gb_s"]
        head = ["files in", "codec", "threads", DASKS, OURS, "factor"]
        lines = [
            [*map(str, key), f"{of[DASKS]:.2f}", f"{of[OURS]:.2f}", f"{of[OURS] / of[DASKS]:.1f}"]
            for key, of in rates.items()
        ]
        blocks.append(report.table(head, lines))
        blocks.append(f"[{path.name}](../benchmarks/results/files/{path.name}) has all rows.")
    return "\n\n".join(blocks) or "No results are there yet."


def main() -> None:
    """Measure, or write the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=8.0, help="decoded size of an array")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of Dask's scheduler")
    parser.add_argument("--folder", type=Path, help="where to write; a memory file system first")
    parser.add_argument("--cold", action="store_true", help="with a cold page cache")
    parser.add_argument("--gpu", action="store_true", help="frames of Zstd on a Node of one GPU")
    parser.add_argument("--name", help="of the file of results")
    parser.add_argument("--write", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if not options.write:
        memory = Path("/dev/shm")
        folder = Path(mkdtemp(dir=options.folder or (memory if memory.is_dir() else None)))
        usual = "gpu" if options.gpu else f"cpu-{os.cpu_count()}-cores"
        path = RESULTS / f"{options.name or usual}.json"
        old = json.loads(path.read_text())["rows"] if path.exists() else []
        rows = [row for row in old if row.get("cold") != options.cold and not options.gpu]
        try:
            for row in (
                measure_on_gpu(folder, options.gib)
                if options.gpu
                else measure(folder, options.gib, options.threads, options.cold)
            ):
                rows.append(row)
                print(row, flush=True)
        finally:
            shutil.rmtree(folder)
        RESULTS.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"machine": order.facts(gpu=options.gpu), "rows": rows}, indent=1)
        )
    node.write(figures(RESULTS), PAGE)


if __name__ == "__main__":
    main()
