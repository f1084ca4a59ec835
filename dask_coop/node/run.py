"""Runs the multi-chunk launches of a graph, or their plain tasks where chunks do not suit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from dask._task_spec import DataNode, Task, convert_legacy_graph, cull
from dask.core import flatten

from dask_coop.chunks.cupy.eligibility import (
    TABLE_TOO_LARGE,
    Objection,
    objection_to_chunks,
    objection_to_dtypes,
    objection_to_grid,
    objection_to_team,
)
from dask_coop.graph.tasks import Graph
from dask_coop.node.find import MultichunkLaunch, find_launches, put_in
from dask_coop.node.placement import OnAllGpus
from dask_coop.node.streams import cut_copies

RunPlain = Callable[[Graph, Any], Any]


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

        With `early`, launches of which the chunks are there and the results are wanted, or small,
        are made at once: Dask takes longer to look at a task for each chunk than the GPUs do to
        work. `run_plain` runs a graph as it is, for some keys. What is told grows as launches run.
        """
        wanted = set(flatten([keys]))
        whole = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
        whole = _culled(whole, wanted)
        graph, plain, launches, others = find_launches(whole, wanted)
        explained = {name: _plain_because(reason) for name, reason in others.items()}
        if launches and (reason := objection_to_team(self._find_team())):
            explained |= {launch.name: _plain_because(reason) for launch in launches}
            return _to_run(plain, whole, wanted), explained
        for launch in launches:
            call = LaunchTask(launch, self, run_plain, explained)
            inputs = [graph.get(key) for key in launch.needs]
            values = [node.value for node in inputs if isinstance(node, DataNode)]
            is_last = launch.spec is None or wanted.issuperset(launch.outputs)
            if not (early and is_last and len(values) == len(inputs)):
                put_in(graph, launch, call)
                continue
            results = run_plain({launch.key: Task(launch.key, call, values)}, launch.key)
            graph.update(
                (key, DataNode(key, x)) for key, x in zip(launch.outputs, results, strict=True)
            )
        return _to_run(graph, whole, wanted), explained

    def _find_team(self) -> Any:
        with self._lock:
            if self._team is None:
                self._team = _multichunk().Team(self._devices, self._timeout)
            return self._team

    def run(self, launch: MultichunkLaunch, values: list[Any]) -> list[Any] | Objection:
        """Return the outputs of a launch, or why there is none."""
        multichunk, team, xs = _multichunk(), self._find_team(), values[: len(launch.blocks)]
        if reason := objection_to_chunks(xs, team):
            return reason
        if launch.grid is not None:
            grid = values[-1] if len(values) > len(xs) else launch.grid
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
        self._launch, self._launcher = launch, launcher
        self._run_plain, self._explained = run_plain, explained

    def __call__(self, values: list[Any]) -> list[Any]:
        """Return the outputs of the launch, given its inputs."""
        launch = self._launch
        outcome = self._launcher.run(launch, values)
        if not isinstance(outcome, Objection):
            self._explained[launch.name] = f"one launch over {len(launch.blocks)} chunks"
            return outcome
        self._explained[launch.name] = _plain_because(outcome)
        inputs = zip(launch.needs, values, strict=True)
        graph = launch.plain | {key: DataNode(key, value) for key, value in inputs}
        return list(self._run_plain(graph, list(launch.outputs)))


def _to_run(graph: Graph, whole: Graph, wanted: set[Any]) -> Graph:
    """Return what is needed of a graph that was made of `whole`, and has streams of copies."""
    return cut_copies(graph if graph is whole else _culled(graph, wanted))


def _culled(graph: Graph, wanted: set[Any]) -> Graph:
    """Return what is needed of a graph, in its order, by which keys without an index are dealt."""
    needed = cull(graph, wanted)
    return {key: task for key, task in graph.items() if key in needed}


def _plain_because(reason: Objection) -> str:
    return f"plain tasks, because {reason}"


def _multichunk() -> ModuleType:
    from dask_coop.chunks.cupy import multichunk

    return multichunk
