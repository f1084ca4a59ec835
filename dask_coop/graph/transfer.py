"""Copy between the host and the GPUs, keep chunks on these, and route Dask's `to_backend` likewise.

`copied` makes one layer of Dask's that reads blocks and of our copies. Its tasks look among the
chunks that were kept (chunks/kept.py) before they read::

    read --> decode --> copy      becomes      copy_once: kept?  else  (read, decode), copy, keep

``x.to_backend("cupy")`` makes tasks that call `dask.array.dispatch.to_cupy_dispatch`;
``x.to_backend("numpy")`` uses `to_numpy_dispatch`. Both are of the class `Dispatch`, with a table
of functions by type::

    task --> Dispatch.__call__ --> CuPy's function of the table
                  |
                  '-- ours, while somebody wants it --> chunks.asarray, through pinned memory

A function in that table would not work. Dask enters CuPy's when it first meets a CuPy array, maybe
after ours. And a task takes a copy of the table to its worker, which may lack ours. So the call
itself is replaced, and restored when nobody wants it any more.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from dask.array.core import (
    Array,
    finalize,
    getter,
    getter_inline,
    getter_nofancy,
    load_store_chunk,
    new_da_object,
)
from dask.blockwise import Blockwise, BlockwiseDep, blockwise_token, optimize_blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from dask.utils import Dispatch, cached_cumsum

from dask_coop import chunks
from dask_coop.chunks.dtypes import Declared, casts, declared_by
from dask_coop.chunks.files import Direct, NpyArray
from dask_coop.chunks.kept import KEPT_CHUNKS
from dask_coop.chunks.sources import stamps
from dask_coop.graph import config
from dask_coop.graph.fusion import Blocks, Sources, add, owners
from dask_coop.graph.inputs import leaves
from dask_coop.graph.tasks import is_fused

#: The bytes of pinned memory for a GPU, None for the default; and whether to read files directly.
Configured = tuple[int | None, Direct]

#: The least pinned memory of a GPU: two buffers each way, one filled while the other is copied.
LEAST_BYTES = 16 << 20

#: Most tasks of a graph to look through for those that read one block each.
MOST_TASKS = 5_000

#: Dask's functions that read blocks of arrays.
GETTERS = (getter, getter_inline, getter_nofancy)

#: Dask's dispatches, with the kinds of arrays that they take and return.
_WAYS = {"to_cupy_dispatch": ("numpy", "cupy"), "to_numpy_dispatch": ("cupy", "numpy")}

#: Reentrant, because the garbage collector may end a Node, which calls `_give_back`, meanwhile.
_lock = threading.RLock()
#: The configuration of each caller of `take_over`.
_wanted: dict[object, Configured] = {}
_dasks: Callable[..., Any] = Dispatch.__call__
_is_ours = False


@casts
def copy_to_gpu(x: Any, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    """Return a chunk on the current GPU; the options are those of `configured`."""
    return chunks.asarray(x, "cupy", nbytes, direct)


@casts
def copy_to_host(
    x: Any, nbytes: int | None = None, direct: Direct = "auto", slot: Slot | None = None
) -> Any:
    """Return a chunk on the host; the options are those of `configured`.

    A `Whole` in the place of this function takes note of the `slot`.
    """
    return chunks.asarray(x, "numpy", nbytes, direct)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a block belongs in its array.

    Attributes
    ----------
    name : str
        The name of the array.
    index : tuple of int
        The index of the block.
    shape : tuple of int
        The shape of the array.
    slices : tuple of slice
        The elements of the block.
    """

    name: str
    index: tuple[int, ...]
    shape: tuple[int, ...]
    slices: tuple[slice, ...]


class Slots(BlockwiseDep):  # type: ignore[misc]
    """The slots of the blocks of an array named `name` that has the known chunks of `x`."""

    produces_tasks = False

    def __init__(self, x: Array, name: str) -> None:
        self._name, self._shape, self._chunks = name, x.shape, x.chunks
        self.numblocks: tuple[int, ...] = x.numblocks

    def __getitem__(self, index: tuple[int, ...]) -> Slot:
        """Return the slot of the block at an index."""
        ends = (cached_cumsum(sizes, initial_zero=True) for sizes in self._chunks)
        slices = (slice(at[i], at[i + 1]) for at, i in zip(ends, index, strict=True))
        return Slot(self._name, tuple(index), self._shape, tuple(slices))

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the slots in keys."""
        return type(self).__name__, self._name, self._chunks


class Whole:
    """One array on the host that the tasks of one computation copy their blocks into.

    It takes the place of `copy_to_host` in these tasks, and its `join` that of Dask's `finalize`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._array: Any = None
        self._blocks: dict[tuple[int, ...], Any] = {}

    def __call__(self, x: Any, *, slot: Slot, **named: Any) -> Any:
        """Return a chunk on the host, within the whole if it fits."""
        with self._lock:
            if self._array is None and chunks.can_move(x, "cupy"):
                self._array = chunks.empty_on_host("cupy", slot.shape, x.dtype)
            whole = self._array
        declared = np.dtype(named.get("declared", {}).get(0, x.dtype))
        if whole is not None and whole.dtype == x.dtype == declared:
            target = whole[slot.slices]
            if target.shape == x.shape:
                chunks.put_into(target, x, named.get("nbytes"))
                self._blocks[slot.index] = target
                return target
        return copy_to_host(x, **named)

    def join(self, results: Any) -> Any:
        """Return the whole if all blocks are in it, else the result of Dask's `finalize`."""
        blocks = dict(_unnested(results))
        if all(self._blocks.get(index) is block for index, block in blocks.items()):
            return self._array
        return finalize(results)


def on_host(x: Array, name: str, meta: Any) -> Array:
    """Return `x` with its chunks on the host; tasks know the slots of their blocks."""
    nbytes, direct = configured()
    options = {"nbytes": nbytes, "direct": direct}
    layer = Blocks(name, x.ndim, copy_to_host, [x], {"slot": Slots(x, name)}, **options)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[x])
    return new_da_object(graph, name, x.chunks, meta=meta)


def join_on_host(results: Any) -> Any:
    """Return the blocks of a result, nested as Dask's `finalize` takes them, as one host array.

    Blocks on GPUs are copied straight into the memory of the whole.
    """
    blocks = dict(_unnested(results))
    if not any(chunks.can_move(block, "cupy") for block in blocks.values()):
        return finalize(results)
    if (sizes := _sizes(blocks)) is None:
        return finalize(_each_on_host(results))
    shape, dtype = tuple(map(sum, sizes)), next(iter(blocks.values())).dtype
    whole = chunks.empty_on_host("cupy", shape, dtype)
    starts = [list(accumulate(lengths, initial=0)) for lengths in sizes]
    for index, block in blocks.items():
        ends = zip(starts, index, strict=True)
        # With an ellipsis, because an array without axes would give a scalar.
        chunks.put_into(whole[(*(slice(*at[i : i + 2]) for at, i in ends), ...)], block)
    return whole


def _unnested(blocks: Any, index: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the indices of blocks in nested lists, and the blocks."""
    if not isinstance(blocks, list | tuple):
        yield index, blocks
        return
    for i, inner in enumerate(blocks):
        yield from _unnested(inner, (*index, i))


def _each_on_host(blocks: Any) -> Any:
    """Return nested blocks, each on the host."""
    if isinstance(blocks, list | tuple):
        return [*map(_each_on_host, blocks)]
    return copy_to_host(blocks)


def _sizes(blocks: Mapping[tuple[int, ...], Any]) -> list[list[int]] | None:
    """Return the lengths of blocks along each axis; None if they are no plain array's."""
    first = next(iter(blocks.values()))
    sizes: list[list[int]] = [[] for _ in range(getattr(first, "ndim", 0))]
    for index, block in blocks.items():
        is_plain = chunks.can_move(block, "cupy") or chunks.can_move(block, "numpy")
        if not is_plain or block.dtype != first.dtype or not len(index) == block.ndim == len(sizes):
            return None
        for i, length, lengths in zip(index, block.shape, sizes, strict=True):
            if i == len(lengths):
                lengths.append(length)
            if length != lengths[i]:
                return None
    return sizes


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a block: its array's name and its index there."""

    name: str
    index: tuple[int, ...]


def _reading_onto_gpu(task: GraphNode) -> GraphNode | None:
    """Return a task that reads onto the current GPU; None if it does more than to read."""
    if not isinstance(task, Task):
        return task if isinstance(task, DataNode | Alias) else None
    if is_fused(task):
        inner = {key: _reading_onto_gpu(step) for key, step in task.args[0].items()}
        if None in inner.values():
            return None
        return Task(task.key, task.func, inner, *task.args[1:], **task.kwargs)
    if task.func in GETTERS:
        return Task(task.key, _get, *task.args, **task.kwargs)
    return task if task.func is operator.getitem else None


def _reads(task: Any, named: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the values that a task takes, given its inputs by name, and the index of those read.

    The index is None for values that are not read by an index.
    """

    def value(argument: Any) -> Any:
        argument = named.get(argument.key) if isinstance(argument, TaskRef) else argument
        return argument.value if isinstance(argument, DataNode) else argument

    if is_fused(task):
        inner, _, names, *inputs = task.args
        outside = dict(zip(names, map(value, inputs), strict=True))
        for step in inner.values():
            yield from _reads(step, {**inner, **outside})
    elif isinstance(task, Task) and task.func in GETTERS:
        source, index = map(value, task.args[:2])
        yield source, index
    elif isinstance(task, Task):
        # A step may use a source that another step reads.
        for leaf in leaves((task.args, task.kwargs)):
            taken = value(leaf)
            if not isinstance(taken, GraphNode | TaskRef):
                yield taken, None


def _get(source: Any, index: Any, asarray: bool = True, lock: Any = None) -> Any:
    """Call Dask's `getter`, but read onto the current GPU if that can decode the chunks."""
    whole = index if isinstance(index, tuple) else (index,)
    if asarray and not any(i is None for i in whole):
        with lock or nullcontext():
            if (read := chunks.read_onto("cupy", source, index)) is not None:
                return read
    return getter(source, index, asarray, lock)


class Places(BlockwiseDep):  # type: ignore[misc]
    """The places of the blocks of an array."""

    produces_tasks = False

    def __init__(self, x: Array) -> None:
        self._name: str = x.name
        self.numblocks: tuple[int, ...] = x.numblocks

    def __getitem__(self, index: tuple[int, ...]) -> Place:
        """Return the place of the block at an index."""
        return Place(self._name, tuple(index))

    def __dask_tokenize__(self) -> Any:
        """Return the values that identify the places in keys."""
        return type(self).__name__, self._name, self.numblocks


@dataclass(frozen=True, slots=True)
class Reading:
    """A task that makes a block, to be run or not; Dask must not see it as a task.

    Attributes
    ----------
    task : Task
    names : tuple of keys
        The names of its inputs in it.
    """

    task: GraphNode
    names: tuple[Any, ...]

    def stamps(self, inputs: Iterable[Any]) -> Any:
        """Return the stamps of its sources; of a stored array those of the chunks that it takes."""
        reads = [*self._reads(inputs)]
        seen = {id(source) for source, _ in reads}
        others = (leaf for leaf in leaves((self.task, inputs)) if id(leaf) not in seen)
        return stamps([*reads, *((other, None) for other in others)])

    def is_of_stored(self, inputs: Iterable[Any]) -> bool:
        """Return whether it only reads stored arrays, so that its block is a new one."""
        if self.onto_gpu is None:
            return False
        sources = [source for source, index in self._reads(inputs) if index is not None]
        return all(map(chunks.only_reads, sources))

    def _reads(self, inputs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        return _reads(self.task, dict(zip(self.names, inputs, strict=True)))

    @property
    def onto_gpu(self) -> GraphNode | None:
        """The task that reads onto the current GPU; None if it does more than to read."""
        return _reading_onto_gpu(self.task)

    def __call__(self, inputs: Iterable[Any]) -> Any:
        """Run the task with its inputs; a block that it only reads may come onto the GPU."""
        return (self.onto_gpu or self.task)(dict(zip(self.names, inputs, strict=True)))


def copy_once(
    place: Place,
    *inputs: Any,
    reading: Reading | None,
    keep: float,
    always: bool,
    nbytes: int | None,
    direct: Direct,
    declared: Declared | None = None,
) -> Any:
    """Return a chunk on the current GPU: the kept one, or else one that is read, copied and kept.

    Parameters
    ----------
    place : Place
    *inputs : object
        The inputs of `reading`; the block itself if that is None.
    reading : Reading or None
        None if other tasks make the block.
    keep : float or int
        How much to keep on a GPU: bytes, or as a float a fraction of its memory.
    always : bool
        Whether to keep chunks whose source may change unnoticed, too.
    nbytes, direct, declared
        As for `copy_to_gpu`.
    """

    def read() -> Any:
        return inputs[0] if reading is None else reading(inputs)

    def stamp() -> Any:
        seen = None if reading is None else reading.stamps(inputs)
        return () if always and seen is None else seen

    gpu, total = chunks.keeper("cupy") if keep else (None, 0)
    source = None if gpu is None else stamp()
    if gpu is None or source is None:
        return copy_to_gpu(read(), nbytes, direct, declared=declared)
    if (kept := KEPT_CHUNKS.find(gpu, place, source)) is not None:
        return kept
    chunk = copy_to_gpu(block := read(), nbytes, direct, declared=declared)
    # A function may return the map of a file, which others may write to without changing its time.
    may_change = (
        not always and chunks.is_mapped(block) and not _reads_npy(reading and reading.task, inputs)
    )
    # Not if it was on a GPU before, or if the source has changed meanwhile.
    was_there = chunk is block and (reading is None or not reading.is_of_stored(inputs))
    if not was_there and not may_change and stamp() == source:
        limit = keep * total if isinstance(keep, float) else keep
        KEPT_CHUNKS.put(gpu, place, source, chunk, int(limit))
    return chunk


def _reads_npy(*values: Any) -> bool:
    return any(isinstance(value, NpyArray) for value in leaves(values))


def with_readings(graph: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a graph with a task for each reading that a copy holds, to be looked at, not run."""
    whole = dict(graph)
    for key, task in graph.items():
        if (place := place_of(task)) is None or task.kwargs["reading"] is None:
            continue
        inputs = {
            name: value if isinstance(value, GraphNode | TaskRef) else DataNode(None, value)
            for name, value in zip(task.kwargs["reading"].names, task.args[1:], strict=True)
        }
        block = (place.name, *place.index)
        whole[block] = task.kwargs["reading"].task.substitute(inputs, key=block)
        options = {**task.kwargs, "reading": None}
        whole[key] = Task(key, copy_once, place, TaskRef(block), **options)
    return whole


def place_of(task: Any) -> Place | None:
    """Return the place of the chunk that a task copies once; None for other tasks."""
    if not isinstance(task, Task) or task.func is not copy_once:
        return None
    place = task.args[0]
    # Dask wraps arguments that differ from block to block.
    location: Place = place.value if isinstance(place, DataNode) else place
    return location


def copied(x: Array, name: str, meta: Any, keep: float, always: bool) -> Array | None:
    """Return `x` on GPUs, with tasks that keep the chunks that they read.

    Parameters
    ----------
    x : Array
    name : str
        The name of the result.
    meta : array
        Its meta.
    keep : float or int
        As for `copy_once`.
    always : bool
        Whether to keep chunks whose source may change unnoticed, too.

    Returns
    -------
    Array or None
        None if tasks do not read their blocks by themselves, and chunks are not `always` kept; or
        if none are kept, and no GPU decodes them.
    """
    if not keep and not any(map(chunks.only_reads, _sources(x))):
        return None
    nbytes, direct = configured()
    options = {"keep": keep, "always": always, "nbytes": nbytes, "direct": direct, **declared_by(x)}
    graph, copies, below = x.dask, {}, {x.name}
    if (layer := _reader(x)) is not None:
        reading = Reading(layer.task, tuple(map(blockwise_token, range(len(layer.indices)))))
        if not keep and reading.onto_gpu is None:
            return None
        blocks = layer.indices, layer.numblocks, layer.io_deps
        copies = _copies(x, name, layer.output_indices, blocks, reading=reading, **options)
        below = {of.key for of, _ in layer.indices if isinstance(of, TaskRef)}
    elif readings := _readings(x):
        if not keep and any(reading.onto_gpu is None for reading in readings.values()):
            return None
        for block, reading in readings.items():
            key, inputs = (name, *block[1:]), map(TaskRef, reading.names)
            place = Place(x.name, block[1:])
            copies[key] = Task(key, copy_once, place, *inputs, reading=reading, **options)
        below = owners(graph, copies)
    elif always:
        axes = tuple(f".{axis}" for axis in range(x.ndim))
        blocks = [(x.name, axes)], {x.name: x.numblocks}, {}
        copies = _copies(x, name, axes, blocks, reading=None, **options)
    else:
        return None
    # Without the layers that are now within the new one.
    whole = add(_behind(graph, below), name, copies, below)
    return new_da_object(whole, name, x.chunks, meta=meta)


def copies_chunks(x: Array) -> bool:
    """Return whether tasks copy each chunk of `x` to a GPU, or find it there."""
    layer = x.dask.layers.get(x.name)
    if isinstance(layer, Blockwise):
        return layer.task.func is copy_once and not layer.annotations
    is_plain = isinstance(layer, MaterializedLayer) and not layer.annotations
    return is_plain and place_of(next(iter(layer.mapping.values()), None)) is not None


def transposed(x: Array) -> tuple[Array, tuple[int, ...]] | None:
    """Return the array that `x` is a transpose of, and the order of axes; None if it is none."""
    layer = x.dask.layers.get(x.name)
    if not isinstance(layer, Blockwise) or layer.task.func is not np.transpose or layer.annotations:
        return None
    axes, inputs = layer.task.kwargs.get("axes"), layer.indices
    if not isinstance(axes, tuple) or len(inputs) != 1 or inputs[0][1] is None:
        return None
    ((name, index),) = inputs
    order = tuple(d % x.ndim for d in axes)
    # Somebody may transpose each block, and leave it at its place.
    if name not in x.dask.layers or [index[d] for d in order] != [*layer.output_indices]:
        return None
    back = [order.index(d) for d in range(x.ndim)]
    meta, sizes = x._meta.transpose(back), tuple(x.chunks[d] for d in back)
    return new_da_object(_behind(x.dask, {name}), name, sizes, meta=meta), order


def _behind(graph: HighLevelGraph, names: Iterable[str]) -> HighLevelGraph:
    """Return some layers of a graph and those that they need."""
    layers, dependencies = {}, {}
    todo = [*names]
    while todo:
        if (name := todo.pop()) not in layers:
            layers[name], dependencies[name] = graph.layers[name], graph.dependencies[name]
            todo += dependencies[name]
    return HighLevelGraph(layers, dependencies)


def _sources(x: Array) -> Iterator[Any]:
    """Yield the values that tasks of `x` take for all blocks."""
    for layer in x.dask.layers.values():
        values: Iterable[Any] = ()
        if isinstance(layer, Blockwise):
            values = (of for of, axes in layer.indices if axes is None)
        elif isinstance(layer, MaterializedLayer) and len(layer.mapping) == 1:
            values = layer.mapping.values()
        yield from (value.value if isinstance(value, DataNode) else value for value in values)


def _copies(x: Array, name: str, axes: Any, blocks: tuple[Any, ...], **options: Any) -> Blockwise:
    """Return a layer of copies; `blocks` are their inputs: indices, numbers of blocks, and IO."""
    indices, numblocks, io_deps = blocks
    *slots, place = (TaskRef(blockwise_token(i)) for i in range(len(indices) + 1))
    task = Task(name, copy_once, place, *slots, **options)
    return Blockwise(name, axes, task, [*indices, (Places(x), axes)], numblocks, io_deps=io_deps)


def _reader(x: Array) -> Blockwise | None:
    """Return a layer whose tasks read the blocks of `x`; None if these need other tasks."""
    graph, todo = x.dask, [x.name]
    layers: dict[str, Any] = {}
    while todo:
        name = todo.pop()
        layer = graph.layers[name]
        if name not in layers and isinstance(layer, Blockwise):
            layers[name] = layer
            todo += graph.dependencies[name]
            # Dask's fusion changes the new axes of a layer, and annotations tell where tasks run.
            if layer.new_axes or layer.annotations:
                return None
    if x.name not in layers:
        return None
    below = {name: graph.dependencies[name] for name in layers}
    fused = optimize_blockwise(HighLevelGraph(layers, below), [x.name]).layers[x.name]
    by_itself = all(
        of in fused.io_deps
        if axes is not None
        else not isinstance(of, TaskRef) or of.key in graph.layers
        for of, axes in fused.indices
    )
    return fused if by_itself else None


def _readings(x: Array) -> dict[Any, Reading]:
    """Return the readings of the blocks of `x`, such as of several files; empty if it has others.

    Slices and concatenations are such arrays.
    """
    layers = x.dask.layers.values()
    if sum(map(len, layers)) > MOST_TASKS or any(layer.annotations for layer in layers):
        return {}
    sources = Sources([x])
    readings = {}
    for block in flatten(x.__dask_keys__()):
        if (task := sources.alone(block)) is None:
            return {}
        readings[block] = Reading(task, tuple(task.dependencies))
    return readings


def store_chunk(x: Any, out: Any, index: Any, nbytes: int | None = None, **options: Any) -> Any:
    """Do what Dask's `load_store_chunk` does, also for chunks that are not on the host.

    The chunk is copied straight into the memory of `out` if that is a NumPy array.
    """
    is_plain = isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray)
    # Indexing an array without axes gives no view.
    if not is_plain or not out.ndim or options["region"]:
        return load_store_chunk(copy_to_host(x, nbytes), out, index, **options)
    with options["lock"] or nullcontext():
        chunks.put_into(out[index], x, nbytes)
    return load_store_chunk(None, out, index, **options)


def keeping() -> float:
    """Return how much to keep on a GPU: bytes, or as a float a fraction of its memory; or 0."""
    keep: float = config.get("coop.transfer.keep", False, config.SHARE)
    return keep or 0


def configured() -> Configured:
    """Return the configuration of copies, from Dask's."""
    direct = config.get("coop.transfer.direct", "auto", True, False)
    return config.get("coop.transfer.buffers", config.size(LEAST_BYTES)), direct


def take_over(options: Configured = (None, "auto")) -> Callable[[], bool]:
    """Route `to_backend` through pinned memory.

    Returns
    -------
    callable
        Ends the routing for this caller, and returns whether no other caller wants it. Call it
        once.
    """
    global _dasks, _is_ours
    caller = object()
    with _lock:
        # First, so that a caller collected from here on is not the last.
        _wanted[caller] = options
        if not _is_ours:
            # Another library may have replaced the call.
            _dasks, _is_ours = Dispatch.__call__, True
            Dispatch.__call__ = _call
    return partial(_give_back, caller)


def _give_back(caller: object) -> bool:
    global _is_ours
    with _lock:
        del _wanted[caller]
        # If another library wraps our call, it stays, and acts as Dask's once nobody wants ours.
        if not _wanted and Dispatch.__call__ is _call:
            Dispatch.__call__, _is_ours = _dasks, False
        return not _wanted


def _call(dispatch: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a dispatch, with copies of our own where we can make them."""
    source, target = _WAYS.get(getattr(dispatch, "__name__", ""), ("", ""))
    # Dask's functions have options that ours lack.
    if not _wanted or not target or args or kwargs or not chunks.can_move(x, source):
        return _dasks(dispatch, x, *args, **kwargs)
    options = next(reversed([*_wanted.values()]), ())
    return chunks.asarray(x, target, *options)
