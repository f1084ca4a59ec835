"""Kernels compiled for the host, and modules that launch those of one thread on arrays of NumPy."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from dask_coop.cuda.compiler import kernels_folder

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
_HEADERS = (
    *("sequences.cuh", "kernel_zstd.cuh", "kernel_lz4.cuh", "kernel_cells.cuh"),
    *("order_keys.cuh", "kernel_window_order.cuh", "kernel_deviations.cuh"),
)


def build(folder: Path, program: str = "frames") -> Any:
    """Return the library of the kernels of a program, compiled in a folder."""
    for header in _HEADERS:
        # The program has the memory that the launch would.
        text = (kernels_folder() / header).read_text().replace("extern __shared__", "extern")
        (folder / header).write_text(text)
    for file in Path(__file__).parent.iterdir():
        if file.suffix in (".cpp", ".cuh"):
            shutil.copy(file, folder)
    library = folder / f"{program}.so"
    # Unknown pragmas are those of nvcc.
    options = ("-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-Wno-unknown-pragmas")
    source = str(folder / f"{program}.cpp")
    subprocess.run([str(COMPILER), *options, source, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


class Array(np.ndarray):  # type: ignore[type-arg]
    """An array of the host that has the attributes of CuPy's."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        """The address."""
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> Any:
        """Return it as NumPy's."""
        return np.array(self)


class _Event:
    def __init__(self, **options: Any) -> None: ...

    def record(self, stream: Any = None) -> _Event:
        return self

    def synchronize(self) -> None: ...


class _Stream:
    ptr = 0

    def __init__(self, **options: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def record(self) -> _Event:
        return _Event()

    def wait_event(self, event: Any) -> None: ...


def modules(library: Any) -> dict[str, Any]:
    """Return modules by name: CuPy, and those of this library that launch kernels."""

    def copy(target: int, source: int, nbytes: int, *options: Any) -> None:
        ctypes.memmove(target, source, nbytes)

    def launch(source: str, blocks: int, threads: int, *arguments: Any) -> None:
        addresses = [ctypes.c_void_p(int(a)) for a in arguments]
        n = ctypes.c_longlong(blocks)
        if "zstd_blocks<" in source:
            table, count, *others = addresses
            library.zstd_blocks_of(table, ctypes.c_longlong(count.value or 0), *others)
        elif "zstd_frames(" in source:
            library.zstd_frames_of(addresses[0], n, *addresses[1:])
        elif "lz4_blocks(" in source:
            library.lz4_blocks_of(addresses[0], n, *addresses[1:])
        else:
            size = int(re.search(r"gather_cells<(\d+)", source).group(1))  # type: ignore[union-attr]
            cells, *axes = arguments[:-7]
            rows = np.array(axes, "i8").reshape(-1, 5)
            padding = np.array([[1, 0, 1, 1, 0]] * (8 - len(rows)), "i8").reshape(-1, 5)
            padded = np.concatenate([padding, rows])
            *numbers, low, high, out = (int(a) for a in arguments[-7:])
            library.cells_of(
                size,
                ctypes.c_void_p(int(cells)),
                ctypes.c_void_p(padded.ctypes.data),
                *map(ctypes.c_longlong, numbers[:3]),
                numbers[3],
                ctypes.c_ulonglong(low),
                ctypes.c_ulonglong(high),
                ctypes.c_void_p(out),
            )

    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        memcpyAsync=copy,
        memcpyHostToDevice=1,
        CUDARuntimeError=RuntimeError,
    )
    cuda = SimpleNamespace(
        Event=_Event,
        Stream=_Stream,
        PinnedMemory=lambda nbytes: np.zeros(nbytes, "u1"),
        PinnedMemoryPointer=lambda memory, offset: memory,
        get_current_stream=_Stream,
        runtime=runtime,
    )
    cupy, cupy_cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    vars(cupy_cuda).update(vars(cuda))
    vars(cupy).update(
        ndarray=Array,
        cuda=cupy_cuda,
        empty=lambda shape, dtype: np.empty(shape, dtype).view(Array),
        asarray=lambda x: np.array(x).view(Array),
    )
    ours = {name: ModuleType(f"dask_coop.cuda.{name}") for name in ("launch", "transfer")}
    ours["launch"].launch = launch  # type: ignore[attr-defined]
    ours["transfer"].CLOSED_TOO = []  # type: ignore[attr-defined]
    return {
        "cupy": cupy,
        "cupy.cuda": cupy_cuda,
        **{f"dask_coop.cuda.{name}": module for name, module in ours.items()},
    }
