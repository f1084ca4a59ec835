"""Runs the multi-chunk launches of a graph, or their plain tasks where chunks do not suit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from types import ModuleType
from typing import Any

from dask._task_spec import DataNode, Task, convert_legacy_graph, cull
from dask.array.core import finalize
from dask.array.optimization import optimize as optimize_arrays
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.delayed import optimize as optimize_delayed
from dask.highlevelgraph import MaterializedLayer

from dask_coop.chunks.cupy.eligibility import (
    TABLE_TOO_LARGE,
    Objection,
    objection_to_chunks,
    objection_to_declared,
    objection_to_dtypes,
    objection_to_grid,
    objection_to_team,
)
from dask_coop.graph.tasks import Graph, RootTask, kind_of, read
from dask_coop.node.find import Found, MultichunkLaunch, find_launches, put_in
from dask_coop.node.placement import OnAllGpus
from dask_coop.node.streams import stream

RunPlain = Callable[[Graph, Any], Any]

#: What Dask optimizes the graphs of arrays and of delayed objects by, unless it is told otherwise.
_OPTIMIZERS = (None, optimize_arrays, optimize_delayed)


class Launcher:
    """The GPUs of a `Node`, as those that multi-chunk launches run on.

    Parameters
    ----------
    devices : sequence of int
        Their ordinals.
    timeout : float
        Seconds that a GPU waits at a barrier for the others.
    """

    def __init__(self, devices: Sequence[int], timeout: float) -> None:
        self._devices, self._timeout = devices, timeout
        self._team: Any = None
        self._lock = threading.Lock()

    def plan(
        self, dsk: Any, keys: Any, run_plain: RunPlain, early: bool
    ) -> tuple[Graph, dict[str, str]]:
        """Return the graph to run, with a task for each launch, and what `Node.explain` tells.

        With `early`, Dask need not look at a task for each chunk, which takes it longer than the
        GPUs take to work: graphs of launches over chunks that are there are not optimized, and the
        launches are made at once, in the calling thread; of other graphs such chunks are arguments
        of the launches' tasks. `run_plain` runs a graph as it is, for some keys. What is told grows
        as launches run.
        """
        wanted = set(flatten([keys]))
        whole: Graph = {}
        found = _found_unoptimized(dsk, wanted) if early else None
        at_once = found is not None and not objection_to_team(self._find_team())
        if found is None or not at_once:
            whole = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
            whole = _culled(whole, wanted)
            found = find_launches(whole, wanted)
            if found.launches and (reason := objection_to_team(self._find_team())):
                names = [*found.others, *(launch.name for launch in found.launches)]
                reasons = [*found.others.values(), *repeat(reason, len(found.launches))]
                graph = found.plain if found.plain is whole else _culled(found.plain, wanted)
                explained = dict(zip(names, map(_plain_because, reasons), strict=True))
                return stream(graph), explained
        graph = found.graph
        explained = {name: _plain_because(reason) for name, reason in found.others.items()}
        calls = [LaunchTask(launch, self, run_plain, explained) for launch in found.launches]
        if at_once:
            _run_at_once(graph, calls)
        for call in () if at_once else calls:
            put_in(graph, call.launch, call, _values(graph, call.launch.needs) if early else None)
        return stream(graph if graph is whole else _culled(graph, wanted)), explained

    def _find_team(self) -> Any:
        with self._lock:
            if self._team is None:
                self._team = _multichunk().Team(self._devices, self._timeout)
            return self._team

    def run(self, launch: MultichunkLaunch, values: list[Any]) -> list[Any] | Objection:
        """Return the outputs of a launch, or why there is none."""
        multichunk, team, xs = _multichunk(), self._find_team(), values[: len(launch.blocks)]
        if reason := objection_to_chunks(xs, team) or objection_to_declared(xs, launch.declared):
            return reason
        grid = values[-1] if len(values) > len(xs) else launch.grid
        if launch.op is None:
            return _digits().collect_all(xs, grid) if grid.collects else xs
        if grid is not None:
            if reason := objection_to_dtypes(xs) or objection_to_grid(grid):
                return reason
            state = multichunk.histogram(team, launch.op, xs, grid)
            return TABLE_TOO_LARGE if state is None else [state]
        if launch.spec is None:
            return [multichunk.reduce(team, launch.op, xs, launch.origins)]
        results = multichunk.scan(team, launch.op, xs, launch.wanted, launch.spec)
        return [y for y in results if y is not None]


class LaunchTask(OnAllGpus):
    """The function of a launch's task.

    Parameters
    ----------
    launch : MultichunkLaunch
    launcher : Launcher
    run_plain : callable
        Runs a graph as it is, for some keys.
    explained : dict of str to str
        Gets how the launch was run, by its name.
    """

    def __init__(
        self,
        launch: MultichunkLaunch,
        launcher: Launcher,
        run_plain: RunPlain,
        explained: dict[str, str],
    ) -> None:
        self.launch: MultichunkLaunch = launch
        self._launcher = launcher
        self._run_plain, self._explained = run_plain, explained

    def __call__(self, values: list[Any]) -> list[Any]:
        """Return the outputs of the launch, given its inputs."""
        launch = self.launch
        with _uninterrupted():
            outcome = self._launcher.run(launch, values)
        if not isinstance(outcome, Objection):
            how = "one launch over" if launch.op else "collected at a time of"
            self._explained[launch.name] = f"{how} {len(launch.blocks)} chunks"
            return outcome
        self._explained[launch.name] = _plain_because(outcome)
        inputs = zip(launch.needs, values, strict=True)
        graph = launch.plain | {key: DataNode(key, value) for key, value in inputs}
        return list(self._run_plain(graph, list(launch.outputs)))


@contextmanager
def noting(key: Any, where: str) -> Iterator[None]:
    """Tell in what is raised within the block of which task it comes."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in task {key!r}{where}")
        raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block: nothing that kernels still use is let go of before.

    Only the main thread is interrupted.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupts:
            signal.raise_signal(signal.SIGINT)


def last_steps(graph: Graph) -> list[Task] | None:
    """Return the tasks of a graph that are left to do, if these only make results of states.

    They are small, and take less time than to hand them to a thread: in their order, those that end
    a tree, and Dask's own that make an array of that. Where there are others: None.
    """
    rest = [node for node in graph.values() if type(node) is not DataNode]
    roots = {task.key: task for task in rest if read(task, RootTask)}
    ends = [task for task in rest if task.key not in roots]
    for root in roots.values():
        if not all(type(graph.get(key)) is DataNode for key in root.dependencies):
            return None
    for end in ends:
        if type(end) is not Task or end.func is not finalize or end.dependencies - roots.keys():
            return None
    return [*roots.values(), *ends]


def _found_unoptimized(dsk: Any, wanted: set[Any]) -> Found | None:
    """Find the launches of a graph as it was built; None where Dask's optimizer has more to do.

    It has nothing to do where there are chunks in memory, what launches replace, and results.
    """
    if (layers := _built(dsk)) is None:
        return None
    whole: Graph = {}
    for layer in layers:
        whole |= layer
    found = find_launches(whole := _culled(convert_legacy_graph(whole), wanted), wanted)
    replaced = wanted.union(*(launch.plain for launch in found.launches))
    others = map(whole.__getitem__, whole.keys() - replaced)
    has_more = not all(type(node) is DataNode or read(node, RootTask) for node in others)
    if has_more or not found.launches:
        return None
    made = {key for launch in found.launches for key in launch.outputs}
    needs = (key for launch in found.launches for key in launch.needs)
    return found if all(_is_made(found.graph, key, made) for key in needs) else None


def _is_made(graph: Graph, key: Any, made: set[Any]) -> bool:
    """Tell whether a key is of data, `made` by launches, or of the end of a tree of such states."""
    node: Any = graph.get(key)
    if key in made or type(node) is DataNode:
        return True
    return bool(read(node, RootTask)) and all(
        _is_made(graph, each, made) for each in node.dependencies
    )


def _run_at_once(graph: Graph, calls: Iterable[LaunchTask]) -> None:
    """Make launches, each after those that make its inputs; results are data in `graph` then."""
    making = {key: call for call in calls for key in call.launch.outputs}

    def value(key: Any) -> Any:
        node: Any = graph.get(key)
        if type(node) is DataNode:
            return node.value
        if key in making:
            make(making[key])
        else:
            with noting(key, ""):
                graph[key] = DataNode(key, node({k: value(k) for k in node.dependencies}))
        return graph[key].value

    def make(call: LaunchTask) -> None:
        launch = call.launch
        values = [value(key) for key in launch.needs]
        with noting(launch.key, " on all GPUs"):
            results = call(values)
        graph.update(zip(launch.outputs, map(DataNode, launch.outputs, results), strict=True))

    for call in calls:
        if any(type(graph.get(key)) is not DataNode for key in call.launch.outputs):
            make(call)


def _built(dsk: Any) -> list[Graph] | None:
    """Return the layers of a graph that Dask has yet to optimize, if all are ours or of tasks."""
    try:
        from dask._expr import HLGExpr, _HLGExprSequence
    except ImportError:
        # Dask optimizes it.
        return None
    parts = dsk.operands if isinstance(dsk, _HLGExprSequence) else [dsk]
    layers: list[Graph] = []
    for part in parts:
        if not isinstance(part, HLGExpr) or part.low_level_optimizer not in _OPTIMIZERS:
            return None
        for layer in part.hlg.layers.values():
            if type(layer) is MaterializedLayer:
                layers.append(layer.mapping)
            elif isinstance(layer, Blockwise) and kind_of(layer.task):
                layers.append(dict(layer))
            else:
                return None
    return layers


def _values(graph: Graph, keys: Iterable[Any]) -> list[Any] | None:
    """Return what is in memory by some keys; None unless all of it is."""
    nodes: list[Any] = [graph.get(key) for key in keys]
    values = [node.value for node in nodes if type(node) is DataNode]
    return values if len(values) == len(nodes) else None


def _culled(graph: Graph, wanted: set[Any]) -> Graph:
    """Return what is needed of a graph, in its order, by which keys without an index are dealt."""
    if all(type(graph.get(key)) is DataNode for key in wanted):
        return {key: graph[key] for key in wanted}
    needed = cull(graph, wanted)
    return graph if len(needed) == len(graph) else {k: graph[k] for k in graph if k in needed}


def _plain_because(reason: Objection) -> str:
    return f"plain tasks, because {reason}"


def _multichunk() -> ModuleType:
    from dask_coop.chunks.cupy import multichunk

    return multichunk


def _digits() -> ModuleType:
    from dask_coop.chunks.cupy import digits

    return digits
