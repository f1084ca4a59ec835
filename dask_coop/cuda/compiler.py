"""Compile kernels by NVRTC through cuda.core, cached on disk.

A kernel is a *program*: a few generated lines (see `dask_coop.cuda.programs`) that include a header
of kernels/ and instantiate one of its templates as ``extern "C" __global__ void entry``. Common
programs come compiled in the package's archive (see `dask_coop.cuda.archive`). The cubins of others
are kept on disk (see `dask_coop.cuda.disk_cache`) under a key of the source, the options, the
compiler's version and the text of every header, so an edited header is always compiled again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from dask_coop.compiled.waits import compiling
from dask_coop.cuda import archive, disk_cache
from dask_coop.meters import COMPILATIONS, count, timed

ENTRY = "entry"

#: The oldest architecture that kernels are written for: Volta.
_OLDEST = 70


@cache
def kernels_folder() -> Path:
    """Return the folder of the CUDA headers: inside the package, else beside it.

    Raises
    ------
    FileNotFoundError
        If neither folder has them; the message names both.
    """
    package = Path(__file__).resolve().parent.parent
    folders = (package / "kernels", package.parent / "kernels")
    for folder in folders:
        if (folder / "config.cuh").is_file():
            return folder
    raise FileNotFoundError(
        f"dask_coop's CUDA sources are neither in {folders[0]} nor in {folders[1]}; "
        "install the package again"
    )


@cache
def _headers_digest() -> bytes:
    digest = hashlib.sha256()
    for header in sorted(kernels_folder().glob("*.cuh")):
        digest.update(header.name.encode() + b"\0" + header.read_bytes() + b"\0")
    return digest.digest()


def compile_program(source: str, arch: str) -> bytes:
    """Compile `source` for `arch`, without the cache.

    Parameters
    ----------
    source : str
        CUDA C++ that may include the headers of kernels/.
    arch : str
        A real architecture, such as "sm_90".

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    RuntimeError
        If the source does not compile; the message has the compiler's log and the source.
    """
    from cuda.core import Program

    program = Program(source, "c++", options=_options(arch))
    count(COMPILATIONS)
    try:
        with timed(COMPILATIONS), compiling("kernels", _where):
            return bytes(program.compile("cubin").code)
    except Exception as error:
        lines = enumerate(source.splitlines(), 1)
        listing = "\n".join(f"{number:3}  {line}" for number, line in lines)
        raise RuntimeError(f"this does not compile for {arch}:\n{listing}\n\n{error}") from error


def _where() -> str:
    folder = disk_cache.describe()
    return "kept nowhere" if folder.startswith("none: ") else f"kept in {folder}"


def key_of(source: str, options: Any) -> bytes:
    """Return the cache key of a program: source, options, compiler version and all headers."""
    from cuda.core.utils import make_program_cache_key

    return bytes(
        make_program_cache_key(
            code=source,
            code_type="c++",
            options=options,
            target_type="cubin",
            extra_digest=_headers_digest(),
        )
    )


def load_or_compile(source: str, arch: str) -> bytes:
    """Return the cubin of `source` for `arch`, from the archive or the disk cache if possible."""
    cubin = archive.get(source, _headers_digest(), arch)
    return cached(source, arch) if cubin is None else cubin


def cached(source: str, arch: str) -> bytes:
    """Return the cubin of `source` for `arch`, from the disk cache if possible."""
    return disk_cache.get(key_of(source, _options(arch)), lambda: compile_program(source, arch))


def keep(source: str, arch: str) -> bool:
    """Compile `source` for `arch` unless it is on disk; return whether it compiled."""
    cubins: list[bytes] = []

    def make() -> bytes:
        cubins.append(compile_program(source, arch))
        return cubins[0]

    if archive.get(source, _headers_digest(), arch) is None:
        disk_cache.get(key_of(source, _options(arch)), make)
    return bool(cubins)


def write_archive(path: Path, programs: Iterable[tuple[str, str]]) -> None:
    """Write an archive of the programs of sources and architectures, which the disk cache has."""
    from cuda.bindings import nvrtc

    cubins = (
        (archive.key_of(source, _headers_digest(), arch), cached(source, arch))
        for source, arch in programs
    )
    archive.write(path, cubins, int(nvrtc.nvrtcVersion()[1]))


def architectures() -> list[str]:
    """Return the architectures that kernels can be compiled for, such as "sm_90".

    Raises
    ------
    ImportError
        If there is no compiler.
    """
    # Import it here: concurrent first imports of it fail.
    import cuda.core  # noqa: F401
    from cuda.bindings import nvrtc

    try:
        _, numbers = nvrtc.nvrtcGetSupportedArchs()
    except RuntimeError as error:  # cuda-bindings raises it if NVRTC cannot be loaded
        raise ImportError(f"NVRTC cannot be loaded: {error}") from error
    return [f"sm_{number}" for number in numbers if number >= _OLDEST]


def _options(arch: str) -> Any:
    from cuda.core import ProgramOptions

    return ProgramOptions(
        name="dask_coop",
        arch=arch,
        std="c++17",
        include_path=[str(kernels_folder())],
    )
