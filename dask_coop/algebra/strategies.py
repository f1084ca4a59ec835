"""Strategies: the algorithms for CuPy chunks, one of which a user may name.

::

    coop.strategy.scan --read when the graph is built--> Operation.strategy --in the task--> kernels

Each table below is one family. "auto" picks the row that is expected to be the fastest for the GPU,
the dtype and the shape of a chunk. `dask_coop.chunks.cupy` has the function of each row, and says
why a row does not apply. N is the number of bytes of the elements.
"""

from __future__ import annotations

from typing import NamedTuple

#: The name that leaves the choice to the library.
AUTO = "auto"

#: The one launch over several chunks: a `Node` and collectives use it; tasks cannot.
MULTICHUNK = "multi-chunk"


class Strategy(NamedTuple):
    """A row of a family.

    Attributes
    ----------
    idea : str
        How it works.
    moves : str
        The bytes that it reads and writes.
    wins : str
        Where it is the fastest.
    """

    idea: str
    moves: str
    wins: str


Family = dict[str, Strategy]

SCAN: Family = {
    "lines": Strategy(
        "A thread, a warp or a block scans a line whole.",
        "2N",
        "Many lines, and short ones.",
    ),
    "single-pass": Strategy(
        "All blocks share a line in one launch; totals travel between them as tagged words while "
        "the next tiles load.",
        "2N",
        "Few long lines of the last axis, on compute capability 9.0 and newer.",
    ),
    "two-level": Strategy(
        "Reduce-then-scan of as many tiles as fill the GPU: three launches.",
        "3N",
        "Few long lines of another axis, or with segments, or on older GPUs.",
    ),
    "cooperative": Strategy(
        "The two levels in one launch, whose blocks meet at a barrier of the whole grid.",
        "3N",
        "A line of about a million elements; next to single-pass up to 2^24.",
    ),
    "reduce-then-scan": Strategy(
        "Tiles of 8,192 elements are reduced, their totals scanned in the same way, and the tiles "
        "scanned from there.",
        "3N",
        "Nowhere; next to single-pass from 2^26 elements on.",
    ),
    "scan-then-fan": Strategy(
        "Tiles of 8,192 elements are scanned, their totals scanned in the same way, and these "
        "added to all results.",
        "4N",
        "Nowhere.",
    ),
    MULTICHUNK: Strategy(
        "One launch scans all chunks on one GPU or several; blocks meet at a barrier of all GPUs.",
        "3N",
        "Several chunks of one axis, by a Node or a collective.",
    ),
}

HISTOGRAM: Family = {
    "bytes": Strategy(
        "Samples of one byte are counted by value; a bin is looked up once a value.",
        "N",
        "Samples of one byte.",
    ),
    "shared": Strategy(
        "Each block counts all bins by 32 bits in its shared memory.",
        "N",
        "Up to 58,110 bins, and weights in up to 19,000.",
    ),
    "packed": Strategy(
        "Counters of 16 bits, two a word, which carry into the table; more bins take more passes.",
        "N",
        "Up to 232,000 bins of 2^26 samples and more.",
    ),
    "split": Strategy(
        "Neighbouring blocks read the same samples and share the bins.",
        "N",
        "Up to 116,000 bins of fewer samples, and weights in up to 112,000.",
    ),
    "distributed": Strategy(
        "The blocks of a cluster share one table, spread over their shared memory: as few blocks "
        "as hold the bins, 2 to 16.",
        "N",
        "Nowhere; needs compute capability 9.0.",
    ),
    "partition": Strategy(
        "Samples are dealt to buckets of 32,768 bins, and these counted one by one.",
        "2N",
        "Up to 16,777,216 bins of many samples.",
    ),
    "global": Strategy(
        "Counters are in global memory, those of crowded bins in a cache in shared memory.",
        "N",
        "Few samples for more bins, and more bins than all others take.",
    ),
    MULTICHUNK: Strategy(
        "One launch counts all chunks on one GPU or several into one table.",
        "N",
        "Several chunks and up to 116,160 bins, by a Node or a collective.",
    ),
}

TRANSPOSE: Family = {
    "tiles": Strategy(
        "Square tiles pass through shared memory, and are read and written by vectors.",
        "2N",
        "Two long axes that are exchanged.",
    ),
    "boxes": Strategy(
        "Boxes of up to three axes pass through shared memory.",
        "2N",
        "Short axes, short rows and strided elements.",
    ),
    "rows": Strategy(
        "Contiguous rows that stay rows are copied by words.",
        "2N",
        "Rows of 32 words and more.",
    ),
}

MATMUL: Family = {
    "library": Strategy(
        "CuPy's matmul, which is cuBLAS for floats.",
        "both operands, the product",
        "plus_times of floats and complex numbers.",
    ),
    "bytes": Strategy(
        "Integers are split into bytes, which tensor cores multiply.",
        "both operands three times, the product",
        "plus_times of many integers of up to 4 bytes, on compute capability 8.0 and newer.",
    ),
    "tiles": Strategy(
        "A block makes a tile of 128 x 128 of the product, from slices in shared memory.",
        "both operands once for 128 columns or rows, the product",
        "Other semirings, and all other integers.",
    ),
}


def refusal(family: str, strategy: str, reason: str) -> ValueError:
    """Return the error of a task whose chunk a strategy does not take."""
    return ValueError(f"strategy {strategy!r} {reason}; set coop.strategy.{family} to 'auto'")
