"""Run the multi-chunk launches of a graph, or their plain tasks if the chunks do not suit."""

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
from dask_coop.node.find import Launches, MultichunkLaunch, find_launches, put_in
from dask_coop.node.placement import OnAllGpus
from dask_coop.node.streams import stream

RunPlain = Callable[[Graph, Any], Any]

#: Dask's default optimizers of arrays and of delayed objects.
_OPTIMIZERS = (None, optimize_arrays, optimize_delayed)


class Launcher:
    """Plan and run multi-chunk launches on the GPUs of a `Node`.

    Parameters
    ----------
    devices : sequence of int
        Ordinals of the GPUs.
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
        """Return the graph to run, with a task for each launch, and the lines of `Node.explain`.

        With `early`, Dask handles no task a chunk, which would take longer than the GPUs' work:
        if all chunks of a graph of launches are in memory, the graph is not optimized, and the
        launches run here, in the calling thread; in other graphs such chunks become arguments of
        the launches' tasks. `run_plain` runs a graph as it is, for some keys. Launches add their
        lines when they run.
        """
        wanted = set(flatten([keys]))
        whole: Graph = {}
        plan = _find_unoptimized(dsk, wanted) if early else None
        at_once = plan is not None and not objection_to_team(self._find_team())
        if plan is None or not at_once:
            whole = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
            whole = _culled(whole, wanted)
            plan = find_launches(whole, wanted)
            if plan.launches and (reason := objection_to_team(self._find_team())):
                names = [*plan.others, *(launch.name for launch in plan.launches)]
                reasons = [*plan.others.values(), *repeat(reason, len(plan.launches))]
                graph = plan.plain if plan.plain is whole else _culled(plan.plain, wanted)
                explained = dict(zip(names, map(_plain_because, reasons), strict=True))
                return stream(graph), explained
        graph = plan.graph
        explained = {name: _plain_because(reason) for name, reason in plan.others.items()}
        calls = [LaunchTask(launch, self, run_plain, explained) for launch in plan.launches]
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
        """Return the outputs of a launch, or the reason why these chunks cannot be launched."""
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
        Receives a line on how the launch ran, by its name.
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
    """Add a note with the task's key to an exception raised within."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in task {key!r}{where}")
        raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, so that no memory is freed that kernels still use.

    Python interrupts only the main thread.
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
    """Return the tasks left in a graph if they only make results of states, else None.

    These are the roots of trees, and Dask's own tasks that make arrays of their results, in order.
    They are so small that handing them to a thread would take longer.
    """
    left = [node for node in graph.values() if type(node) is not DataNode]
    roots = {task.key: task for task in left if read(task, RootTask)}
    ends = [task for task in left if task.key not in roots]
    for root in roots.values():
        if not all(type(graph.get(key)) is DataNode for key in root.dependencies):
            return None
    for end in ends:
        if type(end) is not Task or end.func is not finalize or end.dependencies - roots.keys():
            return None
    return [*roots.values(), *ends]


def _find_unoptimized(dsk: Any, wanted: set[Any]) -> Launches | None:
    """Return the launches of a graph as it was built, or None if Dask must optimize it first.

    Nothing is left to optimize if there are only chunks in memory, tasks that launches replace,
    and results.
    """
    if (layers := _built(dsk)) is None:
        return None
    whole: Graph = {}
    for layer in layers:
        whole |= layer
    plan = find_launches(whole := _culled(convert_legacy_graph(whole), wanted), wanted)
    replaced = wanted.union(*(launch.plain for launch in plan.launches))
    others = map(whole.__getitem__, whole.keys() - replaced)
    has_more = not all(type(node) is DataNode or read(node, RootTask) for node in others)
    if has_more or not plan.launches:
        return None
    outputs = {key for launch in plan.launches for key in launch.outputs}
    needs = (key for launch in plan.launches for key in launch.needs)
    return plan if all(_is_ready(plan.graph, key, outputs) for key in needs) else None


def _is_ready(graph: Graph, key: Any, outputs: set[Any]) -> bool:
    """Return whether a key is data, among the `outputs` of launches, or a root above such keys."""
    node: Any = graph.get(key)
    if key in outputs or type(node) is DataNode:
        return True
    return bool(read(node, RootTask)) and all(
        _is_ready(graph, needed, outputs) for needed in node.dependencies
    )


def _run_at_once(graph: Graph, calls: Iterable[LaunchTask]) -> None:
    """Run launches, each after those that make its inputs; put their results into `graph`."""
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
    """Return the layers of a graph not yet optimized, or None if one is of an unknown kind."""
    try:
        from dask._expr import HLGExpr, _HLGExprSequence
    except ImportError:
        return None
    layers: list[Graph] = []
    for expr in dsk.operands if isinstance(dsk, _HLGExprSequence) else [dsk]:
        if not isinstance(expr, HLGExpr) or expr.low_level_optimizer not in _OPTIMIZERS:
            return None
        for layer in expr.hlg.layers.values():
            if type(layer) is MaterializedLayer:
                layers.append(layer.mapping)
            elif isinstance(layer, Blockwise) and kind_of(layer.task):
                layers.append(dict(layer))
            else:
                return None
    return layers


def _values(graph: Graph, keys: Iterable[Any]) -> list[Any] | None:
    """Return the values of keys if all are in memory, else None."""
    nodes: list[Any] = [graph.get(key) for key in keys]
    values = [node.value for node in nodes if type(node) is DataNode]
    return values if len(values) == len(nodes) else None


def _culled(graph: Graph, wanted: set[Any]) -> Graph:
    """Return the tasks that `wanted` needs, in the graph's order, by which some keys are dealt."""
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
