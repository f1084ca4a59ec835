"""Programs of kernel_zstd.cuh, kernel_lz4.cuh and kernel_cells.cuh, which decode stored chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: The threads of a block that puts elements in place.
THREADS = 256

#: The threads of a warp, which decodes a frame.
WARP = 32

#: The blocks of Zstd that a warp decodes, a lane for the sequences of each: with a warp for each,
#: all of them would have to issue as many instructions.
TOGETHER = 4

#: The numbers of axes of cells that kernels are compiled for.
DIMS = (2, 4, 8)

#: The bytes of elements of cells.
SIZES = (1, 2, 4, 8, 16)


def zstd_blocks() -> str:
    """Return the program that decodes literals and sequences of blocks of Zstd."""
    return _program(
        "zstd",
        2 * WARP,
        "const ZstdBlock* blocks, i64 n, const u8* stored, u8* literals, Sequence* sequences, "
        "ZstdEnd* ends",
        f"zstd_blocks<{TOGETHER}>(blocks, n, stored, literals, sequences, ends)",
    )


def zstd_frames() -> str:
    """Return the program that carries out the sequences of frames of Zstd."""
    return _program(
        "zstd",
        WARP,
        "const Frame* frames, const ZstdBlock* blocks, const u8* stored, const u8* literals, "
        "const Sequence* sequences, const ZstdEnd* ends, u8* outputs, int* failed",
        "zstd_frames(frames, blocks, stored, literals, sequences, ends, outputs, failed)",
    )


def lz4_blocks() -> str:
    """Return the program that decodes blocks of LZ4."""
    return _program(
        "lz4",
        WARP,
        "const Lz4Block* blocks, const u8* stored, u8* outputs, int* failed",
        "lz4_blocks(blocks, stored, outputs, failed)",
    )


def cells(size: int, dims: int) -> str:
    """Return the program that gathers elements of `size` bytes from cells of `dims` axes."""
    names = ("size", "first", "cell", "cells", "stride")
    axes = ", ".join(f"i64 {name}_{d}" for d in range(dims) for name in names)
    values = ", ".join("{" + ", ".join(f"{name}_{d}" for name in names) + "}" for d in range(dims))
    return _program(
        "cells",
        THREADS,
        f"const u64* cells, {axes}, i64 n, i64 elements, i64 block, int swapped, u64 fill_low, "
        "u64 fill_high, void* out",
        f"gather_cells<{size}, {THREADS}, {dims}>(cells, CellAxes<{dims}>{{{{{values}}}}}, n, "
        "elements, block, swapped, fill_low, fill_high, out)",
    )


def unpack(code: np.dtype[Any], number: np.dtype[Any], scale: str, offset: str) -> str:
    """Return the program that unpacks codes to numbers; `scale` and `offset` are "f4" or "f8"."""
    types = [ctype(np.dtype(dtype)) for dtype in (code, number, scale, offset)]
    return _program(
        "cells",
        THREADS,
        f"const {types[0]}* codes, i64 n, int has_fill, {types[0]} fill, int is_scaled, "
        f"{types[2]} scale, int is_shifted, {types[3]} offset, {types[1]}* out",
        f"unpack_codes<{', '.join(types)}, {THREADS}>(codes, n, has_fill, fill, is_scaled, scale, "
        "is_shifted, offset, out)",
    )


def programs() -> Iterator[str]:
    """Yield the programs that decode, and those that gather elements."""
    yield from (zstd_blocks(), zstd_frames(), lz4_blocks())
    for size in SIZES:
        yield from (cells(size, dims) for dims in DIMS)


def unpackings() -> Iterator[str]:
    """Yield every program that unpacks codes."""
    for code in ("i1", "u1", "i2", "u2", "i4", "u4"):
        for number in ("f4", "f8"):
            if np.dtype(code).itemsize * 2 <= np.dtype(number).itemsize:
                for scale in ("f4", "f8"):
                    for offset in ("f4", "f8"):
                        yield unpack(np.dtype(code), np.dtype(number), scale, offset)


def _program(kernel: str, threads: int, parameters: str, call: str) -> str:
    return f"""#include "kernel_{kernel}.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({threads})
entry({parameters}) {{
  {call};
}}
"""
