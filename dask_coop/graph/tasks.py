"""The tasks of the cross-chunk step: what runs inside them, and what a task found in a graph does.

The functions here are called by the tasks that `dask_coop.graph.reduce` and `dask_coop.graph.scan`
make, and by the jobs of a cluster. Their arguments are keywords, in a task too, but for the
samples of a histogram::

    Task(key, lift, op=op, axes=(0,), block=TaskRef(("x", 3)))      in a graph
                        |
                      read
                        |
    LiftTask(op=op, axes=(0,), block=("x", 3), where=None)          what it does, with keys

Code that looks for tasks in a graph uses `read` and never a task's arguments, so that a function
can get another one, anywhere among those that it has, and nothing else changes.
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
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.merges import cast
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation, Origin
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.dtypes import Declared, casts
from dask_coop.graph.prefixes import base_of, sequential
from dask_coop.graph.threads import count_by_threads, lift_by_threads, scan_by_threads

Graph = dict[Any, Any]
#: What Dask takes for a key.
Key = Any
Finalize = Callable[[State], Any]


# What runs inside the tasks of reductions and histograms.


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
    """Return the state of a block over `axes`, of its elements `where` a mask says so.

    Operations with argument indices take the `origin` of the block in its array.
    """
    if where is not None and chunks.kind(block) == "numpy":
        where = chunks.asarray(where, "numpy")
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
    return op.combine(states)


@casts
def collect(block: Any, *, grid: Digits) -> Any:
    """Return a block, or those of its samples that are to be counted, if they are few."""
    return chunks.backend_of(block).collect(block, grid) if grid.collects else block


def evaluate(
    *, op: Operation, finalize: Callable[..., Any], states: list[State], grid: Any = None
) -> Any:
    """Return any object that is made of the combined states, and of the grid if they are tables."""
    state = op.combine(states)
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
    with np.errstate(invalid="ignore"):
        result = cast(finalize(op.combine(states)), dtype)
    # What is masked and has no axis is a constant without a dtype.
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
    """Return a block of a histogram, made of the combined tables and the grid."""
    result = finalize(op.combine(states), grid).astype(dtype, copy=False)
    return chunks.asarray(result, to)


# What runs inside the tasks of scans.


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
    """Return the states combined up to each, from the state at `position` in those `above` on."""
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
    """Scan a block from the base at `position` in those of its group; the first has none."""
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
    """Scan a block from a base, and return the base of the next one, too."""
    results: tuple[Any, State] = chunks.backend_of(block).scan_on(op, block, spec, base, heads)
    return results


def take_turn() -> None:
    """Do nothing, as the root that lets Dask take a step when its turn has come."""


def results_of(*, step: tuple[Any, State]) -> Any:
    """Return what a step has scanned."""
    return step[0]


def state_of(*, step: tuple[Any, State]) -> State:
    """Return the base that a step leaves."""
    return step[1]


def chain(
    results: Sequence[Key], part: Callable[[str, Key], Key], make: Callable[..., Task]
) -> tuple[Graph, Graph]:
    """Return the tasks that scan a line of blocks one after the other, and those of the results.

    Parameters
    ----------
    results : sequence of keys
        Those of the results, in the order of the scan.
    part : callable
        Returns the key of a "turn", "step" or "state" that belongs to a result.
    make : callable
        Returns the task of a block, of its number, a key, `step` or `scan_from`, and references to
        what else it needs.
    """
    steps: Graph = {}
    made: Graph = {}
    base: dict[str, TaskRef] = {}
    for j, key in enumerate(results):
        if j == len(results) - 1:
            made[key] = make(j, key, scan_from, **base)
            break
        turn, stepped, state = (part(name, key) for name in ("turn", "step", "state"))
        # With a root of its own Dask takes the results of a step to where they go before it turns
        # to the next; those of a mere chain would pile up.
        steps[turn] = Task(turn, take_turn)
        steps[stepped] = make(j, stepped, step, turn=TaskRef(turn), **base)
        made[key] = Task(key, results_of, step=TaskRef(stepped))
        steps[state] = Task(state, state_of, step=TaskRef(stepped))
        base = {"base": TaskRef(state)}
    return steps, made


# What tasks in a graph do. Attributes have the names of arguments; chunks and states are keys. None
# is frozen, for a graph has many, and what is frozen takes longer to make.


@dataclass(kw_only=True, slots=True)
class OurTask:
    """A task of ours."""

    declared: Declared | None = None


@dataclass(kw_only=True, slots=True)
class CollectTask(OurTask):
    """One that calls `collect`; the grid may be a reference to the task that makes it."""

    grid: Digits | TaskRef
    samples: tuple[Key, ...]


@dataclass(kw_only=True, slots=True)
class OperationTask(OurTask):
    """A task of an operation."""

    op: Operation


@dataclass(kw_only=True, slots=True)
class LiftTask(OperationTask):
    """One that calls `lift`."""

    axes: tuple[int, ...]
    block: Key
    where: Key | None = None
    origin: Origin | None = None


@dataclass(kw_only=True, slots=True)
class CountTask(OperationTask):
    """One that calls `count`; the grid may be a reference to the task that makes it."""

    grid: BinSpec | TaskRef
    samples: tuple[Key, ...]
    weights: Key | None = None


@dataclass(kw_only=True, slots=True)
class StatesTask(OperationTask):
    """One that combines states first."""

    states: tuple[Key, ...]


@dataclass(kw_only=True, slots=True)
class CombineTask(StatesTask):
    """One that calls `combine`."""


@dataclass(kw_only=True, slots=True)
class RootTask(StatesTask):
    """One that ends a tree: it makes a result of the states."""

    finalize: Callable[..., Any]


@dataclass(kw_only=True, slots=True)
class EvaluateTask(RootTask):
    """One that calls `evaluate`; the grid may be a reference to the task that makes it."""

    grid: BinSpec | TaskRef | None = None


@dataclass(kw_only=True, slots=True)
class AggregateTask(RootTask):
    """One that calls `aggregate`."""

    dtype: Any
    expand: tuple[int, ...]
    to: str


@dataclass(kw_only=True, slots=True)
class TabulateTask(RootTask):
    """One that calls `tabulate`; the grid may be a reference to the task that makes it."""

    dtype: Any
    to: str
    grid: BinSpec | TaskRef


@dataclass(kw_only=True, slots=True)
class PrefixesTask(OperationTask):
    """One that calls `prefixes`."""

    states: tuple[Key, ...]
    above: Key | None = None
    position: int = 0


@dataclass(kw_only=True, slots=True)
class ScanTask(OperationTask):
    """One that takes a block of a scan."""

    spec: ScanSpec
    block: Key
    heads: Key | None = None


@dataclass(kw_only=True, slots=True)
class UpsweepTask(ScanTask):
    """One that calls `upsweep`."""


@dataclass(kw_only=True, slots=True)
class DownsweepTask(ScanTask):
    """One that calls `downsweep`."""

    bases: Key | None = None
    position: int = 0


@dataclass(kw_only=True, slots=True)
class ScanFromTask(ScanTask):
    """One that calls `scan_from`."""

    base: Key | None = None


@dataclass(kw_only=True, slots=True)
class StepTask(ScanTask):
    """One that calls `step`."""

    turn: Key
    base: Key | None = None


#: What a task does that calls a function.
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
    """Return what gives a task the list of the results of `keys`."""
    return List(*map(TaskRef, keys))


def kind_of(task: Any) -> type[OurTask] | None:
    """Return the class of what `read` returns."""
    # Dask's lists of arguments are tasks by their class, and many.
    if type(task) is not Task:
        return None
    try:
        return KINDS.get(task.func)
    except TypeError:
        # Whatever may be called need not have a hash.
        return None


def read(task: Any, kind: type[Kind]) -> Kind | None:
    """Return what a task does, if it is of a `kind`; `OurTask` is all of them.

    Tasks within a fused one are read one by one, once `taken_apart` has them.
    """
    found: Any = kind_of(task)
    if found is None or not (found is kind or issubclass(found, kind)):
        return None
    does: Kind = _reader(found)(task)
    return does


#: Arguments that are results of other tasks. A grid may be either.
_OF_ONE = {"block", "where", "weights", "heads", "above", "bases", "base", "turn"}
#: How those are found that are results of several tasks.
_OF_SEVERAL = {"states": "given['states'].args", "samples": "task.args"}


@cache
def _reader(kind: Any) -> Callable[[Task], Any]:
    """Return the function that reads tasks of a kind.

    Compiled, as dataclasses compile ``__init__``, it takes less time than a loop over the
    arguments.
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
            # Dask wraps what differs from block to block.
            value = f"None if (node := {value}) is None else node.value"
        lines.append(f"does.{name} = {value}")
    exec("\n  ".join([*lines, "return does"]), names)
    made: Callable[[Task], Any] = names["reader"]
    return made


def on_states(root: Task, states: Iterable[Key]) -> Task:
    """Return a task that does what `root`, a `RootTask`, does, with other states."""
    return Task(root.key, root.func, **{**root.kwargs, "states": refs(states)})


def is_fused(task: Any) -> bool:
    """Tell whether a task holds others, which Dask has fused."""
    return type(task) is Task and bool(task.has_subgraph())


def does_any(task: Any, kinds: Set[type[OurTask] | None]) -> bool:
    """Tell whether a task, or one within it, is of one of some kinds."""
    if (found := kind_of(task)) is not None:
        return found in kinds
    # A loop, for any() of a generator takes longer for a few tasks.
    if is_fused(task):
        for inner in task.args[0].values():
            if does_any(inner, kinds):
                return True
    return False


def taken_apart(
    graph: Mapping[Any, Any], kinds: Set[type[OurTask] | None], only: Set[Any] | None = None
) -> tuple[Graph, dict[Any, Any]]:
    """Return a graph with the tasks inside of fused ones, where these hold tasks of some kinds.

    Also where each of these tasks was, by their keys; with `only`, that is all that is taken apart.
    """
    whole: Graph = dict(graph)
    inside: Graph = {}
    homes: dict[Any, Any] = {}
    for key, task in graph.items():
        if not is_fused(task) or not (does_any(task, kinds) if only is None else key in only):
            continue
        inner, last = _inner(task)
        found, _ = taken_apart(inner, kinds)
        inside |= found
        homes |= dict.fromkeys(found, key)
        if key != last:
            whole[key] = Alias(key, last)
        else:
            del whole[key]
    # A fused task has an alias by the key of its last part; what is data stays data.
    for key, part in inside.items():
        if isinstance(whole.get(key), Alias | None):
            whole[key] = part
    return whole, homes


def _inner(task: Task) -> tuple[Graph, Key]:
    """Return the tasks within a fused one by keys of the graph, and the key of the last."""
    inner, last, names, *given = task.args
    if not isinstance(task.key, tuple) or last != task.key[0]:
        return inner, last
    # Where layers are fused, all blocks have the same parts, and names for what differs.
    keys = {key: (key, *task.key[1:]) for key in inner}
    known = keys | dict(zip(names, given, strict=True))
    found = {keys[key]: part.substitute(known, key=keys[key]) for key, part in inner.items()}
    return found, task.key


def name_of(key: Any) -> str:
    """Return the name of the array, or of whatever else, that a key is of."""
    return str(key[0] if isinstance(key, tuple) else key)


def index_of(key: Any) -> tuple[int, ...]:
    """Return which block of an array a key is of."""
    return tuple(key[1:]) if isinstance(key, tuple) else ()
