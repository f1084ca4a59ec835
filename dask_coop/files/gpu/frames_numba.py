"""Look through the headers of frames, so that a GPU decodes many blocks at a time.

::

    chunk of Blosc    header, blocks of LZ4 or frames of Zstd      rows of frames
    frame of Zstd     header, block, block, ..., block             rows of `ZstdBlock`

A frame, which may be a block of LZ4, has a row: where it begins and ends, where its content goes,
of how many bytes this is, and whether it is stored as it is. Left out are frames of Zstd (RFC 8878)
without the size of their content, with a checksum or a dictionary, and bytes that are none or more
than one; and chunks of Blosc that differ in how they are shuffled. The host decodes those, and says
why if it cannot.
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
#: The columns of a frame.
BEGIN, END, TARGET, SIZE, IS_RAW = range(5)
#: Blosc: bytes of a header, and bits of its flags.
_HEADER, _VERSION = 16, 2
_SHUFFLED, _AS_IT_IS, _BITS_SHUFFLED, _IS_WHOLE = 1, 2, 4, 16
#: Blosc: the codecs of streams, the most streams of a block, and the fewest elements of one.
LZ4, ZSTD = 1, 4
_MOST_STREAMS, _FEWEST = 16, 128
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
        n = (n - 128 << 8) + int(data[at + 1]) if n < 255 else _number(data, at + 1, 2) + 0x7F00
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


def blocks_of(data: Array, frames: Array, table: Array, firsts: Array) -> tuple[int, int, int]:
    """Describe the blocks of frames of Zstd.

    Parameters
    ----------
    data : array of uint8
        Frames.
    frames : array of int64
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
    for f in range(frames.shape[0]):
        at, end, nbytes = frames[f, BEGIN], frames[f, END], frames[f, SIZE]
        firsts[f] = blocks
        if frames[f, IS_RAW]:
            if end - at != nbytes:
                return LEFT_OUT, 0, 0
            if blocks < table.shape[0]:
                row = table[blocks]
                row[:] = 0
                row[0], row[1], row[3], row[7] = at, nbytes, f, nbytes
            blocks += 1
            continue
        at = _content(data, at, end, nbytes)
        if at < 0:
            return LEFT_OUT, 0, 0
        is_last = False
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
    firsts[frames.shape[0]] = blocks
    return blocks, all_literals, all_sequences


blocks_of = jit(blocks_of)


def streams_of(data: Array, chunks: Array, width: int, frames: Array) -> tuple[int, int, int]:
    """Describe the streams of chunks of Blosc, whose rows are frames, too.

    Parameters
    ----------
    data : array of uint8
    chunks : array of int64
        A row for each chunk.
    width : int
        The bytes of an element.
    frames : array of int64
        A row for each stream.

    Returns
    -------
    streams : int
        Their number, which may be larger than that of rows; LEFT_OUT if chunks are none of these.
    codec : int
        That of all streams.
    block : int
        How many elements are shuffled together; 0 if none are.
    """
    count, codec, block = 0, LEFT_OUT, LEFT_OUT
    for c in range(chunks.shape[0]):
        begin, end, target = chunks[c, BEGIN], chunks[c, END], chunks[c, TARGET]
        if end - begin < _HEADER:
            return LEFT_OUT, 0, 0
        flags, size = int(data[begin + 2]), int(data[begin + 3])
        nbytes, step = _number(data, begin + 4, 4), _number(data, begin + 8, 4)
        stored = _number(data, begin + 12, 4)
        is_known = data[begin] == _VERSION and stored <= end - begin and size > 0 and step > 0
        if nbytes != chunks[c, SIZE] or not is_known:
            return LEFT_OUT, 0, 0
        is_raw = flags & _AS_IT_IS
        is_shuffled = flags & _SHUFFLED and size > 1 and not is_raw
        if (flags & _BITS_SHUFFLED and not is_raw) or (is_shuffled and size != width):
            return LEFT_OUT, 0, 0
        elements = step // size if is_shuffled else 0
        if (is_shuffled and step % size) or (block != LEFT_OUT and block != elements):
            return LEFT_OUT, 0, 0
        if not is_raw and codec != LEFT_OUT and codec != flags >> 5:
            return LEFT_OUT, 0, 0
        block = elements
        if is_raw:
            if stored != _HEADER + nbytes:
                return LEFT_OUT, 0, 0
            if count < frames.shape[0]:
                row = frames[count]
                row[BEGIN], row[END] = begin + _HEADER, begin + stored
                row[TARGET], row[SIZE], row[IS_RAW] = target, nbytes, 1
            count += 1
            continue
        codec = flags >> 5
        blocks = -(-nbytes // step)
        if _HEADER + 4 * blocks > stored:
            return LEFT_OUT, 0, 0
        for b in range(blocks):
            at = begin + _number(data, begin + _HEADER + 4 * b, 4)
            n = min(step, nbytes - b * step)
            is_split = not flags & _IS_WHOLE and size <= _MOST_STREAMS
            streams = size if is_split and step // size >= _FEWEST and n == step else 1
            # Streams of equal length would not cover the last bytes of the block.
            if n % streams:
                return LEFT_OUT, 0, 0
            each = n // streams
            for k in range(streams):
                if at < begin or at + 4 > begin + stored:
                    return LEFT_OUT, 0, 0
                length = _number(data, at, 4)
                at += 4
                if length > begin + stored - at:
                    return LEFT_OUT, 0, 0
                if count < frames.shape[0]:
                    row = frames[count]
                    row[BEGIN], row[END] = at, at + length
                    row[TARGET], row[SIZE] = target + b * step + k * each, each
                    row[IS_RAW] = length == each
                at += length
                count += 1
    return count, codec, block


streams_of = jit(streams_of, allocates=False)
