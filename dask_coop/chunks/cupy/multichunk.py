"""Stages: one cooperative launch over CuPy chunks of an array, on one GPU or several.

Every GPU's chunks are cut into *segments*, in the order of a scan, and every block of its grid gets
an equal share of neighbouring ones; kernels/kernel_multichunk.cuh tells what becomes of them. What
the host makes for a GPU lies in one allocation and goes there in one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.bins import Grid
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.arrays import aligned, contiguous, deliver, dense
from dask_coop.chunks.cupy.eligibility import Objection, objection_to_chunks
from dask_coop.chunks.cupy.histogram import stage_histogram
from dask_coop.chunks.cupy.partition import Cut, cut
from dask_coop.cuda.devices import device
from dask_coop.cuda.programs import histogram as histograms
from dask_coop.cuda.programs import multichunk as programs
from dask_coop.cuda.programs import reduce as reductions
from dask_coop.cuda.programs import scan as scans
from dask_coop.cuda.team import Team as Team
from dask_coop.cuda.team import most_blocks

Array = Any

#: Static shared memory of a scan's block beside its tiles, with room to spare, in bytes.
_STATIC_BYTES = 2048


def objection(team: Team, xs: Sequence[Any]) -> Objection | None:
    """Say why a stage over the chunks `xs` can't be had; None if it can."""
    if team.objection:
        return Objection(team.objection)
    return objection_to_chunks(xs, team.ordinals)


def reduce(
    team: Team, op: Operation, xs: Sequence[Array], origins: Sequence[Origin] | None
) -> State:
    """Reduce all elements of the chunks `xs` to one state.

    Parameters
    ----------
    team : Team
    op : Operation
    xs : sequence of cupy.ndarray
        Chunks that lie on the GPUs.
    origins : sequence of Origin, optional
        Where the chunks are in the array, for operations that tell indices.
    """
    stage = _reduce(team, op, xs)
    if origins is None:
        return tuple(field[0] for field in _fields(op, stage.total()))
    fields = _fields(op, stage.of_chunks())
    return op.combine(
        [
            op.shift(tuple(field[i] for field in fields), x.shape, origin)
            for i, (x, origin) in enumerate(zip(xs, origins, strict=True))
        ]
    )


def reduce_each(team: Team, op: Operation, xs: Sequence[Array]) -> State:
    """Reduce each of the chunks `xs`; return their states in arrays of one axis on the host."""
    return _fields(op, _reduce(team, op, xs).of_chunks())


def _reduce(team: Team, op: Operation, xs: Sequence[Array]) -> _Stage:
    element, layout = programs_list.element(op), programs_list.layout(op)
    source = programs.reduce(programs_list.functor(op), element, layout)
    ready = [_prepare(op, x) for x in xs]
    stage = _Stage(ready, layout.itemsize)
    stage.sends_states = programs_list.has_gaps(layout)
    threads = reductions.THREADS
    stage.upload(team, most_blocks(source, stage.ordinals, threads, 0))
    stage.launch(
        team,
        source,
        threads,
        0,
        f"the {op.monoid.name}",
        lambda rank: stage.places(rank, "states", "peers", "out"),
    )
    return stage


def scan(
    team: Team, op: Operation, xs: Sequence[Array], wanted: Sequence[bool], spec: ScanSpec
) -> list[Array | None]:
    """Scan the 1-d chunks `xs`, in the order of the scan, and return those that are wanted."""
    ready = [_prepare(op, x) for x in xs]
    ys = _results(op, ready, wanted)
    _scan(team, op, ready, ys, spec, programs.UP | programs.DOWN)
    return ys


def upsweep(team: Team, op: Operation, xs: Sequence[Array], spec: ScanSpec) -> tuple[State, bytes]:
    """Do the first half of a scan of 1-d chunks, of which nobody has the others.

    Returns
    -------
    state : tuple of numpy.ndarray
        The states of the chunks, along the first axis of each field.
    memo : bytes
        What `downsweep` is to be given.
    """
    stage = _scan(team, op, [_prepare(op, x) for x in xs], (), spec, programs.UP)
    of_segments, of_chunks = stage.of_parts()
    return _fields(op, of_chunks), of_segments.tobytes()


def downsweep(
    team: Team,
    op: Operation,
    xs: Sequence[Array],
    spec: ScanSpec,
    bases: Sequence[State],
    memo: bytes,
) -> list[Array]:
    """Do the second half of a scan, from the base sums of the chunks, without waiting for it."""
    ready = [_prepare(op, x) for x in xs]
    ys: list[Any] = _results(op, ready, [True] * len(xs))
    records = np.zeros(len(bases), programs_list.layout(op))
    for field, values in zip(op.monoid.fields, zip(*bases, strict=True), strict=True):
        records[field.name] = values
    given = {"states": np.frombuffer(memo, "u1"), "bases": records}
    _scan(team, op, ready, ys, spec, programs.DOWN, given)
    return ys


def _results(op: Operation, xs: Sequence[Array], wanted: Sequence[bool]) -> list[Array | None]:
    ys, here = [], cupy.cuda.runtime.getDevice()
    for x, is_wanted in zip(xs, wanted, strict=True):
        with nullcontext() if x.device.id == here else x.device:
            ys.append(cupy.empty(x.shape, op.output) if is_wanted else None)
    return ys


def _scan(
    team: Team,
    op: Operation,
    xs: Sequence[Array],
    ys: Sequence[Array | None],
    spec: ScanSpec,
    steps: int,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> _Stage:
    of = programs_list.scanned(op, spec.exclusive, spec.reverse)
    gpu, tuning, shared = device(xs[0].device.id), None, 0
    if gpu.hopper and of.is_bulk:
        # Blocks scan tiles one after the other, as they do lines without an end.
        tuning = scans.tune(of, 1 << 40, gpu.processors, gpu.shared_bytes - _STATIC_BYTES, False)
        shared = scans.waves_shared_bytes(of, tuning)
    source = programs.scan(of, tuning)
    threads = scans.THREADS if tuning is None else tuning.threads
    stage = _Stage(xs, of.state_bytes, ys, spec.reverse)
    stage.upload(team, most_blocks(source, stage.ordinals, threads, shared), given)

    def rest(rank: int) -> list[Any]:
        bases = stage.places(rank, "bases") if "bases" in given else [np.uint64(0)]
        return [*stage.places(rank, "states", "peers"), *bases, np.int32(steps)]

    # Only who meets others at the barrier may have waited in vain.
    what, wait = f"the scan by {op.monoid.name}", bool(steps & programs.UP)
    stage.launch(team, source, threads, shared, what, rest, wait)
    return stage


def histogram(team: Team, op: Operation, xs: Sequence[Array], grid: Grid) -> State | None:
    """Count the samples of the chunks `xs` into a table; None if it does not fit a block's memory.

    Parameters
    ----------
    team : Team
    op : Operation
    xs : sequence of cupy.ndarray
        Chunks of one dtype that lie on the GPUs.
    grid : Grid
        The bins of one coordinate.
    """
    ready = []
    for x in xs:
        with x.device:
            ready.append(dense(x.view("u1") if x.dtype.kind == "b" else x)[0])
    bins, (total,) = grid.bins[0], op.monoid.dtypes(op.element)
    stage = _Stage(ready, 0)
    how = stage_histogram(stage.ordinals, ready[0].dtype, bins)
    if how is None:
        return None
    stage.tables = [team.zeros(ordinal, bins.n, "u8") for ordinal in stage.ordinals]
    out = team.empty(stage.ordinals[0], bins.n, total)
    stage.upload(team, most_blocks(how.source, stage.ordinals, histograms.THREADS, how.shared))
    stage.launch(
        team,
        how.source,
        histograms.THREADS,
        how.shared,
        f"the histogram of {bins.n} bins",
        lambda rank: [
            *how.lookups[rank].arguments,
            *stage.places(rank, "peers"),
            np.uint64(out.data.ptr),
        ],
    )
    with out.device:
        state = deliver(out)
        return (state.copy() if state is out else state,)


def _prepare(op: Operation, x: Array) -> Array:
    """Return a chunk as the kernels read it."""
    if x.flags.c_contiguous and x.dtype == op.element and x.data.ptr % x.itemsize == 0:
        return x
    with x.device:
        x = x.astype(op.element, copy=False)
        # Indices count in C order, whatever the order in memory.
        return aligned(contiguous(x)) if op.monoid.positional else dense(x)[0]


def _fields(op: Operation, states: Any) -> State:
    records = states.view(programs_list.layout(op))
    return tuple(records[field.name] for field in op.monoid.fields)


class _Share:
    """The part of a stage that one GPU has."""

    def __init__(self, ordinal: int, chunks: list[int]) -> None:
        self.ordinal, self.chunks = ordinal, chunks
        self.room: Any = None
        self.places: dict[str, int] = {}
        self.told = 0


class _Stage:
    """What the GPUs are to do, and the memory for it.

    Parameters
    ----------
    xs : sequence of cupy.ndarray
        The chunks, in the order of a scan.
    state_bytes : int
        The size of a state.
    ys : sequence of cupy.ndarray or None
        Where results go, of chunks that have some.
    reverse : bool
        Whether the order is from the end of each chunk to its beginning.

    Attributes
    ----------
    tables : list of cupy.ndarray
        What each GPU has for all to read; by default, room for the states of all chunks.
    sends_states : bool
        Whether states begin as zeros, because kernels leave out what is between their fields.
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
        owners: dict[int, list[int]] = {}
        for i, x in enumerate(xs):
            owners.setdefault(x.device.id, []).append(i)
        self._shares = [_Share(ordinal, owners[ordinal]) for ordinal in sorted(owners)]

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The GPUs that have chunks, in the order of their ranks."""
        return tuple(share.ordinal for share in self._shares)

    def upload(
        self, team: Team, blocks: int, given: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Make room on every GPU, and tell it what its blocks are to do, and what is `given`."""
        self._blocks = blocks
        all_parts = [{**self._parts(share), **given} for share in self._shares]
        for share, parts in zip(self._shares, all_parts, strict=True):
            at = 0
            for name, part in parts.items():
                share.places[name] = at
                at = _align(at + part.nbytes)
            share.told = at
            rooms = {"states": len(parts["segments"]), "chunks": len(self.xs), "out": 1}
            for name, count in rooms.items():
                if name not in parts:
                    share.places[name] = at
                    # Without a gap, for states go to the host in one copy.
                    at += count * self.state_bytes
            if self.sends_states:
                share.told = at
            share.room = team.empty(share.ordinal, at, "u1")
        ranks = range(len(self._shares))
        peers = [table.data.ptr for table in self.tables] or [self._at(i, "chunks") for i in ranks]
        for share, parts in zip(self._shares, all_parts, strict=True):
            parts["peers"][:] = peers
            sent = np.zeros(share.told, "u1")
            for name, part in parts.items():
                at = share.places[name]
                sent[at : at + part.nbytes] = part.view("u1")
            with cupy.cuda.Device(share.ordinal):
                share.room[: sent.size].set(sent)

    def _parts(self, share: _Share) -> dict[str, Any]:
        """Return what a GPU is told, by the names of its parts."""
        own = [self.xs[i] for i in share.chunks]
        sizes = tuple(x.size for x in own)
        made = cut(tuple(share.chunks), sizes, self._blocks, self.reverse)
        segments = made.segments.copy()
        segments["x"] = _addresses(own, made)
        if self.ys:
            segments["y"] = _addresses([self.ys[i] for i in share.chunks], made)
        peers = np.zeros(len(self._shares), "u8")
        return {"segments": segments, "first": made.block, "begin": made.begin, "peers": peers}

    def launch(
        self,
        team: Team,
        source: str,
        threads: int,
        shared: int,
        what: str,
        rest: Callable[[int], list[Any]],
        wait: bool = True,
    ) -> None:
        """Launch a program of kernel_multichunk.cuh; `rest` makes its own arguments for a rank."""

        def arguments(rank: int, peers: Any, epoch: Any) -> list[Any]:
            work = np.zeros((), programs.WORK)
            for name in ("segments", "first", "begin"):
                work[name] = self._at(rank, name)
            work["chunks"], work["all"] = len(self._shares[rank].chunks), len(self.xs)
            return [work, peers, epoch, *rest(rank)]

        team.launch(source, self._blocks, threads, shared, self.ordinals, arguments, what, wait)

    def places(self, rank: int, *names: str) -> list[Any]:
        """Return the addresses of parts of a GPU's room."""
        return [np.uint64(self._at(rank, name)) for name in names]

    def total(self) -> Any:
        """Return the bytes of the state of the whole array."""
        return self._read("out", self.state_bytes)

    def of_chunks(self) -> Any:
        """Return the bytes of the states of all chunks."""
        return self._read("chunks", len(self.xs) * self.state_bytes)

    def of_parts(self) -> tuple[Any, Any]:
        """Return the bytes of the states of the first GPU's segments, and of all chunks."""
        places, nbytes = self._shares[0].places, len(self.xs) * self.state_bytes
        start = places["chunks"] - places["states"]
        found = self._read("states", start + nbytes)
        return found[:start], found[start:]

    def _at(self, rank: int, name: str) -> int:
        share = self._shares[rank]
        return int(share.room.data.ptr) + share.places[name]

    def _read(self, name: str, nbytes: int) -> Any:
        share = self._shares[0]
        at = share.places[name]
        with cupy.cuda.Device(share.ordinal):
            return cupy.asnumpy(share.room[at : at + nbytes])


def _addresses(arrays: Sequence[Array | None], made: Cut) -> Any:
    """Return where segments begin in their chunks' arrays; 0 for those of none."""
    starts = np.array([0 if x is None else x.data.ptr for x in arrays], "u8")
    sizes = np.array([0 if x is None else x.itemsize for x in arrays], "u8")
    return starts[made.chunk] + made.segments["first"].astype("u8") * sizes[made.chunk]


def _align(at: int) -> int:
    return -(-at // 256) * 256
