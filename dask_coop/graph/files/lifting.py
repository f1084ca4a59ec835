"""Read, decode and lift neighbouring small stored chunks in one task.

A task costs the host about as much time as reading a small chunk, and a chunk that passes from task
to task leaves the caches. One task that reads a run of chunks decodes each where the one before it
was, and returns their states::

    x0 x1 ... x7    --read and lift in turn--> [s0 s1 ... s7]   -+
    x8 x9 ... x15   --read and lift in turn--> [s8 s9 ... s15]  -+-combine--> ...

Graphs have a task for each chunk until Dask culls them, layer by layer from the results to the
data. `Combines` then leaves the tasks that combine the states of blocks to `Reads`, which sees what
all results of a call need. So several reductions share a run. If anything else needs a block, or
reductions need different runs, blocks are read by a task each, once. `Data` makes the runs where
computed blocks have taken the place of `Reads`.

States are combined as they would be without runs, so results have the same bits.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import dask
import numpy as np
from dask.array.core import Array, new_da_object
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.layers import ArraySliceDep
from dask.task_spec import Alias, DataNode, Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.graph import tasks
from dask_coop.graph.config import on_cluster
from dask_coop.graph.fusion import Blocks
from dask_coop.graph.layers import trees
from dask_coop.graph.tasks import Graph, refs
from dask_coop.graph.threads import configured

#: The most bytes of the chunks of a run.
RUN_BYTES = 32 << 20
#: The least runs for each thread, so that threads end at about the same time.
RUNS_A_THREAD = 4
#: States of a run are in memory together, and have at most this fraction of its bytes.
STATES = 1 / 16

#: The prefix of Dask's layers that hold an array for those that read it.
ORIGINAL = "original-"

Kind = TypeVar("Kind", bound=Layer)
Key = tuple[Any, ...]
Needs = dict[Any, set[Any]]


class Lift(NamedTuple):
    """How the blocks of a run are lifted.

    Attributes
    ----------
    function : callable
        `tasks.lift` or `tasks.count`.
    arguments : dict
        Those that are the same for all blocks.
    origins : list of Origin
        The origin of each block; empty if the operation needs none.
    """

    function: Callable[..., State]
    arguments: dict[str, Any]
    origins: list[Origin]


def readable_in_runs(x: Array) -> Array:
    """Return an array of Dask's readers with layers that can read runs of its blocks."""
    layers, original = dict(x.dask.layers), ORIGINAL + x.name
    if original not in layers:
        return x
    layers |= {x.name: as_reads(layers[x.name]), original: as_data(layers[original])}
    return new_da_object(HighLevelGraph(layers, x.dask.dependencies), x.name, x.chunks, x._meta)


def as_data(layer: MaterializedLayer) -> MaterializedLayer:
    """Return a layer that holds a stored array as one that can lift runs of its blocks.

    It stays as it is if the array cannot be read in runs.
    """
    (source,) = layer.mapping.values()
    is_lent = chunks.can_lend(source.value if isinstance(source, DataNode) else source)
    return _like(layer, Data) if is_lent else layer


def as_reads(layer: Blockwise) -> Reads:
    """Return a layer that reads the blocks of an array of `Data`, in runs if nothing else does."""
    return _like(layer, Reads)


def _like(layer: Layer, kind: type[Kind]) -> Kind:
    """Return a layer of a kind that is a subclass of its own."""
    result = object.__new__(kind)
    result.__dict__.update(layer.__dict__)
    return result


def run_length(x: Array, state_bytes: float) -> int:
    """Return the most blocks of a run; 1 if blocks are read apart.

    Parameters
    ----------
    x : Array
    state_bytes : float
        The bytes of the state of a block; NaN if they are unknown.
    """
    reads = x.dask.layers.get(x.name)
    # Dask fuses no tasks that are to run in different places.
    if type(reads) is not Reads or reads.annotations or dask.get_annotations():
        return 1
    # How many threads a cluster has is not known here.
    if on_cluster():
        return 1
    nbytes: int = math.prod(map(max, x.chunks)) * x.dtype.itemsize
    if nbytes == 0 or not state_bytes <= STATES * nbytes:
        return 1
    most: int = x.npartitions // (RUNS_A_THREAD * configured())
    return max(1, min(RUN_BYTES // nbytes, most))


def lifted_trees(
    lifts: Blocks,
    inputs: Sequence[Any],
    op: Operation,
    groups: dict[Key, list[Key]],
    names: tuple[str, str],
    fan_in: int,
    limit: int,
    state_bytes: float,
) -> tuple[HighLevelGraph, str, dict[Key, list[Key]]]:
    """Return a graph with a layer that lifts blocks and a tree on each group of their states.

    Parameters
    ----------
    lifts : Blocks
        A layer of `tasks.lift` or `tasks.count`.
    inputs : sequence of Array or Delayed
        All that it needs.
    op, groups, names, fan_in, limit
        As for `layers.trees`, whose results these are.
    state_bytes : float
        As for `run_length`.
    """
    length = 1
    if len(inputs) == 1 and max(map(len, groups.values())) > limit:
        length = run_length(inputs[0], state_bytes)
    if length > 1:
        # Dask does not fuse layers that differ in this.
        lifts.concatenate = True
    graph = HighLevelGraph.from_collections(lifts.output, lifts, dependencies=inputs)
    graph, last, remaining = trees(graph, lifts.output, op, groups, names, fan_in, limit)
    if length > 1:
        reads = graph.layers[inputs[0].name]
        original, key = ORIGINAL + reads.output, (f"{ORIGINAL}{last}",)
        # So that `Data` is culled later, also where other layers are in the place of `Reads`.
        mapping = {**graph.layers[last], key: Alias(key, original)}
        layer = Combines(mapping, last, reads, lifts, length)
        below = {**graph.dependencies, last: {lifts.output, original}}
        graph = HighLevelGraph({**graph.layers, last: layer}, below)
    return graph, last, remaining


# Layers.


class _Culled(threading.local):
    """The layers of `Combines` that this thread culls, by name."""

    def __init__(self) -> None:
        self.layers: weakref.WeakValueDictionary[str, Combines] = weakref.WeakValueDictionary()


_culled = _Culled()


class Combines(MaterializedLayer):  # type: ignore[misc]
    """A layer that combines states, and leaves those of blocks to `Reads` when it is culled."""

    def __init__(self, mapping: Graph, name: str, reads: Reads, lifts: Blocks, length: int) -> None:
        super().__init__(mapping)
        self.name: str = name
        self.reads: Reads = reads
        self.lifts: Blocks = lifts
        self.length: int = length

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Needs]:
        """Return the layer of the tasks behind `keys`, and the keys that each task needs."""
        layer, _ = super().cull(keys & self.mapping.keys(), all_hlg_keys)
        _culled.layers[self.name] = self
        above = {key: task for key, task in layer.items() if not self.lifted(key)}
        return MaterializedLayer(above, annotations=self.annotations), _needs(above)

    def lifted(self, key: Key) -> list[Key]:
        """Return the keys of the lifted blocks that a task combines; empty if of states."""
        states = [ref.key for ref in self.mapping[key].kwargs["states"].args]
        return states if states[0][0] == self.lifts.output else []

    def runs(self, key: Key) -> Iterator[tuple[Key, ...]]:
        """Yield the runs of blocks that a task combines, by their indices."""
        blocks = [lifted[1:] for lifted in self.lifted(key)]
        for begin in range(0, len(blocks), self.length):
            yield tuple(blocks[begin : begin + self.length])

    def lift(self, run: Sequence[Key]) -> Lift:
        """Return how the blocks of a run are lifted."""
        task = self.lifts.task
        arguments = {k: value for k, value in task.kwargs.items() if not isinstance(value, TaskRef)}
        # The origins of blocks are all that differs.
        origins = [of[index] for of in self.lifts.io_deps.values() for index in run]
        return Lift(task.func, arguments, origins)


class Reads(Blockwise):  # type: ignore[misc]
    """A layer that reads the blocks of a stored array, or lifts runs of them."""

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Needs]:
        """Return the layer of the tasks behind `keys`, and the keys that each task needs."""
        asked = _asked(keys, self.output)
        often = Counter(index for run in _by_run(asked) for index in run)
        if {*often.values()} == {1} and not any(key[0] == self.output for key in keys):
            lifting = _in_runs(asked, self)
            return MaterializedLayer(lifting, annotations=self.annotations), _needs(lifting)
        layer, needs = super().cull(keys | {(self.output, *index) for index in often}, all_hlg_keys)
        if not asked:
            return layer, needs
        lifting = _apart(asked)
        whole = MaterializedLayer({**layer, **lifting}, annotations=self.annotations)
        return whole, {**needs, **_needs(lifting)}


class Data(MaterializedLayer):  # type: ignore[misc]
    """A layer that holds a stored array, and lifts runs of its blocks if no `Reads` does."""

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Needs]:
        """Return the layer of the tasks behind `keys`, and the keys that each task needs."""
        (original,) = self.mapping
        asked = _asked(keys, original.removeprefix(ORIGINAL))
        layer, needs = super().cull(keys | {original} if asked else keys, all_hlg_keys)
        if not asked:
            return layer, needs
        lifting = _in_runs(asked, asked[0][0].reads)
        return MaterializedLayer({**layer, **lifting}), {**needs, **_needs(lifting)}


#: Tasks that combine the states of blocks, each with its layer.
_Asked = list[tuple[Combines, Key]]


def _asked(keys: Iterable[Any], name: str) -> _Asked:
    """Return the keys that layers of `Combines` have left to the layer of a name."""
    layers = _culled.layers
    return [
        (layer, key)
        for key in sorted(key for key in keys if isinstance(key, tuple) and key[0] in layers)
        if (layer := layers[key[0]]).reads.output == name
    ]


def _by_run(asked: _Asked) -> dict[tuple[Key, ...], list[Combines]]:
    """Return the layers that need each run."""
    layers: dict[tuple[Key, ...], list[Combines]] = {}
    for layer, key in asked:
        for run in layer.runs(key):
            layers.setdefault(run, []).append(layer)
    return layers


def _needs(graph: Graph) -> Needs:
    return {key: set(task.dependencies) for key, task in graph.items()}


def _in_runs(asked: _Asked, reads: Reads) -> Graph:
    """Return tasks that read and lift runs, each for all layers that need it, and combine."""
    graph: Graph = {}
    by_run = _by_run(asked)
    keys: dict[tuple[Key, ...], Key] = {}
    prefixes: dict[tuple[str, ...], str] = {}
    (places,) = (of for of in reads.io_deps.values() if isinstance(of, ArraySliceDep))
    source = next(of for of, axes in reads.indices if axes is None)
    names: dict[tuple[Key, ...], tuple[str, ...]] = {}
    for run, layers in by_run.items():
        names[run] = together = tuple(layer.name for layer in layers)
        # Other layers need another task of the same run.
        if together not in prefixes:
            prefixes[together] = f"lift-{reads.output}-{tokenize(together)}"
        keys[run] = key = (prefixes[together], *run[0], *run[-1])
        graph[key] = Task(
            key,
            lift_run,
            source=source,
            places=[places[index] for index in run],
            lifts=[layer.lift(run) for layer in layers],
        )
    for layer, key in asked:
        runs = [*layer.runs(key)]
        graph[key] = Task(
            key,
            combine_runs,
            op=layer.mapping[key].kwargs["op"],
            runs=refs(keys[run] for run in runs),
            numbers=[names[run].index(layer.name) for run in runs],
        )
    return graph


def _apart(asked: _Asked) -> Graph:
    """Return tasks that lift blocks that other tasks read, and combine."""
    graph: Graph = {}
    for layer, key in asked:
        graph[key] = layer.mapping[key]
        graph |= {lifted: layer.lifts[lifted] for lifted in layer.lifted(key)}
    return graph


# Inside the tasks.


def lift_run(
    *, source: Any, places: list[tuple[slice, ...]], lifts: list[Lift]
) -> list[list[State]]:
    """Return for each of several operations the states of the blocks of a run.

    Parameters
    ----------
    source : object
        A stored array, or a chain of xarray's with one.
    places : list of tuple of slice
        Where the blocks are in `source`.
    lifts : list of Lift
        One for each operation.
    """
    states: list[list[State]] = [[] for _ in lifts]
    for n, block in enumerate(chunks.lend(source, places)):
        for of, (function, arguments, origins) in zip(states, lifts, strict=True):
            if function is tasks.count:
                state = function(block, **arguments)
            else:
                origin = origins[n] if origins else None
                state = function(block=block, origin=origin, **arguments)
            of.append(tuple(_kept(field, block) for field in state))
    return states


def _kept(field: Any, block: Any) -> Any:
    """Return a field that the next block does not overwrite."""
    is_lent = isinstance(field, np.ndarray) and np.may_share_memory(field, block)
    return field.copy() if is_lent else field


def combine_runs(*, op: Operation, runs: list[list[list[State]]], numbers: list[int]) -> State:
    """Combine the states of runs in their order; `numbers` tell the operation within each run."""
    states = (of[number] for of, number in zip(runs, numbers, strict=True))
    return op.combine([*itertools.chain(*states)])
