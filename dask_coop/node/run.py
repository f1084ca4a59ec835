"""Run the multi-chunk launches of a graph, or their plain tasks if the chunks do not suit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from types import ModuleType
from typing import Any

from dask._task_spec import DataNode, convert_legacy_graph, cull
from dask.core import flatten

from dask_coop.chunks.cupy.eligibility import (
    TABLE_TOO_LARGE,
    Objection,
    objection_to_chunks,
    objection_to_declared,
    objection_to_dtypes,
    objection_to_grid,
    objection_to_team,
)
from dask_coop.graph.tasks import Graph
from dask_coop.node import inline
from dask_coop.node.find import MultichunkLaunch, find_launches, put_in
from dask_coop.node.placement import OnAllGpus
from dask_coop.node.streams import stream

RunPlain = Callable[[Graph, Any], Any]


class Launcher:
    """Plan and run multi-chunk launches on the GPUs of a `Node`.

    Parameters
    ----------
    gpus : module
        `dask_coop.cuda.peers`, or its stand-in.
    devices : sequence of int
        Ordinals of the GPUs.
    timeout : float
        Seconds that a GPU waits at a barrier for the others.
    """

    def __init__(self, gpus: Any, devices: Sequence[int], timeout: float) -> None:
        self._gpus, self._devices, self._timeout = gpus, devices, timeout
        self._team: Any = None
        self._lock = threading.Lock()

    def plan(
        self, dsk: Any, keys: Any, run_plain: RunPlain, early: bool
    ) -> tuple[Graph, dict[str, str], bool]:
        """Return the graph to run, with a task for each launch, and the lines of `Node.explain`.

        Also return whether to run it in the calling thread: with `early`, if all chunks of a graph
        are in memory, because Dask's optimizer and scheduler would take longer than the GPU's work.
        In other graphs such chunks become arguments of the launches' tasks. `run_plain` runs a
        graph as it is, for some keys. Launches add their lines when they run.
        """
        wanted = set(flatten([keys]))
        if early and (layers := inline.built(dsk)) is not None:
            whole: Graph = {}
            for layer in layers:
                whole |= layer
            whole = _converted(whole, wanted)
            if inline.is_quick(whole):
                graph, explained = self._planned(whole, wanted, run_plain, False)
                if inline.is_on_one_gpu(graph, self._gpus):
                    return graph, explained, True
        whole = dict(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
        graph, explained = self._planned(_converted(whole, wanted), wanted, run_plain, early)
        return stream(graph), explained, False

    def _planned(
        self, whole: Graph, wanted: set[Any], run_plain: RunPlain, with_values: bool
    ) -> tuple[Graph, dict[str, str]]:
        """Return a graph with its launches, and the lines of `Node.explain` for others."""
        plan = find_launches(whole, wanted)
        if plan.launches and (reason := objection_to_team(self._find_team())):
            names = [*plan.others, *(launch.name for launch in plan.launches)]
            reasons = [*plan.others.values(), *repeat(reason, len(plan.launches))]
            graph = plan.plain if plan.plain is whole else _culled(plan.plain, wanted)
            return graph, dict(zip(names, map(_plain_because, reasons), strict=True))
        graph = plan.graph
        explained = {name: _plain_because(reason) for name, reason in plan.others.items()}
        for launch in plan.launches:
            call = LaunchTask(launch, self, run_plain, explained)
            put_in(graph, launch, call, _values(graph, launch.needs) if with_values else None)
        return graph if graph is whole else _culled(graph, wanted), explained

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


def _converted(graph: Graph, wanted: set[Any]) -> Graph:
    """Return the nodes of a graph that `wanted` needs."""
    return _culled(convert_legacy_graph(graph), wanted)


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
