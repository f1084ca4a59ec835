"""What a lazy result is made of: its operations, what serves each, by which method, and why.

The graph tells: tasks of one name are a group; a group is ours if it calls a function of this
library, and groups that are steps of one reduction, scan, histogram or product are one operation::

    sum-lift-1f3, sum-combine-1f3, sum-9c2     one tree, dask_coop's
    move_sum-slice-7b0, move_sum-7b0           windows, dask_coop's
    random_sample-5e1                          another operation, Dask's

That one was left to Dask, and why, is no part of a graph: `fallback` remembers it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from dask._task_spec import convert_legacy_graph
from dask.base import is_dask_collection
from dask.task_spec import Alias, DataNode, Task
from dask.utils import ensure_dict, key_split

from dask_coop import chunks
from dask_coop.algebra.bins import Grid, Integers
from dask_coop.api.call import drawings
from dask_coop.api.call.fallback import HandOver, recall
from dask_coop.api.call.report import as_table
from dask_coop.graph import group_quantiles, grouped, matmul, trapezoids, windows
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

#: Steps that belong to what takes their states; those of other operations have the name of it.
_STEPS = {LiftTask, CombineTask, grouped.lift, grouped.lift_lazy, grouped.merge}
#: Where Dask keeps what it puts between tasks that it fuses.
_BETWEEN = ("dask._expr", "dask._task_spec")
_KINDS = {"numpy": "NumPy", "cupy": "CuPy"}


class Row(NamedTuple):
    """An operation of a lazy result.

    Attributes
    ----------
    operation : str
        What its keys begin with.
    served_by : str
        "dask_coop" or "Dask".
    method : str
        How it is done.
    why : str
        What of: the dtype and the kind of chunks. Of what was left to Dask, the cause.
    """

    operation: str
    served_by: str
    method: str
    why: str


_HEAD = ("operation", "served by", "method", "why")


class Explanation(tuple[Row, ...]):
    """The operations of a lazy result, from its data on; it prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the table."""
        return as_table([_HEAD, *self])

    def _repr_html_(self) -> str:
        return drawings.table([_HEAD, *self])


def explain(x: Any) -> Explanation:
    """Tell what a lazy result is made of: what serves each operation, by which method, and why.

    Parameters
    ----------
    x : dask.array.Array, Delayed, other Dask collection, or tuple or list of them
        What any function has returned, also in parts; of these, what is not lazy is passed over.

    Returns
    -------
    Explanation
        A tuple that prints as a table, with a row for each operation, from the data on. A row has
        ``operation``, ``served_by`` ("dask_coop" or "Dask"), ``method`` and ``why``.

    Raises
    ------
    TypeError
        If nothing in `x` is lazy.

    Notes
    -----
    Nothing is computed. Why a function was left to Dask's is known of the last 1,000 such results
    of this process. What a scheduler makes of the tasks is its own: see `Node.explain`.

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
    kinds: dict[str, str] = {}
    for collection in collections:
        graph |= ensure_dict(collection.__dask_graph__())
        kinds |= _kinds(collection)
    graph = convert_legacy_graph(graph)
    # Fused tasks may hold others.
    while any(map(is_fused, graph.values())):
        graph, _ = taken_apart(graph, {*KINDS.values()}, graph.keys())
    return Explanation(_rows(graph, kinds))


def _collections(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple | list):
        for part in x:
            yield from _collections(part)
    elif is_dask_collection(x):
        yield x


def _kinds(collection: Any) -> dict[str, str]:
    """Return the kinds of chunks of those arrays in a graph that are known, by their names."""
    found, graphs = {}, [collection]
    if (plan := getattr(collection, "_expr", None)) is not None:
        graphs += (getattr(expression, "_array", None) for expression in plan.walk())
    for graph in graphs:
        for name, layer in getattr(getattr(graph, "dask", None), "layers", {}).items():
            module = (layer.collection_annotations or {}).get("chunk_type", "").partition(".")[0]
            found[name] = _KINDS.get(module, "")
    return found


class _Groups:
    """The tasks of a graph by their names."""

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self.nodes: dict[str, list[Any]] = defaultdict(list)
        self.needs: dict[str, set[str]] = defaultdict(set)
        #: How many tasks stand one behind the other, up to those of a name.
        self.depth: dict[str, int] = defaultdict(int)
        of_tasks: dict[Any, int] = {}
        order = TopologicalSorter({key: node.dependencies for key, node in graph.items()})
        for key in order.static_order():
            if key not in graph:
                continue
            node, name = graph[key], name_of(key)
            of_tasks[key] = 1 + max((of_tasks.get(k, 0) for k in node.dependencies), default=0)
            self.depth[name] = max(self.depth[name], of_tasks[key])
            self.nodes[name].append(node)
            self.needs[name] |= {name_of(k) for k in node.dependencies if k in graph} - {name}
        self.ours = {name for name, nodes in self.nodes.items() if any(map(_is_ours, nodes))}

    def below(self, name: str, inputs: frozenset[str]) -> set[str]:
        """Return the names that Dask makes `name` of, down to what it was given."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            new = self.needs[waiting.pop()] - inputs - found - self.ours
            found |= new
            waiting += new
        return found

    def operations(self, left: Mapping[str, HandOver]) -> list[list[str]]:
        """Return the names of each operation, from the data on."""
        above: dict[str, str] = {}

        def find(name: str) -> str:
            while name in above:
                name = above[name]
            return name

        # Dask has a name for each value that tasks take.
        values: dict[str, str] = {}
        for name in sorted(self.nodes):
            parts: Iterable[str] = ()
            if all(map(_is_value, self.nodes[name])):
                parts = [values.setdefault(key_split(name), name)]
            if name in self.ours:
                parts = (part for part in self.needs[name] & self.ours if self._is_step(part, name))
            elif name in left:
                parts = self.below(name, left[name].inputs)
            for part in sorted(parts):
                ends = sorted({find(name), find(part)})
                above |= dict.fromkeys(ends[1:], ends[0])
        found: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.nodes):
            found[find(name)].append(name)
        return sorted(found.values(), key=lambda names: (max(self.depth[n] for n in names), names))

    def _is_step(self, part: str, name: str) -> bool:
        """Tell whether what `name` needs of ours is a step of the same operation."""
        same = part.rpartition("-")[2] == name.rpartition("-")[2]
        return same or {kind_of(node) or _function(node) for node in self.nodes[part]} <= _STEPS


def _rows(graph: Mapping[Any, Any], kinds: Mapping[str, str]) -> Iterator[Row]:
    groups = _Groups(graph)
    left = {name: cause for name in groups.nodes if (cause := recall(name))}
    for names in groups.operations(left):
        tasks = [node for name in names for node in groups.nodes[name]]
        needed = set().union(*(groups.needs[name] for name in names))
        if all(map(_hands_on, tasks)):
            continue
        if not groups.ours.isdisjoint(names):
            # What only hands its states on gives no name.
            last = [name for name in names if name not in needed] or names
            known = (kinds[name] for name in (*last, *sorted(needed)) if kinds.get(name))
            title = ", ".join(dict.fromkeys(map(key_split, last)))
            yield Row(title, "dask_coop", _method(tasks), _what_of(tasks, next(known, "")))
        elif cause := next(filter(None, map(left.get, names)), None):
            how = f"{cause.function} of dask.array; {_count(len(tasks), 'task')}"
            yield Row(cause.function, "Dask", how, cause.cause)
        else:
            yield Row(key_split(names[0]), "Dask", _theirs(tasks), "no function of dask_coop")


def _function(node: Any) -> Any:
    """Return what a task calls, without the arguments that it was bound to."""
    function = node.func if isinstance(node, Task) else None
    while isinstance(function, partial):
        function = function.func
    return function


def _hands_on(node: Any) -> bool:
    """Tell whether a node is only another name, or what Dask puts between fused tasks."""
    return isinstance(node, Alias) or getattr(_function(node), "__module__", None) in _BETWEEN


def _is_ours(node: Any) -> bool:
    module = getattr(_function(node), "__module__", None) or ""
    return bool(module.partition(".")[0] == "dask_coop")


def _is_value(node: Any) -> bool:
    """Tell whether a node is a value that tasks take, and no chunk."""
    return type(node) is DataNode and not isinstance(node.key, tuple)


def _method(tasks: list[Any]) -> str:
    """Return how an operation of ours is done."""
    count = _count(len(tasks), "task")
    if scans := _of_kind(tasks, DownsweepTask):
        ours = scans, _of_kind(tasks, UpsweepTask)
        used, lifted = ({name_of(task.block) for task in part} for part in ours)
        how = "recompute" if lifted - used else "reduce-then-scan"
        parts = " with segments" if any(scan.heads for scan in scans) else ""
        return f"{how} over {_count(len(scans), 'chunk')}{parts}; {count}"
    if ends := _of_kind(tasks, ScanFromTask):
        steps = len(ends) + len(_of_kind(tasks, StepTask))
        return f"sequential over {_count(steps, 'chunk')}; {count}"
    calls: dict[Any, list[Any]] = defaultdict(list)
    for task in tasks:
        calls[_function(task)].append(task)
    if how := _of_groups(calls) or _of_series(calls, len(_of_kind(tasks, LiftTask))):
        return f"{how}; {count}"
    if products := calls[matmul.multiply]:
        fan_in = max(len(task.dependencies) for task in calls[matmul.add])
        how = f"{_count(len(products), 'product')} of blocks"
        return f"{how}, up to {fan_in} added a task; {count}"
    if counts := _of_kind(tasks, CountTask):
        n, what = len(counts), _table(counts[0])
    elif lifts := _of_kind(tasks, LiftTask):
        n, what = len(lifts), "tree"
    else:
        return f"chunk by chunk; {count}" if len(tasks) > 1 else count
    how = f"{what} over {_count(n, 'chunk')}"
    if fan_in := max((len(task.states) for task in _of_kind(tasks, StatesTask)), default=0):
        how += f", up to {_count(fan_in, 'state')} a task"
    return f"{how}; {count}"


def _of_groups(calls: Mapping[Any, list[Any]]) -> str:
    """Return how groups are reduced, if they are: by their functions."""
    if blocks := calls.get(group_quantiles.quantiles_of_block):
        return f"{_count(len(blocks), 'block')} of whole groups"
    lifts = [*calls.get(grouped.lift, ()), *calls.get(grouped.lift_lazy, ())]
    ends = calls.get(grouped.finish, [])
    if not lifts or not ends:
        return ""
    # Of one result, the blocks along its groups.
    first, *_ = ends
    kept = len(index_of(first.key)) - len(first.kwargs["shape"])
    n = sum(
        end.kwargs["n"]
        for end in ends
        if name_of(end.key) == name_of(first.key)
        and index_of(end.key)[:kept] == index_of(first.key)[:kept]
    )
    own = max(map(_groups_of, lifts))
    what = f"table of {_count(n, 'group')}"
    if own < n:
        what = f"tables of up to {own} of {_count(n, 'group')}"
    merges = [*ends, *calls.get(grouped.merge, ())]
    fan_in = max(len(task.kwargs["states"].args) for task in merges)
    return f"{what} over {_count(len(lifts), 'chunk')}, up to {_count(fan_in, 'table')} a task"


def _groups_of(lift: Task) -> int:
    """Return how many groups the table of a chunk has."""
    if "n" in lift.kwargs:
        return int(lift.kwargs["n"])
    codes = lift.kwargs["codes"]
    # Dask wraps what differs from block to block.
    _, n = codes.value if isinstance(codes, DataNode) else codes
    return int(n)


def _of_series(calls: Mapping[Any, list[Any]], lifted: int) -> str:
    """Return how windows, areas and what says where groups are come about, if they do."""
    if ends := calls.get(windows.reduce_windows):
        how = f"windows over {_count(len(ends), 'chunk')}"
        if lifted:
            how += f", with states of {_count(lifted, 'part')} between their ends"
        return how
    if areas := calls.get(trapezoids.areas_of_block):
        return f"areas between the samples of {_count(len(areas), 'chunk')}"
    if calls.keys() == {chunks.asarray}:
        return "known when the graph is built"
    return ""


def _of_kind(tasks: list[Any], kind: type[Kind]) -> list[Kind]:
    """Return what those tasks do that are of a kind."""
    return [found for task in tasks if (found := read(task, kind))]


def _table(task: CountTask) -> str:
    """Return what the tasks of a histogram count into."""
    match task.grid:
        case Grid(bins=each):
            bins = " x ".join(str(one.n) for one in each) + " bins"
        case Integers():
            bins = "integers"
        case _:
            bins = "bins that a task finds"
    of = "" if task.weights is None else "sums in "
    if task.op.monoid.has_digits:
        of = "reproducible sums in "
    return f"{of}tables of {bins}"


def _what_of(tasks: list[Any], kind: str) -> str:
    """Return the elements and the kind of chunks of an operation of ours."""
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
            case windows.reduce_windows:
                elements = str(node.kwargs["op"].element)
            case grouped.finish:
                elements, kind = str(node.kwargs["ops"][0].element), _KINDS[node.kwargs["to"]]
    if not kind:
        return elements or "values between two steps"
    return f"{elements} in {kind} chunks" if elements else f"{kind} chunks"


def _theirs(tasks: list[Any]) -> str:
    """Return how an operation of Dask's is done: what its tasks call."""
    functions = {_function(task) for task in tasks if isinstance(task, Task)} - {None}
    names = sorted({getattr(f, "__name__", type(f).__name__) for f in functions})
    if not names:
        return f"{_count(len(tasks), 'chunk')} of data"
    return f"{_count(len(tasks), 'task')} of {', '.join(names)}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
