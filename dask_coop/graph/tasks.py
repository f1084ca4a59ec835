"""The tasks of the cross-chunk step: the functions they call, and how to read them in a graph.

The tasks of `dask_coop.graph.reduce` and `dask_coop.graph.scan` call the functions here, and so do
the jobs of a cluster. Tasks pass every argument by keyword, except the samples of a histogram::

    Task(key, lift, op=op, axes=(0,), block=TaskRef(("x", 3)))      in a graph
                        |
                      read
                        |
    LiftTask(op=op, axes=(0,), block=("x", 3), where=None)          its arguments, with keys

Code that looks for tasks in a graph uses `read`, never a task's arguments. So a function can get a
new parameter anywhere, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
from dask.task_spec import Alias, List, Task, TaskRef

from dask_coop import chunks
from dask_coop.algebra.bins import BinSpec
from dask_coop.algebra.counted import combine_mixed, masked, with_number
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.merges import cast
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.dtypes import Declared, casts
from dask_coop.graph.prefixes import base_of, sequential
from dask_coop.graph.threads import count_by_threads, lift_by_threads, scan_by_threads

Graph = dict[Any, Any]
#: A key of Dask.
Key = Any
Finalize = Callable[[State], Any]


# Inside the tasks of reductions and histograms.


@casts
def lift(
    *,
    op: Operation,
    axes: tuple[int, ...],
    block: Any,
    where: Any = None,
    origin: Origin | None = None,
    threads: int = 1,
) -> State:
    """Return the state of a block over `axes`; a mask `where` says which elements count.

    Operations with argument indices need the `origin` of the block in its array.
    """
    if where is not None and chunks.kind(block) == "numpy":
        where = chunks.asarray(where, "numpy")
    if chunks.is_masked(block):
        op = with_number(op)
    state = lift_by_threads(op, block, axes, where, threads)
    if origin is not None:
        state = op.shift(state, tuple(block.shape[axis] for axis in axes), origin)
    return state


@casts
def count(*samples: Any, op: Operation, grid: Any, weights: Any = None, threads: int = 1) -> State:
    """Return the table of a block of samples, one array for each coordinate."""
    return count_by_threads(op, samples, grid, weights, threads)


def combine(*, op: Operation, states: list[State]) -> State:
    """Combine states in their order."""
    return combine_mixed(op, states)[0]


@casts
def collect(block: Any, *, grid: Digits) -> Any:
    """Return a block, or only its samples that the next round counts, if they are few."""
    return chunks.backend_of(block).collect(block, grid) if grid.collects else block


def evaluate(
    *, op: Operation, finalize: Callable[..., Any], states: list[State], grid: Any = None
) -> Any:
    """Return the finalized combined states; tables are finalized with their grid."""
    state, counts = combine_mixed(op, states)
    state = state[:-1] if counts else state
    return finalize(state) if grid is None else finalize(state, grid)


def aggregate(
    *,
    op: Operation,
    finalize: Finalize,
    dtype: Any,
    expand: tuple[int, ...],
    to: str,
    states: list[State],
) -> Any:
    """Return a block of a result: an array of the kind `to`, with new axes at `expand`."""
    state, counts = combine_mixed(op, states)
    with np.errstate(invalid="ignore"):
        result = cast(masked(finalize, state) if counts else finalize(state), dtype)
    # A masked result without axes becomes np.ma.masked, a constant without a dtype.
    return chunks.asarray(np.expand_dims(result, expand) if expand else result[()], to)


def tabulate(
    *,
    op: Operation,
    finalize: Callable[..., Any],
    dtype: Any,
    to: str,
    grid: Any,
    states: list[State],
) -> Any:
    """Return a block of a histogram from the combined tables and the grid."""
    result = finalize(op.combine(states), grid).astype(dtype, copy=False)
    return chunks.asarray(result, to)


# Inside the tasks of scans.


@casts
def upsweep(
    *, op: Operation, spec: ScanSpec, block: Any, heads: Any = None, threads: int = 1
) -> State:
    """Return the state of a block along the axis of a scan, which may restart at head flags."""
    if heads is not None:
        segments: State = chunks.backend_of(block).lift_segments(op, block, spec, heads)
        return segments
    if spec.reverse and not op.monoid.commutative:
        block = np.flip(block, spec.axis)
    return lift_by_threads(op, block, (spec.axis,), None, threads)


def prefixes(
    *, op: Operation, states: list[State], above: Sequence[State] = (), position: int = 0
) -> list[State]:
    """Return the inclusive prefixes of states, starting from the state `above[position]` if any."""
    return sequential(op.monoid.combine, states, above[position] if above else None)


@casts
def downsweep(
    *,
    op: Operation,
    spec: ScanSpec,
    block: Any,
    heads: Any = None,
    bases: Sequence[State] = (),
    position: int = 0,
    threads: int = 1,
) -> Any:
    """Scan a block from its group's base at `position`; the first block has none."""
    base = base_of(op, bases[position]) if bases else None
    return scan_by_threads(op, block, spec, base, heads, threads)


@casts
def scan_from(
    *,
    op: Operation,
    spec: ScanSpec,
    block: Any,
    heads: Any = None,
    base: State | None = None,
    threads: int = 1,
) -> Any:
    """Scan a block from a base."""
    return scan_by_threads(op, block, spec, base, heads, threads)


@casts
def step(
    *,
    op: Operation,
    spec: ScanSpec,
    block: Any,
    heads: Any = None,
    turn: None = None,
    base: State | None = None,
) -> tuple[Any, State]:
    """Scan a block from a base; also return the base of the next block."""
    results: tuple[Any, State] = chunks.backend_of(block).scan_on(op, block, spec, base, heads)
    return results


def take_turn() -> None:
    """Do nothing; a root task without dependencies, so that Dask orders a step after it."""


def results_of(*, step: tuple[Any, State]) -> Any:
    """Return the scanned block of a step."""
    return step[0]


def state_of(*, step: tuple[Any, State]) -> State:
    """Return the base that a step leaves for the next one."""
    return step[1]


def chain(
    results: Sequence[Key], part: Callable[[str, Key], Key], make: Callable[..., Task]
) -> tuple[Graph, Graph]:
    """Return the tasks that scan a line of blocks one after the other, and those of the results.

    Parameters
    ----------
    results : sequence of keys
        The keys of the results, in the order of the scan.
    part : callable
        Returns the key of the "turn", "step" or "state" that belongs to a result.
    make : callable
        Returns the task of a block, given its number, a key, `step` or `scan_from`, and references
        as keywords.
    """
    steps: Graph = {}
    tasks: Graph = {}
    base: dict[str, TaskRef] = {}
    for j, key in enumerate(results):
        if j == len(results) - 1:
            tasks[key] = make(j, key, scan_from, **base)
            break
        turn, stepped, state = (part(name, key) for name in ("turn", "step", "state"))
        # A root for each step makes Dask consume its results before it starts the next step;
        # without it results would pile up.
        steps[turn] = Task(turn, take_turn)
        steps[stepped] = make(j, stepped, step, turn=TaskRef(turn), **base)
        tasks[key] = Task(key, results_of, step=TaskRef(stepped))
        steps[state] = Task(state, state_of, step=TaskRef(stepped))
        base = {"base": TaskRef(state)}
    return steps, tasks


# The tasks of a graph. Attributes have the names of arguments; chunks and states are keys. The
# classes are not frozen: a graph has many tasks, and frozen objects take longer to make.


@dataclass(kw_only=True, slots=True)
class OurTask:
    """A task of this library."""

    declared: Declared | None = None


@dataclass(kw_only=True, slots=True)
class CollectTask(OurTask):
    """A call of `collect`; the grid may be a reference to the task that makes it."""

    grid: Digits | TaskRef
    samples: tuple[Key, ...]


@dataclass(kw_only=True, slots=True)
class OperationTask(OurTask):
    """A task of an operation."""

    op: Operation


@dataclass(kw_only=True, slots=True)
class LiftTask(OperationTask):
    """A call of `lift`."""

    axes: tuple[int, ...]
    block: Key
    where: Key | None = None
    origin: Origin | None = None


@dataclass(kw_only=True, slots=True)
class CountTask(OperationTask):
    """A call of `count`; the grid may be a reference to the task that makes it."""

    grid: BinSpec | TaskRef
    samples: tuple[Key, ...]
    weights: Key | None = None


@dataclass(kw_only=True, slots=True)
class StatesTask(OperationTask):
    """A task that combines states first."""

    states: tuple[Key, ...]


@dataclass(kw_only=True, slots=True)
class CombineTask(StatesTask):
    """A call of `combine`."""


@dataclass(kw_only=True, slots=True)
class RootTask(StatesTask):
    """The root of a tree, which finalizes the combined states."""

    finalize: Callable[..., Any]


@dataclass(kw_only=True, slots=True)
class EvaluateTask(RootTask):
    """A call of `evaluate`; the grid may be a reference to the task that makes it."""

    grid: BinSpec | TaskRef | None = None


@dataclass(kw_only=True, slots=True)
class AggregateTask(RootTask):
    """A call of `aggregate`."""

    dtype: Any
    expand: tuple[int, ...]
    to: str


@dataclass(kw_only=True, slots=True)
class TabulateTask(RootTask):
    """A call of `tabulate`; the grid may be a reference to the task that makes it."""

    dtype: Any
    to: str
    grid: BinSpec | TaskRef


@dataclass(kw_only=True, slots=True)
class PrefixesTask(OperationTask):
    """A call of `prefixes`."""

    states: tuple[Key, ...]
    above: Key | None = None
    position: int = 0


@dataclass(kw_only=True, slots=True)
class ScanTask(OperationTask):
    """A task that takes a block of a scan."""

    spec: ScanSpec
    block: Key
    heads: Key | None = None


@dataclass(kw_only=True, slots=True)
class UpsweepTask(ScanTask):
    """A call of `upsweep`."""


@dataclass(kw_only=True, slots=True)
class DownsweepTask(ScanTask):
    """A call of `downsweep`."""

    bases: Key | None = None
    position: int = 0


@dataclass(kw_only=True, slots=True)
class ScanFromTask(ScanTask):
    """A call of `scan_from`."""

    base: Key | None = None


@dataclass(kw_only=True, slots=True)
class StepTask(ScanTask):
    """A call of `step`."""

    turn: Key
    base: Key | None = None


#: The class of the tasks that call each function.
KINDS: dict[Callable[..., Any], type[OurTask]] = {
    lift: LiftTask,
    count: CountTask,
    combine: CombineTask,
    collect: CollectTask,
    evaluate: EvaluateTask,
    aggregate: AggregateTask,
    tabulate: TabulateTask,
    upsweep: UpsweepTask,
    prefixes: PrefixesTask,
    downsweep: DownsweepTask,
    scan_from: ScanFromTask,
    step: StepTask,
}

Kind = TypeVar("Kind", bound=OurTask)


def refs(keys: Iterable[Key]) -> List:
    """Return the argument that passes a task the results of `keys` as a list."""
    return List(*map(TaskRef, keys))


def kind_of(task: Any) -> type[OurTask] | None:
    """Return the class of a task in `KINDS`; None for other tasks."""
    # An exact match: Dask's many lists of arguments are of subclasses of Task.
    if type(task) is not Task:
        return None
    try:
        return KINDS.get(task.func)
    except TypeError:
        # Callables need not be hashable.
        return None


def read(task: Any, kind: type[Kind]) -> Kind | None:
    """Return the arguments of a task that is of a `kind`, else None; `OurTask` matches all kinds.

    To read the tasks within fused ones, use `taken_apart` first.
    """
    cls: Any = kind_of(task)
    if cls is None or not issubclass(cls, kind):
        return None
    arguments: Kind = _reader(cls)(task)
    return arguments


#: Arguments that are references to one task. A grid may be either.
_OF_ONE = {"block", "where", "weights", "heads", "above", "bases", "base", "turn"}
#: How to get the arguments that are lists of references.
_OF_SEVERAL = {"states": "given['states'].args", "samples": "task.args"}


@cache
def _reader(kind: Any) -> Callable[[Task], Any]:
    """Return the function that reads tasks of a kind.

    It is compiled, as dataclasses compile ``__init__``: faster than a loop over the arguments.
    """
    lines = ["def reader(task):", "given, does = task.kwargs, new(kind)"]
    names: dict[str, Any] = {"new": object.__new__, "kind": kind}
    for field in fields(kind):
        name, value = field.name, f"given[{field.name!r}]"
        if field.default is not MISSING:
            names[f"default_{name}"] = field.default
            value = f"given.get({name!r}, default_{name})"
        if name in _OF_SEVERAL:
            value = f"tuple([ref.key for ref in {_OF_SEVERAL[name]}])"
        elif name in _OF_ONE:
            value = f"None if (ref := {value}) is None else ref.key"
        elif name == "origin":
            # Dask wraps arguments that differ from block to block.
            value = f"None if (node := {value}) is None else node.value"
        lines.append(f"does.{name} = {value}")
    exec("\n  ".join([*lines, "return does"]), names)
    reader: Callable[[Task], Any] = names["reader"]
    return reader


def on_states(root: Task, states: Iterable[Key]) -> Task:
    """Return a task that finalizes other states as the `RootTask` `root` does."""
    return Task(root.key, root.func, **{**root.kwargs, "states": refs(states)})


def is_fused(task: Any) -> bool:
    """Return whether a task holds other tasks, which Dask has fused."""
    return type(task) is Task and bool(task.has_subgraph())


def does_any(task: Any, kinds: Set[type[OurTask] | None]) -> bool:
    """Return whether a task, or one within it, is of one of `kinds`."""
    if (kind := kind_of(task)) is not None:
        return kind in kinds
    # A loop is faster than any() of a generator for few tasks.
    if is_fused(task):
        for inner in task.args[0].values():
            if does_any(inner, kinds):
                return True
    return False


def taken_apart(
    graph: Mapping[Any, Any], kinds: Set[type[OurTask] | None], only: Set[Any] | None = None
) -> tuple[Graph, dict[Any, Any]]:
    """Return a graph with fused tasks replaced by their inner ones, where these are of `kinds`.

    Also return the fused task's key by the keys of its inner tasks. `only` limits the fused tasks.
    """
    whole: Graph = dict(graph)
    inside: Graph = {}
    homes: dict[Any, Any] = {}
    for key, task in graph.items():
        if not is_fused(task) or not (does_any(task, kinds) if only is None else key in only):
            continue
        fused, last = _inner(task)
        inner, _ = taken_apart(fused, kinds)
        inside |= inner
        homes |= dict.fromkeys(inner, key)
        if key != last:
            whole[key] = Alias(key, last)
        else:
            del whole[key]
    # The key of a fused task's last inner task may be an alias of it. Data stay.
    for key, task in inside.items():
        if isinstance(whole.get(key), Alias | None):
            whole[key] = task
    return whole, homes


def _inner(task: Task) -> tuple[Graph, Key]:
    """Return the tasks within a fused one by keys of the graph, and the key of the last."""
    inner, last, names, *values = task.args
    if not isinstance(task.key, tuple) or last != task.key[0]:
        return inner, last
    # Fused layers share the inner tasks of all blocks, with names for the arguments that differ.
    keys = {key: (key, *task.key[1:]) for key in inner}
    known = keys | dict(zip(names, values, strict=True))
    return {
        keys[key]: node.substitute(known, key=keys[key]) for key, node in inner.items()
    }, task.key


def name_of(key: Any) -> str:
    """Return the name of the array, or other collection, of a key."""
    return str(key[0] if isinstance(key, tuple) else key)


def index_of(key: Any) -> tuple[int, ...]:
    """Return the index of the block of a key."""
    return tuple(key[1:]) if isinstance(key, tuple) else ()
