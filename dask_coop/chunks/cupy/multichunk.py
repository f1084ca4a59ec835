"""Multi-chunk launches: one cooperative launch over CuPy chunks, on one GPU or on several.

The chunks of every GPU are cut into *stretches*, in the order of a scan. Every block of its grid
gets neighbouring stretches, with about the same number of elements; kernels/kernel_multichunk.cuh
describes what it does with them. All host data for a GPU goes there in one allocation and one copy.

`Node` calls the functions that take a team of several GPUs: `reduce`, `scan`, `histogram`. The
chunk backend offers functions that launch once for a worker's chunks of an array, and wait for one
result: `lift_all`, `histogram_all`, `upsweep` and `downsweep`. The chunks lie on one GPU, or on
several that the process shares (`dask_coop.cuda.team.share`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.bins import Grid
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.arrays import aligned, deliver, dense, is_plain, owners
from dask_coop.chunks.cupy.eligibility import (
    objection_to_chunks_together,
    objection_to_histogram,
    objection_to_operation,
    objection_to_scan,
)
from dask_coop.chunks.cupy.exact import cast
from dask_coop.chunks.cupy.histogram_strategies import multichunk_histogram
from dask_coop.chunks.cupy.partition import Cut, cut
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.cuda.devices import device
from dask_coop.cuda.programs import histogram as histograms
from dask_coop.cuda.programs import multichunk as programs
from dask_coop.cuda.programs import reduce as reductions
from dask_coop.cuda.programs import scan as scans
from dask_coop.cuda.team import Team as Team
from dask_coop.cuda.team import most_blocks, team_of

Array = Any

#: The static shared memory of a scan's block besides its tiles, with a margin, in bytes.
_STATIC_BYTES = 2048


def reduce(
    team: Team, op: Operation, xs: Sequence[Array], origins: Sequence[Origin] | None
) -> State:
    """Reduce all elements of the chunks `xs` to one state.

    Parameters
    ----------
    team : Team
    op : Operation
    xs : sequence of cupy.ndarray
        Chunks on the GPUs.
    origins : sequence of Origin, optional
        The origins of the chunks in the array, for operations with argument indices.
    """
    work = _reduce(team, op, xs)
    if origins is None:
        return tuple(field[0] for field in _fields(op, work.total()))
    fields = _fields(op, work.of_chunks())
    return op.combine(
        [
            op.shift(tuple(field[i] for field in fields), x.shape, origin)
            for i, (x, origin) in enumerate(zip(xs, origins, strict=True))
        ]
    )


def lift_all(op: Operation, xs: Sequence[Array]) -> State | None:
    """Reduce each of the chunks `xs`; None if they must be reduced one by one.

    Returns
    -------
    tuple of numpy.ndarray
        The states, along the first axis of each field.
    """
    if objection_to_operation(op) or (team := _team(xs)) is None:
        return None
    with xs[0].device:
        return _fields(op, _reduce(team, op, xs).of_chunks())


def _reduce(team: Team, op: Operation, xs: Sequence[Array]) -> _Work:
    element, layout = programs_list.element(op), programs_list.layout(op)
    source = programs.reduce(programs_list.functor(op), element, layout)
    ready = [_prepare(op, x) for x in xs]
    work = _Work(ready, layout.itemsize)
    work.sends_states = programs_list.has_gaps(layout)
    threads = reductions.THREADS
    work.upload(team, most_blocks(source, work.ordinals, threads, 0))
    work.run(
        team,
        source,
        threads,
        0,
        f"the {op.monoid.name}",
        lambda rank: work.addresses(rank, "states", "peers", "out"),
    )
    return work


def scan(
    team: Team, op: Operation, xs: Sequence[Array], wanted: Sequence[bool], spec: ScanSpec
) -> list[Array | None]:
    """Scan the 1-d chunks `xs`, in the order of the scan, and return the wanted results."""
    ready = [_prepare(op, x) for x in xs]
    ys = _results(op, ready, wanted)
    _scan(team, op, ready, ys, spec, programs.UP | programs.DOWN)
    return ys


def upsweep(op: Operation, spec: ScanSpec, xs: Sequence[Array]) -> tuple[State, bytes] | None:
    """Reduce each of the 1-d chunks `xs` for a scan; None if they must be reduced one by one.

    They are not all chunks of the array, so they cannot be scanned before their bases are known.

    Returns
    -------
    state : tuple of numpy.ndarray
        The states, along the first axis of each field.
    memo : bytes
        An argument of `downsweep` with the same chunks.
    """
    if objection_to_scan(op, spec) or (team := _team(xs)) is None:
        return None
    with xs[0].device:
        ready = [_prepare(op, x) for x in xs]
        work = _scan(team, op, ready, (), spec, programs.UP)
        of_stretches, of_chunks = work.of_stretches_and_chunks()
    return _fields(op, of_chunks), _places(xs) + of_stretches


def downsweep(
    op: Operation, spec: ScanSpec, xs: Sequence[Array], bases: Sequence[State | None], memo: bytes
) -> list[Array]:
    """Scan the chunks of an upsweep from their bases, None at the start of the array.

    This does not wait for the launch to end.
    """
    team = _team(xs)
    if team is None:
        raise ValueError("no launch takes all of these chunks; scan them one by one")
    places = _places(xs)
    if not memo.startswith(places):
        # A chunk has moved to another GPU since, so the stretches differ.
        found = upsweep(op, spec, xs)
        assert found is not None
        _, memo = found
    identity = op.monoid.identity(op.element)
    states = [identity if base is None else base for base in bases]
    records = np.zeros(len(bases), programs_list.layout(op))
    for field, values in zip(op.monoid.fields, zip(*states, strict=True), strict=True):
        records[field.name] = values
    with xs[0].device:
        ready = [_prepare(op, x) for x in xs]
        ys: list[Any] = _results(op, ready, [True] * len(xs))
        _scan(team, op, ready, ys, spec, programs.DOWN, memo[len(places) :], records)
    return ys


def _places(xs: Sequence[Array]) -> bytes:
    """Return the GPUs of chunks."""
    return bytes(x.data.device_id for x in xs)


def _results(op: Operation, xs: Sequence[Array], wanted: Sequence[bool]) -> list[Array | None]:
    ys: list[Array | None] = [None] * len(xs)
    for ordinal, own in owners(xs).items():
        # Changing the GPU takes longer than allocating, so do it once. Each result has its own
        # allocation, because a shared one would stay until the last result is freed.
        with cupy.cuda.Device(ordinal):
            for i in own:
                if wanted[i]:
                    ys[i] = cupy.ndarray(xs[i].shape, op.output)
    return ys


def _scan(
    team: Team,
    op: Operation,
    xs: Sequence[Array],
    ys: Sequence[Array | None],
    spec: ScanSpec,
    steps: int,
    memo: bytes = b"",
    bases: Any = None,
) -> _Work:
    of = programs_list.scanned(op, spec.exclusive, spec.reverse)
    gpu, tuning, shared = device(xs[0].device.id), None, 0
    if gpu.hopper and of.is_bulk:
        # Blocks scan tiles one after the other, as in endless lines.
        tuning = scans.tune(of, 1 << 40, gpu.processors, gpu.shared_bytes - _STATIC_BYTES, False)
        shared = scans.waves_shared_bytes(of, tuning)
    source = programs.scan(of, tuning)
    threads = scans.THREADS if tuning is None else tuning.threads
    work = _Work(xs, of.state_bytes, ys, spec.reverse)
    work.upload(team, most_blocks(source, work.ordinals, threads, shared), memo, bases)

    def rest(rank: int) -> list[Any]:
        at = [np.uint64(0)] if bases is None else work.addresses(rank, "bases")
        return [*work.addresses(rank, "states", "peers"), *at, np.int32(steps)]

    # Only the upsweep has a barrier, at which a wait can time out.
    what, wait = f"the scan by {op.monoid.name}", bool(steps & programs.UP)
    work.run(team, source, threads, shared, what, rest, wait)
    return work


def histogram(team: Team, op: Operation, xs: Sequence[Array], grid: Grid | Digits) -> State | None:
    """Count the samples of the chunks `xs` into a table; None if it does not fit a block's memory.

    Parameters
    ----------
    team : Team
    op : Operation
    xs : sequence of cupy.ndarray
        Chunks of one dtype on the GPUs.
    grid : Grid or Digits
        The bins of one coordinate.
    """
    ready = [_dense(x.view("u1") if x.dtype.kind == "b" else x) for x in xs]
    (total,) = op.monoid.dtypes(op.element)
    bins = grid if isinstance(grid, Digits) else grid.bins[0]
    work = _Work(ready, 0)
    how = multichunk_histogram(work.ordinals, ready[0].dtype, bins)
    if how is None:
        return None
    work.tables = [team.zeros(ordinal, bins.n, "u8") for ordinal in work.ordinals]
    out = team.empty(work.ordinals[0], bins.n, total)
    work.upload(team, most_blocks(how.source, work.ordinals, histograms.THREADS, how.shared))
    work.run(
        team,
        how.source,
        histograms.THREADS,
        how.shared,
        f"the histogram of {bins.n} bins",
        lambda rank: [
            *how.lookups[rank].arguments,
            *work.addresses(rank, "peers"),
            np.uint64(out.data.ptr),
        ],
    )
    with out.device:
        state = deliver(out)
        return (state.copy() if state is out else state,)


def histogram_all(op: Operation, xs: Sequence[Array], grid: Any) -> State | None:
    """Count the samples of the chunks `xs` into one table; None if one by one."""
    if objection_to_histogram(op, grid) or (team := _team(xs)) is None:
        return None
    with xs[0].device:
        return histogram(team, op, xs, grid)


def synchronize(xs: Sequence[Array]) -> None:
    """Wait for all work of this process on the GPUs of the chunks `xs`."""
    for ordinal in owners(xs):
        cupy.cuda.Device(ordinal).synchronize()


def _team(xs: Sequence[Array]) -> Team | None:
    """Return the team that launches over all of the chunks `xs`, or None if no team can."""
    team = team_of(tuple(owners(xs)))
    return None if objection_to_chunks_together(xs, team) else team


def _prepare(op: Operation, x: Array) -> Array:
    """Return a chunk in the form that kernels read."""
    if x.dtype == op.element and is_plain(x):
        return x
    with x.device:
        x = cast(x, op.element)
        # Argument indices count in C order, in any order in memory.
        return aligned(contiguous(x)) if op.monoid.positional else dense(x)[0]


def _dense(x: Array) -> Array:
    """Return a chunk of samples, in any order, in the form that kernels read."""
    if is_plain(x):
        return x
    with x.device:
        return dense(x)[0]


def _fields(op: Operation, states: Any) -> State:
    records = states.view(programs_list.layout(op))
    return tuple(records[field.name] for field in op.monoid.fields)


class _GpuWork:
    """The work of one GPU in a launch, and its memory.

    Attributes
    ----------
    ordinal : int
        The GPU.
    chunks : list of int
        The numbers of its chunks.
    memory : cupy.ndarray
        One allocation on the GPU.
    offsets : dict of str to int
        The offsets of the arrays in it, by name.
    sent : int
        The leading bytes that the host sends.
    stretches : int
        The number of stretches of its chunks.
    """

    def __init__(self, ordinal: int, chunks: list[int]) -> None:
        self.ordinal, self.chunks = ordinal, chunks
        self.memory: Any = None
        self.offsets: dict[str, int] = {}
        self.sent = self.stretches = 0


class _Work:
    """The work of all GPUs in a launch, and its memory.

    Parameters
    ----------
    xs : sequence of cupy.ndarray
        The chunks, in the order of a scan.
    state_bytes : int
        The size of a state.
    ys : sequence of cupy.ndarray or None
        The results of chunks, None for those without.
    reverse : bool
        Whether the order is from the end of each chunk to its beginning.

    Attributes
    ----------
    tables : list of cupy.ndarray
        An array on each GPU for all to read; by default memory for the states of all chunks.
    sends_states : bool
        Whether to zero states first, because kernels do not write the gaps between fields.
    """

    def __init__(
        self,
        xs: Sequence[Array],
        state_bytes: int,
        ys: Sequence[Array | None] = (),
        reverse: bool = False,
    ) -> None:
        self.xs, self.state_bytes, self.ys, self.reverse = xs, state_bytes, ys, reverse
        self.tables: list[Array] = []
        self.sends_states = False
        self._blocks = 0
        self._gpus = [_GpuWork(ordinal, own) for ordinal, own in sorted(owners(xs).items())]

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The GPUs with chunks, in the order of their ranks."""
        return tuple(gpu.ordinal for gpu in self._gpus)

    def upload(self, team: Team, blocks: int, memo: bytes = b"", bases: Any = None) -> None:
        """Allocate memory on every GPU, and send the work of its blocks.

        A downsweep without upsweep also sends the states of all stretches, in the order of the
        ranks, and the bases of all chunks.
        """
        self._blocks = blocks
        inputs = [self._inputs(gpu) for gpu in self._gpus]
        if bases is not None:
            at = 0
            for arrays in inputs:
                count = len(arrays["stretches"]) * self.state_bytes
                arrays |= {"states": np.frombuffer(memo, "u1", count, at), "bases": bases}
                at += count
        for gpu, arrays in zip(self._gpus, inputs, strict=True):
            at = 0
            for name, array in arrays.items():
                gpu.offsets[name] = at
                at = _align(at + array.nbytes)
            gpu.sent = at
            gpu.stretches = len(arrays["stretches"])
            counts = {"states": gpu.stretches, "chunks": len(self.xs), "out": 1}
            for name, count in counts.items():
                if name not in arrays:
                    gpu.offsets[name] = at
                    # Without a gap, so that states go to the host in one copy.
                    at += count * self.state_bytes
            if self.sends_states:
                gpu.sent = at
            gpu.memory = team.empty(gpu.ordinal, at, "u1")
        ranks = range(len(self._gpus))
        peers = [table.data.ptr for table in self.tables] or [
            self._address(rank, "chunks") for rank in ranks
        ]
        for gpu, arrays in zip(self._gpus, inputs, strict=True):
            arrays["peers"][:] = peers
            sent = np.zeros(gpu.sent, "u1")
            for name, array in arrays.items():
                at = gpu.offsets[name]
                sent[at : at + array.nbytes] = array.view("u1")
            with cupy.cuda.Device(gpu.ordinal):
                gpu.memory[: sent.size].set(sent)

    def _inputs(self, gpu: _GpuWork) -> dict[str, Any]:
        """Return the arrays to send to a GPU, by name."""
        own = [self.xs[i] for i in gpu.chunks]
        sizes = tuple(x.size for x in own)
        made = cut(tuple(gpu.chunks), sizes, self._blocks, self.reverse)
        stretches = made.stretches.copy()
        stretches["x"] = _addresses(own, made)
        if self.ys:
            stretches["y"] = _addresses([self.ys[i] for i in gpu.chunks], made)
        peers = np.zeros(len(self._gpus), "u8")
        return {"stretches": stretches, "first": made.block, "begin": made.begin, "peers": peers}

    def run(
        self,
        team: Team,
        source: str,
        threads: int,
        shared: int,
        what: str,
        rest: Callable[[int], list[Any]],
        wait: bool = True,
    ) -> None:
        """Launch a program of kernel_multichunk.cuh; `rest` returns a rank's own arguments."""

        def arguments(rank: int, peers: Any, epoch: Any) -> list[Any]:
            work = np.zeros((), programs.WORK)
            for name in ("stretches", "first", "begin"):
                work[name] = self._address(rank, name)
            work["chunks"], work["all"] = len(self._gpus[rank].chunks), len(self.xs)
            return [work, peers, epoch, *rest(rank)]

        team.launch(source, self._blocks, threads, shared, self.ordinals, arguments, what, wait)

    def addresses(self, rank: int, *names: str) -> list[Any]:
        """Return the addresses of arrays in a GPU's memory."""
        return [np.uint64(self._address(rank, name)) for name in names]

    def total(self) -> Any:
        """Return the bytes of the state of the whole array."""
        return self._read(0, "out", self.state_bytes)

    def of_chunks(self) -> Any:
        """Return the bytes of the states of all chunks."""
        return self._read(0, "chunks", len(self.xs) * self.state_bytes)

    def of_stretches_and_chunks(self) -> tuple[bytes, Any]:
        """Return the bytes of the states of all stretches, in the order of ranks, and of chunks."""
        nbytes = [gpu.stretches * self.state_bytes for gpu in self._gpus]
        # The states of the chunks come next, and are the same on all GPUs.
        found = self._read(0, "states", nbytes[0] + len(self.xs) * self.state_bytes)
        others = (self._read(rank, "states", n) for rank, n in enumerate(nbytes) if rank)
        of_stretches = [found[: nbytes[0]], *others]
        return b"".join(each.tobytes() for each in of_stretches), found[nbytes[0] :]

    def _address(self, rank: int, name: str) -> int:
        gpu = self._gpus[rank]
        return int(gpu.memory.data.ptr) + gpu.offsets[name]

    def _read(self, rank: int, name: str, nbytes: int) -> Any:
        gpu = self._gpus[rank]
        at = gpu.offsets[name]
        with cupy.cuda.Device(gpu.ordinal):
            return cupy.asnumpy(gpu.memory[at : at + nbytes])


def _addresses(arrays: Sequence[Array | None], made: Cut) -> Any:
    """Return the addresses of stretches in their chunks' arrays; 0 where there is no array."""
    starts = np.array([0 if x is None else x.data.ptr for x in arrays], "u8")
    sizes = np.array([0 if x is None else x.itemsize for x in arrays], "u8")
    return starts[made.chunk] + made.stretches["first"].astype("u8") * sizes[made.chunk]


def _align(at: int) -> int:
    return -(-at // 256) * 256
