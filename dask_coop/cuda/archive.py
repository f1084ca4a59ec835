"""Keep programs that were compiled ahead in one file of the package.

A wheel brings the file, and ``python -m dask_coop warm --archive`` makes it in a checkout. It is a
zip of blocks of cubins, each compressed by LZMA, as neighbours are much alike, and an index::

    index.json   {"toolkit": 12, "programs": {key: [block, start, stop, SHA-256]}}
    0, 1, ...    some cubins, one after another

A key has the source, the headers and the architecture, and not the version of NVRTC: a driver runs
the cubins of its own CUDA major version and of older ones. A GPU runs those of its architecture and
of older ones of the same major number. Only the file in the package's folder is read: whoever can
change it can change the modules, too. The digests tell damage; a damaged file is not used.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

#: Uncompressed bytes of a block: few for a quick look-up, and enough neighbours to compress.
_BLOCK_BYTES = 1 << 19

_INDEX = "index.json"

#: Architectures of embedded GPUs, which run no cubins of others.
_EMBEDDED = ("sm_72", "sm_87", "sm_101")

#: The exceptions of damaged archives, and of a Python without LZMA.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
)


def file() -> Path:
    """Return the path of the package's archive, which may be missing."""
    return Path(__file__).with_name("programs.zip")


def key_of(source: str, headers: bytes, arch: str) -> str:
    """Return the key of a program: the digest of source, headers and architecture."""
    return hashlib.sha256(b"\0".join((headers, arch.encode(), source.encode()))).hexdigest()


def get(source: str, headers: bytes, arch: str) -> bytes | None:
    """Return the cubin of a program from the package's archive, or None if it has none."""
    path = file()
    try:
        toolkit, programs = _index(path)
        if not programs or toolkit > _driver():
            return None
        for near in _compatible(arch):
            if (place := programs.get(key_of(source, headers, near))) is not None:
                number, start, stop, digest = place
                cubin = _block(path, str(number))[start:stop]
                if hashlib.sha256(cubin).hexdigest() == digest:
                    return cubin
                _warn(path, "a program has another digest")
    except _DAMAGE as error:
        _warn(path, error)
    return None


def write(path: Path, programs: Iterable[tuple[str, bytes]], toolkit: int) -> None:
    """Write an archive of keys and cubins that NVRTC of a CUDA major version has made."""
    index: dict[str, Any] = {}
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_LZMA) as archive:
            for number, block in enumerate(_blocks(programs)):
                start = 0
                for key, cubin in block:
                    stop = start + len(cubin)
                    index[key] = [number, start, stop, hashlib.sha256(cubin).hexdigest()]
                    start = stop
                archive.writestr(_member(str(number)), b"".join(cubin for _, cubin in block))
            text = json.dumps({"toolkit": toolkit, "programs": index})
            archive.writestr(_member(_INDEX), text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member without a time, so that the same programs make the same file."""
    member = zipfile.ZipInfo(name)
    member.compress_type = zipfile.ZIP_LZMA
    return member


def _blocks(programs: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    block, nbytes = list[tuple[str, bytes]](), 0
    for key, cubin in programs:
        block.append((key, cubin))
        nbytes += len(cubin)
        if nbytes >= _BLOCK_BYTES:
            yield block
            block, nbytes = [], 0
    if block:
        yield block


def _compatible(arch: str) -> Iterator[str]:
    """Yield an architecture and the older ones whose cubins run on it, newest first."""
    yield arch
    if (match := re.fullmatch(r"sm_(\d+)(\d)", arch)) and arch not in _EMBEDDED:
        yield from (f"sm_{match[1]}{minor}" for minor in range(int(match[2]) - 1, -1, -1))


@cache
def _index(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the CUDA major version and the places of the programs of an archive."""
    if not path.is_file():
        return 0, {}
    with zipfile.ZipFile(path) as archive:
        index = json.loads(archive.read(_INDEX))
    return int(index["toolkit"]), dict(index["programs"])


@lru_cache(maxsize=8)
def _block(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


@cache
def _driver() -> float:
    """Return the CUDA major version of the driver; infinity without one, as nothing is loaded."""
    from cuda.bindings import driver

    try:
        error, version = driver.cuDriverGetVersion()
    except RuntimeError:  # cuda-bindings raises it if libcuda cannot be loaded
        return float("inf")
    return float("inf") if error != driver.CUresult.CUDA_SUCCESS else version // 1000


def _warn(path: Path, reason: object) -> None:
    _warn_once(
        f"{path} is damaged and not used: {reason}; install the package again, or remove the "
        "file. Until then programs are compiled"
    )


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
