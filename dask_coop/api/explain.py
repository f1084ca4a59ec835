"""Explain a lazy result: its operations, what serves each, by which method, and why.

The graph shows it. Tasks of one name form a group; a group is ours if one of its tasks calls a
function of this library. Groups that are steps of one reduction, scan, histogram or product form
one operation::

    sum-lift-1f3, sum-combine-1f3, sum-9c2     one tree, dask_coop's
    move_sum-slice-7b0, move_sum-7b0           windows, dask_coop's
    random_sample-5e1                          another operation, Dask's

A graph does not record that an operation was left to Dask, or why: `fallback` does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from dask._task_spec import convert_legacy_graph
from dask.base import is_dask_collection
from dask.highlevelgraph import Layer
from dask.task_spec import Alias, DataNode, Task
from dask.utils import ensure_dict, format_bytes, key_split

from dask_coop import chunks
from dask_coop.algebra.bins import Grid, Integers
from dask_coop.api.call import drawings
from dask_coop.api.call.fallback import HandOver, recall
from dask_coop.api.call.planning import held_graph
from dask_coop.api.call.report import as_table
from dask_coop.chunks import tables
from dask_coop.chunks.kept import KEPT_CHUNKS
from dask_coop.files import rates
from dask_coop.files.gpu import rules
from dask_coop.files.hdf5 import Hdf5Array
from dask_coop.files.recognised import stored_in
from dask_coop.files.stored import StoredArray
from dask_coop.files.target import StoredTarget
from dask_coop.graph import (
    group_quantiles,
    group_selection,
    grouped,
    joined,
    matmul,
    transfer,
    windows,
)
from dask_coop.graph.files import writing
from dask_coop.graph.files.lifting import Combines, combine_runs, lift_run
from dask_coop.graph.sorting import exchange
from dask_coop.graph.tasks import (
    KINDS,
    AggregateTask,
    CombineTask,
    CountTask,
    DownsweepTask,
    Kind,
    LiftTask,
    OurTask,
    ScanFromTask,
    StatesTask,
    StepTask,
    TabulateTask,
    UpsweepTask,
    index_of,
    is_fused,
    kind_of,
    name_of,
    read,
    taken_apart,
)

#: Steps that join the operation that takes their states; other steps have its token in their names.
_STEPS = {LiftTask, CombineTask, grouped.lift, grouped.lift_lazy, tables.merge_tables}
_STEPS |= {lift_run, combine_runs}
#: The modules of functions that Dask puts between tasks that it fuses.
_BETWEEN = ("dask._expr", "dask._task_spec")
_KINDS = {"numpy": "NumPy", "cupy": "CuPy"}


class Row(NamedTuple):
    """An operation of a lazy result.

    Attributes
    ----------
    operation : str
        The prefix of its keys.
    served_by : str
        "dask_coop", "Dask", or "Zarr" and "HDF5" for stored chunks that these decode.
    method : str
        How it is computed.
    why : str
        The dtype and the kind of chunks, or why it was left to Dask.
    """

    operation: str
    served_by: str
    method: str
    why: str


_HEAD = ("operation", "served by", "method", "why")


class Explanation(tuple[Row, ...]):
    """The operations of a lazy result, in order from its data; it prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the table."""
        return as_table([_HEAD, *self])

    def _repr_html_(self) -> str:
        return drawings.table([_HEAD, *self])


def explain(x: Any) -> Explanation:
    """Explain a lazy result: which function serves each operation, by which method, and why.

    Parameters
    ----------
    x : dask.array.Array, Delayed, other Dask collection, or tuple or list of them
        One or several lazy results; values in a tuple or list that are not lazy are skipped.

    Returns
    -------
    Explanation
        A tuple that prints as a table, with a row for each operation, in order from the data. A row
        has ``operation``, ``served_by`` ("dask_coop", "Dask", "Zarr" or "HDF5"), ``method`` and
        ``why``.

    Raises
    ------
    TypeError
        If nothing in `x` is lazy.

    Notes
    -----
    Nothing is computed. The process remembers why a call was left to Dask for the last 1,000 such
    results. A scheduler may change the tasks when it runs them: see `Node.explain`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.explain(dc.cumsum(da.ones(8, chunks=2)))
    operation  served by  method                                   why
    ones_like  Dask       4 tasks of ones_like                     no function of dask_coop
    cumsum     dask_coop  reduce-then-scan over 4 chunks; 8 tasks  float64 in NumPy chunks
    """
    collections = [*_collections(x)]
    if not collections:
        raise TypeError(
            f"explain takes lazy results, got {type(x).__name__} with nothing lazy in it"
        )
    graph: dict[Any, Any] = {}
    layers: dict[str, Layer] = {}
    for collection in collections:
        graph |= ensure_dict(collection.__dask_graph__())
        layers |= _layers(collection)
    graph = transfer.with_readings(convert_legacy_graph(graph))
    # Fused tasks may hold fused tasks.
    while any(map(is_fused, graph.values())):
        graph, _ = taken_apart(graph, {*KINDS.values()}, graph.keys())
        graph = transfer.with_readings(graph)
    return Explanation(_rows(graph, layers))


def _collections(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple | list):
        for part in x:
            yield from _collections(part)
    elif is_dask_collection(x):
        yield x


def _layers(collection: Any) -> dict[str, Layer]:
    """Return the layers of a graph by their names."""
    plan = getattr(collection, "_expr", None)
    graphs = [collection.__dask_graph__()] if plan is None else map(held_graph, plan.walk())
    return {name: layer for graph in graphs for name, layer in getattr(graph, "layers", {}).items()}


def _kind(layer: Layer | None) -> str:
    """Return the kind of chunks of the array that a layer makes; empty if unknown."""
    known = getattr(layer, "collection_annotations", None) or {}
    return _KINDS.get(known.get("chunk_type", "").partition(".")[0], "")


class _Groups:
    """The tasks of a graph, grouped by name."""

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self.nodes: dict[str, list[Any]] = defaultdict(list)
        self.needs: dict[str, set[str]] = defaultdict(set)
        #: The length of the longest chain of tasks that ends in one of a name.
        self.depth: dict[str, int] = defaultdict(int)
        depths: dict[Any, int] = {}
        order = TopologicalSorter({key: node.dependencies for key, node in graph.items()})
        for key in order.static_order():
            if key not in graph:
                continue
            node, name = graph[key], name_of(key)
            depths[key] = 1 + max((depths.get(k, 0) for k in node.dependencies), default=0)
            self.depth[name] = max(self.depth[name], depths[key])
            self.nodes[name].append(node)
            self.needs[name] |= {name_of(k) for k in node.dependencies if k in graph} - {name}
        self.ours = {name for name, nodes in self.nodes.items() if any(map(_is_ours, nodes))}

    def below(self, name: str, inputs: frozenset[str]) -> set[str]:
        """Return the names of Dask's tasks that make `name` from `inputs`."""
        names: set[str] = set()
        waiting = [name]
        while waiting:
            new = self.needs[waiting.pop()] - inputs - names - self.ours
            names |= new
            waiting += new
        return names

    def operations(self, left: Mapping[str, HandOver]) -> list[list[str]]:
        """Return the names in each operation, in order from the data."""
        joined_to: dict[str, str] = {}

        def root(name: str) -> str:
            while name in joined_to:
                name = joined_to[name]
            return name

        # Dask gives each value that tasks take a name; those with one prefix belong together.
        values: dict[str, str] = {}
        for name in sorted(self.nodes):
            others: Iterable[str] = ()
            if all(map(_is_value, self.nodes[name])):
                others = [values.setdefault(key_split(name), name)]
            if name in self.ours:
                others = (
                    other for other in self.needs[name] & self.ours if self._is_step(other, name)
                )
            elif name in left:
                others = self.below(name, left[name].inputs)
            for other in sorted(others):
                ends = sorted({root(name), root(other)})
                joined_to |= dict.fromkeys(ends[1:], ends[0])
        members: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.nodes):
            members[root(name)].append(name)
        return sorted(
            members.values(), key=lambda names: (max(self.depth[n] for n in names), names)
        )

    def _is_step(self, other: str, name: str) -> bool:
        """Return whether `other`, which `name` needs, is a step of the same operation."""
        same = other.rpartition("-")[2] == name.rpartition("-")[2]
        return same or {kind_of(node) or _function(node) for node in self.nodes[other]} <= _STEPS


def _rows(graph: Mapping[Any, Any], layers: Mapping[str, Layer]) -> Iterator[Row]:
    groups = _Groups(graph)
    left = {name: cause for name in groups.nodes if (cause := recall(name))}
    # The arrays whose chunks are read onto GPUs.
    copied = {
        place.name
        for nodes in groups.nodes.values()
        for node in nodes
        if (place := transfer.place_of(node))
    }
    for names in groups.operations(left):
        tasks = [node for name in names for node in groups.nodes[name]]
        needed = set().union(*(groups.needs[name] for name in names))
        if all(map(_hands_on, tasks)):
            continue
        if not groups.ours.isdisjoint(names):
            # An operation has the name of its last steps, which no other step needs.
            last = [name for name in names if name not in needed] or names
            known = filter(None, (_kind(layers.get(name)) for name in (*last, *sorted(needed))))
            title = ", ".join(dict.fromkeys(map(key_split, last)))
            if target := _target(tasks):
                yield _writes(title, target, tasks)
                continue
            how = _method(tasks)
            lengths = [of.length for name in names if type(of := layers.get(name)) is Combines]
            if lengths:
                how += f"; one reads and lifts up to {max(lengths)} chunks that nothing else needs"
            yield Row(title, "dask_coop", how, _elements(tasks, next(known, "")))
        elif cause := next(filter(None, map(left.get, names)), None):
            how = f"{cause.function} of dask.array; {_count(len(tasks), 'task')}"
            yield Row(cause.function, "Dask", how, cause.cause)
        elif stored := _stored([*tasks, *(node for name in needed for node in groups.nodes[name])]):
            if not all(map(_is_value, tasks)):
                onto_gpu = not copied.isdisjoint(names)
                yield _reads(key_split(names[0]), stored, len(tasks), onto_gpu)
        else:
            yield Row(key_split(names[0]), "Dask", _theirs(tasks), "no function of dask_coop")


def _stored(nodes: Iterable[Any]) -> StoredArray | Hdf5Array | None:
    """Return the stored array that tasks read, or None."""
    for node in nodes:
        values = [node.value] if type(node) is DataNode else getattr(node, "args", ())
        for value in values:
            # Dask wraps arguments that are the same for all blocks.
            value = value.value if isinstance(value, DataNode) else value
            if (stored := stored_in(value)) is not None:
                return stored
    return None


def _reads(name: str, stored: StoredArray | Hdf5Array, n: int, onto_gpu: bool) -> Row:
    """Return the row of an array that is read from a store."""
    elements = f"{stored.dtype} in NumPy chunks"
    if why_not := stored.why_not:
        theirs = ("HDF5", "one by one")
        if isinstance(stored, StoredArray):
            theirs = ("Zarr", "through its event loop")
        return Row(name, theirs[0], f"{_count(n, 'task')} {theirs[1]}", why_not)
    seen = f"; {rate}" if (rate := rates.of(stored.source.name)) else ""
    if onto_gpu and (chain := stored.chain):
        why_not = rules.why_not(chain)
        seen = f", {f'on the host: {why_not}' if why_not else 'on GPUs'}{seen}"
    return Row(
        name,
        "dask_coop",
        f"{_count(n, 'task')} that read and decode {stored.codecs}{seen}",
        elements,
    )


def _target(nodes: Iterable[Any]) -> StoredTarget | None:
    """Return the stored array that tasks write, or None."""
    for node in nodes:
        value = getattr(node, "kwargs", {}).get("target")
        value = value.value if isinstance(value, DataNode) else value
        if isinstance(value, StoredTarget):
            return value
    return None


def _writes(name: str, target: StoredTarget, tasks: list[Any]) -> Row:
    """Return the row of an array that is written to a store."""
    count = _count(sum(_function(task) is writing.write for task in tasks), "task")
    if target.why_not:
        return Row(name, "Zarr", f"{count} through its event loop", target.why_not)
    how = f"{count} that encode {target.codecs} and write"
    return Row(name, "dask_coop", how, str(target.dtype))


def _function(node: Any) -> Any:
    """Return the function that a task calls, without its bound arguments."""
    function = node.func if isinstance(node, Task) else None
    while isinstance(function, partial):
        function = function.func
    return function


def _hands_on(node: Any) -> bool:
    """Return whether a node is an alias, a view, or a call that Dask puts between fused tasks."""
    function = _function(node)
    passes = function is joined.cut or getattr(function, "__module__", None) in _BETWEEN
    return isinstance(node, Alias) or passes


def _is_ours(node: Any) -> bool:
    function = _function(node)
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] == "dask_coop" and function is not joined.cut


def _is_value(node: Any) -> bool:
    """Return whether a node is a value that tasks take, not a chunk."""
    return type(node) is DataNode and not isinstance(node.key, tuple)


def _method(tasks: list[Any]) -> str:
    """Return how an operation of ours is computed."""
    count = _count(len(tasks), "task")
    if scans := _of_kind(tasks, DownsweepTask):
        ours = scans, _of_kind(tasks, UpsweepTask)
        used, lifted = ({name_of(step.block) for step in steps} for steps in ours)
        how = "recompute" if lifted - used else "reduce-then-scan"
        suffix = " with segments" if any(scan.heads for scan in scans) else ""
        return f"{how} over {_count(len(scans), 'chunk')}{suffix}; {count}"
    if ends := _of_kind(tasks, ScanFromTask):
        steps = len(ends) + len(_of_kind(tasks, StepTask))
        return f"sequential over {_count(steps, 'chunk')}; {count}"
    calls: dict[Any, list[Any]] = defaultdict(list)
    for task in tasks:
        calls[_function(task)].append(task)
    if runs := calls.get(lift_run):
        chunks_of_runs = _count(sum(len(task.kwargs["places"]) for task in runs), "chunk")
        return (
            f"tree over {chunks_of_runs}, which {_count(len(runs), 'task')} read and lift; {count}"
        )
    if how := _of_groups(calls) or _of_series(calls, len(_of_kind(tasks, LiftTask))):
        return f"{how}; {count}"
    if products := calls[matmul.multiply]:
        fan_in = max(len(task.dependencies) for task in calls[matmul.add])
        how = f"{_count(len(products), 'product')} of blocks"
        return f"{how}, up to {fan_in} added a task; {count}"
    if counts := _of_kind(tasks, CountTask):
        n, form = len(counts), _table(counts[0])
    elif lifts := _of_kind(tasks, LiftTask):
        n, form = len(lifts), "tree"
    else:
        how = "chunk by chunk"
        if places := {*map(transfer.place_of, tasks)} - {None}:
            kept, nbytes = KEPT_CHUNKS.of(places)
            how += f", {kept} on GPUs already ({format_bytes(nbytes)})" if kept else ""
        return f"{how}; {count}" if len(tasks) > 1 else count
    how = f"{form} over {_count(n, 'chunk')}"
    if fan_in := max((len(task.states) for task in _of_kind(tasks, StatesTask)), default=0):
        how += f", up to {_count(fan_in, 'state')} a task"
    return f"{how}; {count}"


def _of_groups(calls: Mapping[Any, list[Any]]) -> str:
    """Return how groups are reduced, by the functions that tasks call; empty if none are."""
    if blocks := calls.get(group_quantiles.quantiles_of_block):
        return f"{_count(len(blocks), 'block')} of whole groups"
    if blocks := calls.get(group_quantiles.quantiles_by_labels):
        return f"{_count(len(blocks), 'block')} of whole lines"
    if blocks := calls.get(group_selection.count_block):
        return f"digits by group, counted over {_count(len(blocks), 'chunk')}"
    lifts = [*calls.get(grouped.lift, ()), *calls.get(grouped.lift_lazy, ())]
    ends = calls.get(tables.finish, [])
    if not lifts or not ends:
        return ""
    # Count groups over the blocks of one result that lie along its groups.
    first, *_ = ends
    leading = len(index_of(first.key)) - len(first.kwargs["shape"])
    n = sum(
        end.kwargs["n"] + sum(tables.count(target) for _, target in end.kwargs.get("alone") or ())
        for end in ends
        if name_of(end.key) == name_of(first.key)
        and index_of(end.key)[:leading] == index_of(first.key)[:leading]
    )
    most = max(map(_groups_of, lifts))
    shown = f"table of {_count(n, 'group')}"
    if most < n:
        shown = f"tables of up to {most} of {_count(n, 'group')}"
    merges = [*ends, *calls.get(tables.merge_tables, ())]
    fan_in = max(len(task.kwargs["states"].args) for task in merges)
    return f"{shown} over {_count(len(lifts), 'chunk')}, up to {_count(fan_in, 'table')} a task"


def _groups_of(lift: Task) -> int:
    """Return the number of groups in the table of a chunk."""
    if "coder" in lift.kwargs:
        return math.prod(lift.kwargs["coder"].shape)
    codes = lift.kwargs["codes"]
    # Dask wraps arguments that differ from block to block.
    _, n = codes.value if isinstance(codes, DataNode) else codes
    return int(n)


def _of_series(calls: Mapping[Any, list[Any]], lifted: int) -> str:
    """Return how lines are sorted, or windows, areas or joins are made; empty if none are."""
    if ends := calls.get(windows.reduce_windows):
        how = f"windows over {_count(len(ends), 'chunk')}"
        if lifted:
            how += f", with states of {_count(lifted, 'part')} between their ends"
        return how
    if runs := calls.get(exchange.sort_chunk) or calls.get(exchange.argsort_chunk):
        return f"{_count(len(runs), 'chunk')} sorted, then slices of these merged"
    if areas := calls.get(windows.areas_of_block):
        return f"areas between the samples of {_count(len(areas), 'chunk')}"
    if joins := calls.get(joined.join):
        n = sum(len(task.args[0]) for task in joins)
        return f"{n} chunks in the memory of a GPU, joined to {len(joins)}"
    if joins := calls.get(joined.join_made):
        n = sum(len(task.args[0].args) for task in joins)
        return f"{n} chunks, joined to {len(joins)} on the GPU"
    if calls.keys() == {chunks.asarray}:
        return "known when the graph is built"
    return ""


def _of_kind(tasks: list[Any], kind: type[Kind]) -> list[Kind]:
    """Return the arguments of the tasks that are of a kind."""
    return [arguments for task in tasks if (arguments := read(task, kind))]


def _table(task: CountTask) -> str:
    """Return a description of the tables that the tasks of a histogram count into."""
    match task.grid:
        case Grid(bins=axes):
            bins = " x ".join(str(axis.n) for axis in axes) + " bins"
        case Integers():
            bins = "integers"
        case _:
            bins = "bins that a task finds"
    content = "" if task.weights is None else "sums in "
    if task.op.monoid.has_digits:
        content = "reproducible sums in "
    return f"{content}tables of {bins}"


def _elements(tasks: list[Any], kind: str) -> str:
    """Return the dtype and the kind of chunks of an operation of ours."""
    elements = ""
    for task in _of_kind(tasks, OurTask):
        match task:
            case AggregateTask() | TabulateTask():
                kind = _KINDS[task.to]
            # The elements of a histogram's operation are counts or weights.
            case LiftTask() | DownsweepTask() | ScanFromTask():
                elements = str(task.op.element)
    for node in tasks:
        match _function(node):
            case windows.reduce_windows if "op" in node.kwargs:
                elements = str(node.kwargs["op"].element)
            case tables.finish:
                elements, kind = str(node.kwargs["ops"][0].element), _KINDS[node.kwargs["to"]]
    if not kind:
        return elements or "values between two steps"
    return f"{elements} in {kind} chunks" if elements else f"{kind} chunks"


def _theirs(tasks: list[Any]) -> str:
    """Return how Dask computes an operation: the functions that its tasks call."""
    functions = {_function(task) for task in tasks if isinstance(task, Task)} - {None}
    names = sorted({getattr(f, "__name__", type(f).__name__) for f in functions})
    if not names:
        return f"{_count(len(tasks), 'chunk')} of data"
    return f"{_count(len(tasks), 'task')} of {', '.join(names)}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
