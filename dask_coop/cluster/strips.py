"""How a worker takes the chunks of a round: with no more memory than a graph would take.

Chunks that are in memory are there anyway. One that is spilled is read when its turn comes, stays
on the disk, and is let go of before the next is read::

    thread 0: x0 (in memory) -- x1 (read, let go of) -- x2 (read, let go of) -- ...
    thread 1: x7 (in memory) -- x8 (in memory) -- ...

So is every chunk of a scan whose results have no room beside the chunks; the worker spills what it
has to as they come. Where even that has no room, well before the worker would pause, the round
declines. Between two chunks a thread finds out whether its call is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dask.utils import format_bytes
from distributed import Worker

from dask_coop import chunks
from dask_coop.cluster.calls import Call
from dask_coop.cluster.jobs import Blocks, as_declared
from dask_coop.cluster.private import relying
from dask_coop.errors import Absent

#: What takes no more bytes than this needs no room.
FREE_BYTES = 1 << 20

#: What there is of a chunk that is read: the bytes of its file, itself, and the one before it.
READ = 3

#: The share of its memory at which a worker is taken to pause, where it is configured not to.
PAUSE = 0.8


class Memory:
    """What the process of a worker may take, before distributed would spill chunks and pause it.

    Parameters
    ----------
    worker : Worker
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._data = worker, worker.data

    def left(self) -> float:
        """Return the bytes that are left, halfway between where it spills and where it pauses."""
        manager = self._worker.memory_manager
        if not manager.memory_limit:
            return math.inf
        pause = manager.memory_pause_fraction or PAUSE
        spill = min(manager.memory_spill_fraction or pause, pause)
        most = manager.memory_limit * (spill + pause) / 2
        return float(most - self._worker.monitor.get_process_memory())

    def make(self, nbytes: float) -> None:
        """Have chunks spilled until there is room for so many bytes.

        Raises
        ------
        Absent
            If that does not help.
        """
        if nbytes <= FREE_BYTES:
            return
        missing = nbytes - self.left()
        most = 2 * missing
        while missing > 0:
            # What others hold is in memory yet when it has been spilled.
            spilled = self._spill() if most > 0 else -1
            if spilled < 0:
                self._decline(nbytes)
            most -= spilled
            missing = nbytes - self.left()

    def _spill(self) -> int:
        """Have the chunk spilled that was not used for the longest; return its bytes, or -1."""
        # Some buffers have either name and nothing to spill to.
        can = hasattr(self._data, "evict") and getattr(self._data, "fast", None)
        return int(self._data.evict()) if can else -1

    def _decline(self, nbytes: float) -> None:
        left = format_bytes(max(int(self.left()), 0))
        raise Absent(
            f"worker {self._worker.address} has no room for {format_bytes(int(nbytes))}: its "
            f"process may take {left} more before it is about to pause"
        )


class Strips:
    """The chunks of a round on a worker, to be cut into a strip for each thread.

    Parameters
    ----------
    worker : Worker
    call : Call
    keys : sequence of sequences
        Those of the blocks of each chunk.
    results : sequence of int, optional
        The bytes of what a scan makes of each chunk; -1 where that is not known.

    Raises
    ------
    Absent
        If a chunk is not there, or there is no room for what is to be taken.
    """

    @relying()
    def __init__(
        self, worker: Worker, call: Call, keys: Sequence[Sequence[Any]], results: Sequence[int] = ()
    ) -> None:
        self._data, self._call, self._keys = worker.data, call, keys
        # A buffer that may spill takes its time to find even what it has in memory; some tell only
        # whether they have any.
        self._fast, self._slow = (
            part if isinstance(part := getattr(self._data, name, None), Mapping) else self._data
            for name in ("fast", "slow")
        )
        self._memory = Memory(worker)
        every = [key for each in keys for key in each]
        if missing := [key for key in every if key not in self._data]:
            raise Absent(f"chunk {missing[0]} is no longer on worker {worker.address}")
        tasks = worker.state.tasks
        nbytes = {key: (tasks[key].nbytes or 0) if key in tasks else 0 for key in every}
        self._sizes = [sum(nbytes[key] for key in each) for each in keys]
        made = [
            size if own < 0 else own for own, size in zip(results, self._sizes, strict=False)
        ] or [0] * len(keys)
        self._largest = max(map(sum, zip(self._sizes, made, strict=True)))
        spilled = [key for key in every if key not in self._fast]
        in_turn = bool(spilled) or not self._has_room(sum(made))
        self.on_gpu = self._are_on_gpu()
        if in_turn and self.on_gpu:
            # A launch takes all of them at once.
            self._require_room_on_gpu(worker.address, sum(self._sizes) + sum(made))
            in_turn = False
        self._held: list[Blocks] | None = None
        if not in_turn:
            # What is in memory comes first, so that none of it is spilled by reading the others.
            held = {key: self._fast[key] for key in every if key in self._fast}
            held |= {key: self._data[key] for key in spilled}
            self._held = [[held[key] for key in each] for each in keys]

    def _has_room(self, made: int) -> bool:
        """Tell whether results of so many bytes have room beside the chunks."""
        if made <= FREE_BYTES:
            return True
        managed = getattr(self._fast, "total_weight", 0) + made
        return managed <= getattr(self._fast, "n", math.inf) and made <= self._memory.left()

    def _are_on_gpu(self) -> bool:
        # Labels and masks beside a chunk are not asked.
        firsts = [each[0] for each in self._keys]
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
    def cut(self, threads: int) -> list[slice]:
        """Cut the chunks into strips, of which there are as many as there is room for."""
        n = 1 if self.on_gpu else min(threads, len(self._keys))
        # A state is made, and added to what there is.
        each = 2 * self._call.nbytes + (READ * self._largest if self._held is None else 0)
        self._memory.make(each)
        if each > FREE_BYTES:
            n = max(int(min(n, self._memory.left() // each)), 1)
        return [slice(*ends) for ends in pairwise(len(self._keys) * i // n for i in range(n + 1))]

    def blocks(self, strip: slice, declared: Sequence[Any]) -> Sequence[Blocks]:
        """Return the blocks of a strip, of the dtypes that their arrays declare.

        They are taken one chunk after the other, on a GPU all at once.
        """
        if self.on_gpu:
            assert self._held is not None
            return as_declared(self._held[strip], declared)
        return _InTurn(self._take, range(len(self._keys))[strip], declared)

    @relying()
    def _take(self, i: int) -> Blocks:
        self._call.require()
        if self._held is not None:
            return self._held[i]
        self._memory.make(READ * self._largest)
        try:
            return [self._get(key) for key in self._keys[i]]
        except (KeyError, OSError) as error:
            raise Absent(f"chunk {self._keys[i][0]} cannot be read: {error!r}") from error

    def _get(self, key: Any) -> Any:
        """Return a block, and leave it where it is."""
        try:
            return self._fast[key]
        except KeyError:
            pass
        try:
            return self._slow[key]
        except KeyError:
            # It came back to memory between the two.
            return self._fast[key]


class _InTurn(Sequence[Blocks]):
    """Blocks that are taken when they are asked for, and of which the last are kept."""

    def __init__(
        self, take: Callable[[int], Blocks], numbers: range, declared: Sequence[Any]
    ) -> None:
        self._take, self._numbers, self._declared = take, numbers, declared
        self._at = -1
        self._last: list[Blocks] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: Any) -> Any:
        number = self._numbers[i]
        if number != self._at:
            self._at, self._last = -1, []
            self._last = as_declared([self._take(number)], self._declared)
            self._at = number
        return self._last[0]
