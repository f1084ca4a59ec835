"""Read the chunks of a round on a worker with no more memory than a graph would need.

Chunks in memory are used where they are. A thread reads a spilled chunk when it needs it, leaves
the file on disk, and drops the chunk before it reads the next::

    thread 0: x0 (in memory) -- x1 (read, dropped) -- x2 (read, dropped) -- ...
    thread 1: x7 (in memory) -- x8 (in memory) -- ...

If a scan's results do not fit beside the chunks, all of its chunks are read one by one like this,
and the worker spills others as results arrive. If even that does not fit, well before the worker
would pause, the round declines. Between two chunks a thread checks whether its call is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from dask.utils import format_bytes
from distributed import Worker

from dask_coop import chunks
from dask_coop.cluster.calls import Call
from dask_coop.cluster.jobs import Blocks, as_declared
from dask_coop.cluster.private import relying
from dask_coop.errors import Absent

#: Memory is not checked for requests of no more bytes than this.
FREE_BYTES = 1 << 20

#: Chunks held while one is read: the bytes of its file, itself, and the one before it.
READ = 3

#: The fraction of memory at which a worker counts as paused if it is configured not to pause.
PAUSE = 0.8


class Memory:
    """The memory that a worker's process may still use before distributed would pause it.

    Parameters
    ----------
    worker : Worker
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._data = worker, worker.data

    def left(self) -> float:
        """Return the bytes up to the limit, halfway between where it spills and where it pauses."""
        manager = self._worker.memory_manager
        if not manager.memory_limit:
            return math.inf
        pause = manager.memory_pause_fraction or PAUSE
        spill = min(manager.memory_spill_fraction or pause, pause)
        most = manager.memory_limit * (spill + pause) / 2
        return float(most - self._worker.monitor.get_process_memory())

    def make(self, nbytes: float) -> None:
        """Spill chunks until there is room for `nbytes`.

        Raises
        ------
        Absent
            If there is still no room.
        """
        if nbytes <= FREE_BYTES:
            return
        missing = nbytes - self.left()
        most = 2 * missing
        while missing > 0:
            # A chunk that others hold stays in memory after it is spilled, so spill at most twice.
            spilled = self._spill() if most > 0 else -1
            if spilled < 0:
                self._decline(nbytes)
            most -= spilled
            missing = nbytes - self.left()

    def _spill(self) -> int:
        """Spill the least recently used chunk; return its bytes, or -1 without a chunk to spill."""
        # Some buffers have only one of these names, and no disk to spill to.
        can = hasattr(self._data, "evict") and getattr(self._data, "fast", None)
        return int(self._data.evict()) if can else -1

    def _decline(self, nbytes: float) -> None:
        left = format_bytes(max(int(self.left()), 0))
        raise Absent(
            f"worker {self._worker.address} has no room for {format_bytes(int(nbytes))}: its "
            f"process may take {left} more before it is about to pause"
        )


class RoundChunks:
    """The chunks of a round on a worker, to be divided among threads.

    Parameters
    ----------
    worker : Worker
    call : Call
    keys : sequence of sequences
        The keys of each chunk's blocks.
    results : sequence of int, optional
        The bytes of each chunk's scanned result; -1 where that is not known.

    Raises
    ------
    Absent
        If a chunk is missing, or there is no room for the chunks and their results.
    """

    @relying()
    def __init__(
        self, worker: Worker, call: Call, keys: Sequence[Sequence[Any]], results: Sequence[int] = ()
    ) -> None:
        self._data, self._call, self._keys = worker.data, call, keys
        # A spilling buffer is slow to look up even chunks in memory, so ask its two halves; in
        # some buffers `fast` or `slow` is a flag.
        self._fast, self._slow = (
            half if isinstance(half := getattr(self._data, name, None), Mapping) else self._data
            for name in ("fast", "slow")
        )
        self._memory = Memory(worker)
        every = [*chain.from_iterable(keys)]
        if missing := [key for key in every if key not in self._data]:
            raise Absent(f"chunk {missing[0]} is no longer on worker {worker.address}")
        tasks = worker.state.tasks
        nbytes = {key: (tasks[key].nbytes or 0) if key in tasks else 0 for key in every}
        self._sizes = [sum(nbytes[key] for key in of_chunk) for of_chunk in keys]
        # A result whose size is not known counts as large as its chunk.
        outputs = [
            size if result < 0 else result
            for result, size in zip(results, self._sizes, strict=False)
        ] or [0] * len(keys)
        self._largest = max(map(sum, zip(self._sizes, outputs, strict=True)))
        spilled = [key for key in every if key not in self._fast]
        one_by_one = bool(spilled) or not self._has_room(sum(outputs))
        self.on_gpu: bool = self._are_on_gpu()
        if one_by_one and self.on_gpu:
            # A launch needs all chunks at once.
            self._require_room_on_gpu(worker.address, sum(self._sizes) + sum(outputs))
            one_by_one = False
        self._held: list[Blocks] | None = None
        if not one_by_one:
            # Hold the chunks in memory first, so that reading the others spills none of them.
            held = {key: self._fast[key] for key in every if key in self._fast}
            held |= {key: self._data[key] for key in spilled}
            self._held = [[held[key] for key in of_chunk] for of_chunk in keys]

    def _has_room(self, nbytes: int) -> bool:
        """Return whether results of `nbytes` fit beside the chunks."""
        if nbytes <= FREE_BYTES:
            return True
        managed = getattr(self._fast, "total_weight", 0) + nbytes
        return managed <= getattr(self._fast, "n", math.inf) and nbytes <= self._memory.left()

    def _are_on_gpu(self) -> bool:
        # The first block of a chunk decides; its labels and masks may be elsewhere.
        firsts = [of_chunk[0] for of_chunk in self._keys]
        first = next((key for key in firsts if key in self._fast), firsts[0])
        if first not in self._fast:
            self._memory.make(READ * self._sizes[0])
        return chunks.kind(self._get(first)) == "cupy"

    def _require_room_on_gpu(self, address: str, nbytes: int) -> None:
        room = getattr(self._fast, "n", math.inf)
        if nbytes > room:
            raise Absent(
                f"worker {address} would have to spill: it takes {nbytes} bytes, and there is room "
                f"for {room:.0f}"
            )

    @relying()
    def divide(self, threads: int) -> list[slice]:
        """Return the slice of the chunks for each thread, for as many threads as have room."""
        n = 1 if self.on_gpu else min(threads, len(self._keys))
        # A thread holds the state that it makes and the one to which it adds that.
        nbytes = 2 * self._call.nbytes + (READ * self._largest if self._held is None else 0)
        self._memory.make(nbytes)
        if nbytes > FREE_BYTES:
            n = max(int(min(n, self._memory.left() // nbytes)), 1)
        return [slice(*ends) for ends in pairwise(len(self._keys) * i // n for i in range(n + 1))]

    def blocks(self, chosen: slice, declared: Sequence[Any]) -> Sequence[Blocks]:
        """Return the blocks of a slice of the chunks, cast to the dtypes that arrays declare.

        Chunks on the host are read when they are indexed, chunks on a GPU at once.
        """
        if self.on_gpu:
            assert self._held is not None
            return as_declared(self._held[chosen], declared)
        return _LazyBlocks(self._read, range(len(self._keys))[chosen], declared)

    @relying()
    def _read(self, i: int) -> Blocks:
        self._call.require()
        if self._held is not None:
            return self._held[i]
        self._memory.make(READ * self._largest)
        try:
            return [self._get(key) for key in self._keys[i]]
        except (KeyError, OSError) as error:
            raise Absent(f"chunk {self._keys[i][0]} cannot be read: {error!r}") from error

    def _get(self, key: Any) -> Any:
        """Return a block without moving it between memory and disk."""
        try:
            return self._fast[key]
        except KeyError:
            pass
        try:
            return self._slow[key]
        except KeyError:
            # It came back to memory between the two look-ups.
            return self._fast[key]


class _LazyBlocks(Sequence[Blocks]):
    """Blocks that are read when they are indexed; the last ones are kept."""

    def __init__(
        self, read: Callable[[int], Blocks], numbers: range, declared: Sequence[Any]
    ) -> None:
        self._read, self._numbers, self._declared = read, numbers, declared
        self._last_number = -1
        self._last: list[Blocks] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: Any) -> Any:
        number = self._numbers[i]
        if number != self._last_number:
            self._last_number, self._last = -1, []
            self._last = as_declared([self._read(number)], self._declared)
            self._last_number = number
        return self._last[0]
