"""Look through the headers of Zstd frames (RFC 8878), so that a GPU decodes their blocks at a time.

::

    frame: header, block, block, ..., block        a row of `ZstdBlock` of kernel_zstd.cuh each

What is left out: frames without the size of their content, with a checksum or a dictionary, and
what several frames or none are. The host decodes those, and says what is wrong with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_coop.compiled.jit import jit

Array = np.ndarray[Any, Any]

#: The most bytes that a block makes.
_BLOCK_BYTES = 128 << 10
_MAGIC = 0xFD2FB528
#: The fields of a row, in the order of `ZstdBlock`.
FIELDS = (
    "source",
    "bytes",
    "kind",
    "frame",
    "literals_kind",
    "literals_from",
    "literals_bytes",
    "literals",
    "streams",
    "huffman",
    "sequences",
    "tables_from",
    "modes",
    "table_of_literals",
    "table_of_offsets",
    "table_of_matches",
    "literals_at",
    "sequences_at",
)
_RAW, _ONE, _COMPRESSED = 0, 1, 2
#: The result if a frame is left out.
LEFT_OUT = -1


def _number(data: Array, at: int, n: int) -> int:
    """Return the number of `n` bytes at a place."""
    number = 0
    for k in range(n):
        number |= int(data[at + k]) << (8 * k)
    return number


_number = jit(_number, allocates=False)


def _content(data: Array, at: int, end: int, nbytes: int) -> int:
    """Return where the first block of a frame begins; LEFT_OUT if it is not one of `nbytes`."""
    if end - at < 6 or _number(data, at, 4) != _MAGIC:
        return LEFT_OUT
    flags = int(data[at + 4])
    single, width = flags >> 5 & 1, flags >> 6
    # Reserved, checksum and dictionary; or a size that is not told.
    if flags & 0b1111 or (width == 0 and single == 0):
        return LEFT_OUT
    begin = at + 5 + (1 - single)
    length = 1 << width
    if begin + length > end:
        return LEFT_OUT
    size = _number(data, begin, length) + (256 if width == 1 else 0)
    return begin + length if size == nbytes else LEFT_OUT


_content = jit(_content, allocates=False)


def _literals(data: Array, at: int, end: int, row: Array) -> int:
    """Describe the literals of a block; return where its sequences begin, or LEFT_OUT."""
    if at + 1 > end:
        return LEFT_OUT
    first = int(data[at])
    kind, form = first & 3, first >> 2 & 3
    if kind < 2:
        head = 1 if form % 2 == 0 else 2 + form // 2
        if at + head > end:
            return LEFT_OUT
        n = _number(data, at, head) >> (3 if head == 1 else 4)
        stored, streams = (1 if kind == 1 else n), 1
    else:
        head, bits = (3, 10) if form < 2 else (2 + form, 6 + 4 * form)
        if at + head > end:
            return LEFT_OUT
        number = _number(data, at, head) >> 4
        n, stored = number & ((1 << bits) - 1), number >> bits
        streams = 1 if form == 0 else 4
    if n > _BLOCK_BYTES or at + head + stored > end:
        return LEFT_OUT
    row[4], row[6], row[7], row[8] = kind, stored, n, streams
    row[5] = at + head
    return at + head + stored


_literals = jit(_literals, allocates=False)


def _sequences(data: Array, at: int, end: int, row: Array) -> int:
    """Describe the sequences of a block; return where their tables begin, or LEFT_OUT."""
    if at >= end:
        return LEFT_OUT
    n, head = int(data[at]), 1
    if n >= 128:
        head = 2 if n < 255 else 3
        if at + head > end:
            return LEFT_OUT
        if n < 255:
            n = ((n - 128) << 8) + int(data[at + 1])
        else:
            n = _number(data, at + 1, 2) + 0x7F00
    at += head
    row[10] = n
    if n:
        if at >= end:
            return LEFT_OUT
        row[12] = data[at]
        at += 1
        if row[12] & 3:
            return LEFT_OUT
    elif at != end:
        return LEFT_OUT
    row[11] = at
    return at


_sequences = jit(_sequences, allocates=False)


def scan(
    data: Array, begins: Array, ends: Array, nbytes: int, table: Array, firsts: Array
) -> tuple[int, int, int]:
    """Describe the blocks of frames.

    Parameters
    ----------
    data : array of uint8
        Frames.
    begins, ends : array of int64
        Where each of them is.
    nbytes : int
        The size of the content of each.
    table : array of int64
        A row for each block, with `FIELDS`.
    firsts : array of int64
        The number of the first block of each frame, and of all blocks.

    Returns
    -------
    blocks : int
        Their number, which may be larger than that of rows; LEFT_OUT if a frame is none of these.
    literals, sequences : int
        How many bytes of decoded literals and how many sequences there are.
    """
    blocks = all_literals = all_sequences = 0
    spare = np.empty(len(FIELDS), np.int64)
    for f in range(begins.size):
        end = ends[f]
        firsts[f] = blocks
        at = _content(data, begins[f], end, nbytes)
        is_last = at < 0
        if is_last:
            return LEFT_OUT, 0, 0
        # The blocks that have the tables that later ones may use.
        huffman = literals_table = offsets_table = matches_table = -1
        literals = sequences = 0
        while not is_last:
            if at + 3 > end:
                return LEFT_OUT, 0, 0
            head = _number(data, at, 3)
            at += 3
            is_last, kind, size = head & 1 == 1, head >> 1 & 3, head >> 3
            stored = 1 if kind == _ONE else size
            if kind > _COMPRESSED or size > _BLOCK_BYTES or at + stored > end:
                return LEFT_OUT, 0, 0
            row = table[blocks] if blocks < table.shape[0] else spare
            row[:] = 0
            row[0], row[1], row[2], row[3] = at, stored, kind, f
            row[7] = size
            if kind == _COMPRESSED:
                behind = _literals(data, at, at + stored, row)
                if behind < 0 or _sequences(data, behind, at + stored, row) < 0:
                    return LEFT_OUT, 0, 0
                row[5] -= at
                row[11] -= at
                if row[4] == 2:
                    huffman = blocks
                if row[4] >= 2 and huffman < 0:
                    return LEFT_OUT, 0, 0
                row[9] = huffman
                if row[10]:
                    modes = row[12]
                    literals_table = blocks if modes >> 6 & 3 != 3 else literals_table
                    offsets_table = blocks if modes >> 4 & 3 != 3 else offsets_table
                    matches_table = blocks if modes >> 2 & 3 != 3 else matches_table
                    if min(literals_table, offsets_table, matches_table) < 0:
                        return LEFT_OUT, 0, 0
                row[13], row[14], row[15] = literals_table, offsets_table, matches_table
                row[16], row[17] = all_literals, all_sequences
                if row[4] >= 2:
                    all_literals += row[7]
                all_sequences += row[10]
                sequences += row[10]
            literals += row[7]
            # No frame makes more than its output.
            if literals + 3 * sequences > nbytes:
                return LEFT_OUT, 0, 0
            at += stored
            blocks += 1
        if at != end:
            return LEFT_OUT, 0, 0
    firsts[begins.size] = blocks
    return blocks, all_literals, all_sequences


scan = jit(scan, allocates=True)
