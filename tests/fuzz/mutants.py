"""Damaged files: every reader of `describe` ends in an array or in one clear message.

A mutant is a small file of a kind with a few bytes changed, moved, cut off or put in; of Zarr also
with other values in its JSON. It is opened and read as `describe` does, in a process whose memory
and time have a limit. An exception but those that `describe` turns into a message is a failure, and
so are a crash, more memory than the file's own claims take, and more time than `SECONDS`.

=============== ==================================================================================
FUZZ_ONLY       "files": this, and none of the families
FUZZ_FILES      mutants of each kind: 20,000
FUZZ_KINDS      kinds to keep to, with commas between them
FUZZ_SEED       by default random; printed
FUZZ_LOG        a file that gets every failure in full: build/fuzz.log
=============== ==================================================================================

One again: PYTHONPATH=tests:tools python -m fuzz.mutants KIND SEED INDEX
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dask
import numpy as np

import dask_coop as dc
from dask_coop.cli.describe import sources
from dask_coop.cli.describe.readers import as_user_errors
from dask_coop.errors import UserError

#: For how long one mutant may take: HDF5 is asked twice, and waited for a minute each.
SECONDS = 150

#: What a mutant may take of memory besides four times what it claims to be stored in at a time:
#: libraries that are imported, and chunks. Pillow decodes pictures of gigabytes, and says so.
ROOM_BYTES, PICTURE_BYTES = 1 << 28, 1 << 31

#: Arrays up to this are read whole; of others the first chunk and the last.
_WHOLE_BYTES = 1 << 22

#: Ends of the names of metadata.
SAID = (".json", ".zarray", ".zattrs")

#: What numbers that are damaged become.
_EXTREMES = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)

Rng = np.random.Generator
VALUES = (np.arange(480).reshape(20, 24) % 97).astype("f8")


def _npy(folder: Path) -> Iterator[Path]:
    for i, x in enumerate(
        (VALUES, np.asfortranarray(VALUES.astype(">i2")), np.arange(9).view("M8[s]"))
    ):
        np.save(folder / f"{i}.npy", x)
        yield folder / f"{i}.npy"


def _npz(folder: Path) -> Iterator[Path]:
    np.savez(folder / "0.npz", a=VALUES, b=np.arange(9))
    np.savez_compressed(folder / "1.npz", a=VALUES, b=np.arange(9))
    yield from (folder / "0.npz", folder / "1.npz")


def _zarr(folder: Path) -> Iterator[Path]:
    import numcodecs
    import zarr

    codecs = zarr.codecs
    shared: dict[str, Any] = {"data": VALUES, "chunks": (10, 8), "overwrite": True}
    of_2 = (
        numcodecs.Blosc(),
        numcodecs.Zstd(),
        numcodecs.LZ4(),
        numcodecs.GZip(),
        numcodecs.LZMA(),
    )
    for i, compressor in enumerate(of_2):
        path = folder / f"{i}.zarr"
        filters = [numcodecs.Delta("f8"), numcodecs.Shuffle(8)] if i % 2 else None
        zarr.create_array(path, **shared, zarr_format=2, compressors=compressor, filters=filters)
        yield path
    of_3 = (codecs.BloscCodec(), codecs.ZstdCodec(), codecs.GzipCodec())
    for i, compressor in enumerate(of_3, len(of_2)):
        path = folder / f"{i}.zarr"
        shards = (20, 24) if i % 2 else None
        zarr.create_array(path, **shared, compressors=compressor, shards=shards)
        yield path
    for version in (2, 3):
        path = folder / f"group{version}.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=version)
        array = group.create_array("inner/x", data=VALUES.astype("i2"), chunks=(10, 8))
        array.attrs.update({"scale_factor": 0.5, "units": "days since 2000-01-01"})
        if version == 3:
            zarr.consolidate_metadata(path)
        yield path


def _frames(folder: Path) -> Iterator[Path]:
    """Yield arrays of Zarr, one for each way to encode chunks, whose chunks are damaged later."""
    import numcodecs
    import zarr

    x = VALUES.astype("f4")
    shared: dict[str, Any] = {"data": x, "chunks": (10, 8), "overwrite": True}
    of_2: list[tuple[Any, Any]] = [
        (numcodecs.Blosc(name, shuffle=shuffle, blocksize=64), None)
        for name in numcodecs.blosc.list_compressors()
        for shuffle in (0, 1, 2)
    ]
    plain = (numcodecs.Blosc(clevel=0), numcodecs.Zstd(checksum=True), numcodecs.LZ4())
    of_2 += [(each, None) for each in (*plain, numcodecs.Zlib(), numcodecs.GZip(), None)]
    scaled = numcodecs.FixedScaleOffset(0, 1, "f4", "i2")
    of_2 += [(numcodecs.Zstd(), [scaled, numcodecs.Delta("i2"), numcodecs.Shuffle(2)])]
    of_2 += [(None, [numcodecs.Shuffle(4)])]
    for i, (compressor, filters) in enumerate(of_2):
        path, order = folder / f"{i}.zarr", "CF"[i % 2]
        options = {"compressors": compressor, "filters": filters, "order": order}
        zarr.create_array(path, **shared, **options, zarr_format=2)
        yield path
    codecs = zarr.codecs
    of_3: tuple[Any, ...] = (
        None,
        codecs.Crc32cCodec(),
        [codecs.ZstdCodec(), codecs.Crc32cCodec()],
        codecs.BloscCodec(),
    )
    for i, compressors in enumerate((*of_3, *of_3), len(of_2)):
        path, shards = folder / f"{i}.zarr", (20, 24) if i % 2 else None
        zarr.create_array(path, **shared, compressors=compressors, shards=shards)
        yield path


def _hdf5(folder: Path) -> Iterator[Path]:
    import h5py

    options: tuple[dict[str, Any], ...] = (
        {},
        {"chunks": (10, 8), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (10, 8), "compression": "lzf", "maxshape": (None, None)},
        {"chunks": (10, 8), "scaleoffset": 4},
    )
    for i, given in enumerate(options):
        with h5py.File(folder / f"{i}.h5", "w", libver="latest" if i % 2 else "earliest") as file:
            x = file.create_dataset("group/x", data=VALUES, **given)
            x.attrs["scale_factor"], x.attrs["units"] = 0.5, "days since 2000-01-01"
            file["group/soft"] = h5py.SoftLink("/group/x")
        yield folder / f"{i}.h5"


def _netcdf4(folder: Path) -> Iterator[Path]:
    import h5py

    with h5py.File(folder / "0.nc", "w") as file:
        file["time"] = np.arange(20)
        file["time"].make_scale("time")
        x = file.create_dataset("x", data=VALUES.astype("i2"), chunks=(10, 8), compression="gzip")
        x.dims[0].attach_scale(file["time"])
        x.attrs["_FillValue"], x.attrs["add_offset"] = np.int16(3), 0.5
    yield folder / "0.nc"


def _netcdf3(folder: Path) -> Iterator[Path]:
    from scipy.io import netcdf_file

    for version in (1, 2):
        with netcdf_file(folder / f"{version}.nc", "w", version=version) as file:
            file.createDimension("time", None)
            file.createDimension("x", 24)
            file.createVariable("time", "i", ("time",))[:] = np.arange(20)
            variable = file.createVariable("v", "d", ("time", "x"))
            variable[:] = VALUES
            variable.units, variable.scale_factor = b"days since 2000-01-01", 0.5
        yield folder / f"{version}.nc"


def _csv(folder: Path) -> Iterator[Path]:
    lines = [f"{i},{i / 7},{'abc'[i % 3]},{2000 + i}-01-01" for i in range(30)]
    (folder / "0.csv").write_text("\n".join(["a,b,name,when", *lines]))
    yield folder / "0.csv"


def _picture(*suffixes: str) -> Callable[[Path], Iterator[Path]]:
    def save(folder: Path) -> Iterator[Path]:
        from skimage.io import imsave

        for suffix in suffixes:
            for i, x in enumerate((VALUES, np.stack([VALUES] * 3, -1))):
                path = folder / f"{i}{suffix}"
                imsave(path, x.astype("u1"), check_contrast=False)
                yield path

    return save


def _tiff(folder: Path) -> Iterator[Path]:
    import tifffile

    yield from _picture(".tif")(folder)
    for i, options in enumerate(({"compression": "zlib"}, {"bigtiff": True, "tile": (16, 16)})):
        tifffile.imwrite(folder / f"more{i}.tif", VALUES.astype("u2"), **options)
        yield folder / f"more{i}.tif"


KINDS: dict[str, Callable[[Path], Iterator[Path]]] = {
    "npy": _npy,
    "npz": _npz,
    "zarr": _zarr,
    "frames": _frames,
    "hdf5": _hdf5,
    "netcdf4": _netcdf4,
    "netcdf3": _netcdf3,
    "csv": _csv,
    "png": _picture(".png"),
    "jpg": _picture(".jpg"),
    "tif": _tiff,
}


def mutate(rng: Rng, data: bytes, other: bytes) -> bytes:
    """Return bytes with one to eight changes; `other` is what is put in."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        n = len(found)
        at = int(rng.integers(n + 1))
        # Headers tell most.
        at = min(at, int(rng.integers(256))) if rng.random() < 0.5 else at
        length = int(rng.integers(1, 33))
        match rng.integers(8):
            case 0 if at < n:
                found[at] ^= 1 << int(rng.integers(8))
            case 1 if at < n:
                found[at] = int(rng.integers(256))
            case 2 | 3:
                size = int(rng.choice([1, 2, 4, 8]))
                number = _EXTREMES[int(rng.integers(len(_EXTREMES)))] % (1 << 8 * size)
                order: Any = rng.choice(["little", "big"])
                found[at : at + size] = number.to_bytes(size, str(order))  # type: ignore[arg-type]
            case 4:
                del found[at : at + length]
            case 5:
                begin = int(rng.integers(len(other) + 1))
                found[at:at] = other[begin : begin + length]
            case 6:
                found[at : at + length] = found[:length]
            case 7 if rng.random() < 0.3:
                del found[at:]
    return bytes(found)


@cache
def bombs() -> list[bytes]:
    """Return small frames of each codec that decode to very much, or say that they do."""
    import gzip
    import zlib

    zeros = bytes(60 << 20)
    # Blocks of Zstd that say one byte comes 128 Ki times, in a frame that does not say its size.
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    zstd = bytes.fromhex("28b52ffd0038")
    most = (2**31 - 1).to_bytes(4, "little")
    blosc = bytes.fromhex("02012104") + most + (1 << 20).to_bytes(4, "little")
    return [
        zlib.compress(zeros),
        gzip.compress(zeros),
        zstd + block * 8000,
        zstd + (b"\0\0\0" * 1000) + block,
        most + b"\x1fa\1\0" + b"\xff" * 10000,
        blosc + (20).to_bytes(4, "little") + bytes(4),
        blosc + most + bytes(4),
    ]


def mutate_frame(rng: Rng, data: bytes, other: bytes) -> bytes:
    """Return damaged bytes of a chunk."""
    match rng.integers(8):
        case 0:
            return data[: int(rng.integers(len(data)))]
        case 1:
            return data + (bytes(int(rng.integers(1, 99))) if rng.random() < 0.5 else other)
        case 2:
            return other
        case 3:
            return bombs()[int(rng.integers(len(bombs())))]
        case _:
            return mutate(rng, data, other)


def mutate_json(rng: Rng, document: Any) -> Any:
    """Return a document with another value somewhere."""
    if isinstance(document, dict | list) and document and rng.random() < 0.85:
        keys = [*document] if isinstance(document, dict) else [*range(len(document))]
        key = keys[int(rng.integers(len(keys)))]
        inner = mutate_json(rng, document[key])
        if isinstance(document, dict):
            return {**document, key: inner}
        return [*document[:key], inner, *document[key + 1 :]]
    strange = (
        None,
        True,
        -1,
        0,
        1,
        10**6,
        2**31,
        2**63,
        10**30,
        0.5,
        "",
        "x",
        "pickle",
        "|O",
        ">f8",
    )
    more: tuple[Any, ...] = ([], {}, [document], [10**9], "bytes", "blosc", "string", "gzip")
    choices = (*strange, *more)
    return choices[int(rng.integers(len(choices)))]


@dataclass(frozen=True)
class Failure:
    """A mutant that did not end as it should."""

    kind: str
    seed: int
    index: int
    what: str

    def __str__(self) -> str:
        """Return what a person needs to see it again."""
        again = (
            f"PYTHONPATH=tests:tools python -m fuzz.mutants {self.kind} {self.seed} {self.index}"
        )
        return f"{self.kind}: {self.what}\n    again: {again}"


class Mutants:
    """The mutants of a kind, in a folder."""

    def __init__(self, kind: str, seed: int, folder: Path) -> None:
        self.kind, self.seed, self.folder = kind, seed, folder
        whole = folder / "whole"
        whole.mkdir(parents=True)
        self.seeds = [*KINDS[kind](whole)]

    def write(self, index: int) -> Path:
        """Write a mutant, and return its path."""
        rng = np.random.default_rng([self.seed, [*KINDS].index(self.kind), index])
        chosen, other = (self.seeds[int(rng.integers(len(self.seeds)))] for _ in range(2))
        target = self.folder / f"mutant{chosen.suffix}"
        if not chosen.is_dir():
            target.write_bytes(mutate(rng, chosen.read_bytes(), other.read_bytes()))
            return target
        files = sorted(path for path in chosen.rglob("*") if path.is_file())
        chunks = [path for path in files if not path.name.endswith(SAID)]
        frames = self.kind == "frames"
        pool = chunks if chunks and (frames or rng.random() < 0.4) else files
        damaged = pool[int(rng.integers(len(pool)))]
        others = (
            [
                path
                for path in sorted(other.rglob("*"))
                if path.is_file() and not path.name.endswith(SAID)
            ]
            if frames
            else []
        )
        for path in files:
            to = target / path.relative_to(chosen)
            to.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            if path == damaged and data[:1] == b"{" and rng.random() < 0.7:
                document = json.loads(data)
                for _ in range(int(rng.integers(1, 4))):
                    document = mutate_json(rng, document)
                data = json.dumps(document).encode()
            elif path == damaged and frames:
                put = others[int(rng.integers(len(others)))]
                data = mutate_frame(rng, data, put.read_bytes())
            elif path == damaged:
                data = mutate(rng, data, data)
            to.write_bytes(data)
        return target

    def remove(self) -> None:
        """Remove what `write` has written."""
        import shutil

        for path in self.folder.glob("mutant*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def judge(self, index: int) -> Failure | None:
        """Return what is wrong with the end of a mutant; None if nothing is."""
        path, claimed = self.write(index), [0]
        before = _peak()
        try:
            self.read(path, claimed)
        except Exception:
            return self.failure(index, traceback.format_exc())
        finally:
            self.remove()
        room = PICTURE_BYTES if self.kind in ("png", "jpg", "tif") else ROOM_BYTES
        if (took := _peak() - before) > room + 4 * claimed[0]:
            return self.failure(index, f"{took:,} bytes of memory, {claimed[0]:,} claimed a chunk")
        return None

    def read(self, path: Path, claimed: list[int]) -> None:
        """Read a file, and add what it says is stored in a chunk."""
        (read_frames if self.kind == "frames" else read)(path, claimed)

    def failure(self, index: int, what: str) -> Failure:
        """Return what is told of a mutant."""
        return Failure(self.kind, self.seed, index, what)


def read(path: Path, claimed: list[int]) -> None:
    """Read a file as `describe` does, and add what it says is stored in a chunk."""
    with warnings.catch_warnings(), dask.config.set({"array.chunk-size": "1MiB"}):
        warnings.simplefilter("ignore")
        try:
            for source in sources.open_sources([str(path)], None, "auto", str(path.parent)):
                x = source.array
                blocks = [x] if x.nbytes <= _WHOLE_BYTES else [x.blocks[at] for at in _ends(x)]
                for name in x.__dask_graph__().layers:
                    layer = x.__dask_graph__().layers[name]
                    for task in layer.values() if "original" in str(name) else ():
                        stored = getattr(getattr(task, "value", task), "chunks", None) or ()
                        claimed[0] += math.prod(stored) * x.dtype.itemsize
                for block in blocks:
                    with as_user_errors(source):
                        block.compute(scheduler="synchronous")
                if source.codes is not None and x.nbytes <= _WHOLE_BYTES:
                    with as_user_errors(source):
                        source.codes.count(_compute)
        except UserError:
            pass


def _compute(*arrays: Any) -> list[Any]:
    return [*dask.compute(*arrays, scheduler="synchronous")]


def read_frames(path: Path, claimed: list[int]) -> None:
    """Read an array of Zarr: what comes out is what Zarr makes of it, or else OSError says why."""
    import zarr

    array = zarr.open_array(path, mode="r")
    claimed[0] += math.prod(array.shards or array.chunks) * array.dtype.itemsize
    for chunks in (None, (7, 9)):
        x = dc.from_zarr(array, chunks=chunks)
        # In a thread of its own, where Blosc does without its own ones, and in this one.
        scheduler = "synchronous" if chunks else "threads"
        try:
            found = x.compute(scheduler=scheduler, num_workers=1)
        except OSError as error:
            # Store and chunk, and a reason behind them.
            if not re.match(
                rf"{re.escape(str(path))}: cannot read the chunk '[\w/.]+': .", str(error)
            ):
                raise
        else:
            np.testing.assert_array_equal(found, array[...])


def _ends(x: Any) -> list[tuple[int, ...]]:
    return [(0,) * x.ndim, tuple(n - 1 for n in x.numblocks)]


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Late(BaseException):
    """That a mutant has taken too long."""


def _alarm(*_: Any) -> None:
    raise _Late


def worker(kind: str, seed: int, first: int, last: int, folder: str) -> None:
    """Judge mutants; each number is printed before, and each failure after."""
    import resource

    logging.disable()
    # Whatever libraries print is nobody's answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    mutants = Mutants(kind, seed, Path(folder))
    for path in mutants.seeds:
        mutants.read(path, [0])
    signal.signal(signal.SIGALRM, _alarm)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Before the machine runs out of memory.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 2 * PICTURE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    for index in range(first, last):
        print(json.dumps({"index": index}), file=answers)
        signal.alarm(SECONDS)
        try:
            failure = mutants.judge(index)
        except _Late:
            failure = mutants.failure(index, f"more than {SECONDS} s: {traceback.format_exc()}")
        signal.alarm(0)
        if failure is not None:
            print(json.dumps({"index": index, "what": failure.what}), file=answers)


def run(kind: str, seed: int, count: int, shown: Callable[[Failure], None]) -> None:
    """Judge mutants in a process, and behind one that it crashed on in the next."""
    first = 0
    while first < count:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            given = [kind, str(seed), str(first), str(count), folder]
            command = [sys.executable, "-m", "fuzz.mutants", "--worker", *given]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert process.stdout is not None
            said: dict[str, Any] = {}
            with process:
                # Libraries may be where no signal reaches them.
                timer = _end_after(process, 10 * SECONDS)
                for line in process.stdout:
                    timer.cancel()
                    timer = _end_after(process, 3 * SECONDS)
                    said = json.loads(line)
                    if "what" in said:
                        shown(Failure(kind, seed, **said))
                timer.cancel()
            index = int(said.get("index", first))
            if process.returncode == 0:
                return
            shown(Failure(kind, seed, index, f"the process ended with {process.returncode}"))
            first = index + 1


def _end_after(process: subprocess.Popen[str], seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def main() -> int:
    """Run as the environment says, and say what came of it."""
    get = os.environ.get
    seed = int(get("FUZZ_SEED") or secrets.randbelow(10**6))
    count = int(get("FUZZ_FILES") or 20_000)
    kinds = [each for each in (get("FUZZ_KINDS") or "").split(",") if each] or [*KINDS]
    log = Path(get("FUZZ_LOG") or Path(__file__).parents[2] / "build" / "fuzz.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    failures: Counter[str] = Counter()
    print(f"seed {seed}, {count:,} damaged files of each of {', '.join(kinds)}", flush=True)
    with log.open("w") as file:

        def shown(failure: Failure) -> None:
            failures[failure.kind] += 1
            print(failure, file=file, flush=True)
            if failures[failure.kind] <= 3:
                print(failure, flush=True)

        for kind in kinds:
            began = time.monotonic()
            run(kind, seed, count, shown)
            took = time.monotonic() - began
            print(f"{kind:10} {count:8,} in {took:.0f} s, {failures[kind]} wrong", flush=True)
    if failures:
        print(f"all of them: {log}")
    return int(bool(failures))


def again(kind: str, seed: int, index: int) -> int:
    """Judge one mutant here, and leave it in a folder."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    mutants = Mutants(kind, seed, folder)
    failure = mutants.judge(index)
    print(mutants.write(index), "fails:" if failure else "is as it should be")
    print(failure or "")
    return int(failure is not None)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--worker", kind, seed, first, last, folder]:
            worker(kind, int(seed), int(first), int(last), folder)
        case [kind, seed, index]:
            sys.exit(again(kind, int(seed), int(index)))
        case []:
            sys.exit(main())
        case _:
            sys.exit(__doc__)
