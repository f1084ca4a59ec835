"""Cases of arrays in files, of any number of axes, dtype and byte order."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.tokenize import tokenize

import dask_coop as dc
from dask_coop.files.gpu import rules
from fuzz import draw
from fuzz.case import Case, show_array
from fuzz.exact import Expected


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-")


@dataclass(frozen=True)
class OfFile(Case):
    """An array that is written to a file first; its layout tells in which byte order."""

    @property
    def order(self) -> str:
        """The byte order."""
        return ">" if self.inputs[0].layout == ">" else "<"

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return the array of the file."""
        array = self.x.astype(self.x.dtype.newbyteorder(self.order))
        described = f"{array.dtype.str} {array.shape}".encode() + array.tobytes()
        path = Path(_folder().name) / f"{hashlib.sha256(described).hexdigest()}.npy"
        if not path.exists():
            np.save(path, array)
        return (dc.from_npy(path, self.inputs[0].chunks),)

    def code(self, xp: Any) -> str:
        """Return that as a line of Python."""
        array = show_array(self.x, self.order)
        return f"np.save('x.npy', {array}) or dc.from_npy('x.npy', {self.inputs[0].chunks})"


@cache
def _dataset(path: Path) -> Any:
    """Return a dataset of a file that stays open."""
    import h5py

    return h5py.File(path, "r")["x"]


@dataclass(frozen=True)
class OfDataset(OfFile):
    """An array that is written to an HDF5 file first, in chunks and by filters that differ."""

    def _options(self, digest: bytes) -> dict[str, Any]:
        """Return how it is stored; without elements there are no chunks."""
        if not self.x.size or digest[0] < 64:
            return {}
        sizes = zip(self.x.shape, digest[1:], strict=False)
        chunks = tuple(1 + byte % n for n, byte in sizes)
        filters = {"shuffle": digest[0] & 1, "fletcher32": digest[0] & 2}
        packed = {"compression": "gzip"} if digest[0] & 4 else {}
        return {"chunks": chunks, **packed, **{k: bool(v) for k, v in filters.items()}}

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return the array of the dataset, as our functions read it."""
        import h5py

        array = self.x.astype(self.x.dtype.newbyteorder(self.order))
        described = f"{array.dtype.str} {array.shape}".encode() + array.tobytes()
        digest = hashlib.sha256(described).digest()
        path = Path(_folder().name) / f"{digest.hex()}.h5"
        if not path.exists():
            with h5py.File(path, "w") as file:
                file.create_dataset("x", data=array, **self._options(digest))
        chunks = self.inputs[0].chunks
        # By default Dask names such arrays anew each time.
        name = f"dataset-{tokenize(digest, chunks)}"
        return (dc.to_host(da.from_array(_dataset(path), chunks, name=name)),)

    def code(self, xp: Any) -> str:
        """Return that as a line of Python."""
        array = show_array(self.x, self.order)
        chunks = self.inputs[0].chunks
        written = f"h5py.File('x.h5', 'w').create_dataset('x', data={array}).file.close()"
        return f"{written} or dc.to_host(da.from_array(h5py.File('x.h5')['x'], {chunks}))"


@dataclass(frozen=True)
class OfZarr(OfFile):
    """An array that Zarr writes first, in chunks and by codecs that differ; a GPU decodes any."""

    def _options(self, digest: bytes) -> dict[str, Any]:
        """Return how it is stored."""
        version = 2 + digest[0] % 2
        codecs = [*_CODECS[version], *_OF_GPUS[version]]
        chunks = tuple(
            1 + byte % max(n, 1) for n, byte in zip(self.x.shape, digest[2:], strict=False)
        )
        options: dict[str, Any] = {"chunks": chunks, "compressors": codecs[digest[1] % len(codecs)]}
        if version == 3 and chunks and digest[0] & 2:
            options["shards"] = tuple(2 * n for n in chunks)
        if version == 2 and digest[0] & 4:
            options["order"] = "F"
        return {"zarr_format": version, **options}

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return the stored array, by way of a GPU for its chunks."""
        import zarr

        described = f"{self.x.dtype.str} {self.x.shape}".encode() + self.x.tobytes()
        digest = hashlib.sha256(described).digest()
        path = Path(_folder().name) / f"{digest.hex()}.zarr"
        if not path.exists():
            zarr.create_array(path, data=self.x, **self._options(digest))
        x = dc.from_zarr(str(path), chunks=self.inputs[0].chunks)
        if xp is not np:
            # Otherwise the host would decode arrays that are so small.
            rules.fewest_bytes = lambda chain: 1
            x = dc.to_host(dc.to_gpu(x, keep=False))
        return (x,)

    def code(self, xp: Any) -> str:
        """Return that as a line of Python."""
        written = f"zarr.create_array('x.zarr', data={show_array(self.x)})"
        return f"{written} and dc.from_zarr('x.zarr', chunks={self.inputs[0].chunks})"


def draw_zarr(rng: draw.Generator) -> Case:
    """Draw an array and its chunks."""
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), draw.shape(rng, least=1))
    return OfZarr("stored", "from_zarr", (draw.operand(rng, array),))


def draw_dataset(rng: draw.Generator) -> Case:
    """Draw an array and its chunks."""
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), draw.shape(rng, least=1))
    return OfDataset("dataset", "to_host", (draw.operand(rng, array),))


def draw_file(rng: draw.Generator) -> Case:
    """Draw an array and its chunks."""
    sides = () if draw.chance(rng, 0.2) else draw.shape(rng)
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), sides)
    return OfFile("file", "from_npy", (draw.operand(rng, array),))


def expect_file(case: Case) -> list[Expected]:
    """Return the array."""
    return [Expected(case.x, chunks=case.inputs[0].chunks, host=True)]


@dataclass(frozen=True)
class ToZarr(Case):
    """An array that is written and read again; what is stored are the options."""

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return the stored array, whose tasks write it first."""
        path = Path(tempfile.mkdtemp(dir=_folder().name)) / "x.zarr"
        x = self.inputs[0].build(xp)
        return (dc.to_zarr(x, path, compute=False, return_stored=True, **self.options),)

    def code(self, xp: Any) -> str:
        """Return that as a line of Python."""
        where = {"url": "x.zarr", "mode": "w", "compute": False, "return_stored": True}
        call = replace(self, options={**where, **self.options})
        return super(ToZarr, call).code(xp)


#: Codecs of the two formats of Zarr; any array may have them.
_CODECS: dict[int, list[dict[str, Any] | None]] = {
    2: [None, {"id": "zstd", "level": 1}, {"id": "lz4"}, {"id": "zlib", "level": 1}],
    3: [
        None,
        {"name": "zstd", "configuration": {"level": 1, "checksum": True}},
        {"name": "gzip", "configuration": {"level": 1}},
        {"name": "crc32c"},
    ],
}


#: More codecs, which kernels decode.
_OF_GPUS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"id": "blosc", "cname": "lz4", "shuffle": 1, "clevel": 5, "blocksize": 0},
        {"id": "blosc", "cname": "zstd", "shuffle": 0, "clevel": 3, "blocksize": 0},
    ],
    3: [
        {"name": "zstd", "configuration": {"level": 9, "checksum": False}},
        {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
    ],
}


def draw_written(rng: draw.Generator) -> Case:
    """Draw an array and how it is stored."""
    sides = () if draw.chance(rng, 0.1) else draw.shape(rng)
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), sides)
    version = draw.pick(rng, [2, 3])
    options: dict[str, Any] = {"zarr_format": version}
    if draw.chance(rng, 0.8):
        options["compressors"] = draw.pick(rng, _CODECS[version])
    if draw.chance(rng, 0.6):
        stored = options["chunks"] = tuple(int(rng.integers(1, n + 3)) for n in sides)
        if version == 3 and draw.chance(rng, 0.5):
            options["shards"] = tuple(n * int(rng.integers(1, 4)) for n in stored)
    if draw.chance(rng, 0.3) and array.dtype.kind != "b":
        options["fill_value"] = 1
    return ToZarr("written", "to_zarr", (draw.operand(rng, array),), options=options)


def expect_written(case: Case) -> list[Expected]:
    """Return the array."""
    return [Expected(case.x, host=True)]
