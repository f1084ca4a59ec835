"""Stages at work: one launch on all GPUs, or the plain tasks where the chunks do not suit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from dask._task_spec import DataNode, Task, convert_legacy_graph, cull
from dask.core import flatten

from dask_coop.chunks.cupy.eligibility import objection_to_dtypes, objection_to_grid
from dask_coop.graph.tasks import Graph
from dask_coop.node.find import Stage, find_stages, put_in
from dask_coop.node.placement import Everywhere

Plain = Callable[[Graph, Any], Any]


class Runs:
    """The GPUs of a `Node` as those that stages run on.

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

    def plan(self, dsk: Any, keys: Any, plain: Plain, ahead: bool) -> tuple[Graph, dict[str, str]]:
        """Return the graph to run, in which stages are tasks, and what comes to tell of these.

        Those of which the chunks are there and the results are wanted, or small, may be run `ahead`
        of the others: Dask takes longer to look at a task for each chunk than the GPUs do to work.
        `plain` runs a graph as it is, for some keys.
        """
        wanted = set(flatten([keys]))
        whole = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
        whole = _culled(whole, wanted)
        graph, stages, others = find_stages(whole, wanted)
        told = {name: _plain_because(reason) for name, reason in others.items()}
        if stages and (reason := self._find_team().objection):
            told |= {stage.name: _plain_because(reason) for stage in stages}
            return whole, told
        for stage in stages:
            call = OnAll(stage, self, plain, told)
            inputs = [graph.get(key) for key in stage.needs]
            values = [node.value for node in inputs if isinstance(node, DataNode)]
            is_last = stage.spec is None or wanted.issuperset(stage.outputs)
            if not (ahead and is_last and len(values) == len(inputs)):
                put_in(graph, stage, call)
                continue
            results = plain({stage.key: Task(stage.key, call, values)}, stage.key)
            graph.update(
                (key, DataNode(key, x)) for key, x in zip(stage.outputs, results, strict=True)
            )
        return _culled(graph, wanted) if stages else graph, told

    def _find_team(self) -> Any:
        with self._lock:
            if self._team is None:
                self._team = _engine().Team(self._devices, self._timeout)
            return self._team

    def launch(self, stage: Stage, values: list[Any]) -> list[Any] | str:
        """Return the outputs of a stage of one launch, or why there is none."""
        engine, team, xs = _engine(), self._find_team(), values[: len(stage.blocks)]
        if reason := engine.objection(team, xs):
            return str(reason)
        if stage.grid is not None:
            if reason := objection_to_dtypes(xs):
                return str(reason)
            grid = values[-1] if len(values) > len(xs) else stage.grid
            if reason := objection_to_grid(grid):
                return str(reason)
            state = engine.histogram(team, stage.op, xs, grid)
            return "the table does not fit the memory of a block" if state is None else [state]
        if stage.spec is None:
            return [engine.reduce(team, stage.op, xs, stage.origins)]
        results = engine.scan(team, stage.op, xs, stage.wanted, stage.spec)
        return [y for y in results if y is not None]


class OnAll(Everywhere):
    """The function of a stage's task.

    Parameters
    ----------
    stage : Stage
    runs : Runs
    plain : callable
        Runs a graph as it is, for some keys.
    told : dict of str to str
        Gets how the stage was run, by its name.
    """

    def __init__(
        self,
        stage: Stage,
        runs: Runs,
        plain: Plain,
        told: dict[str, str],
    ) -> None:
        self._stage, self._runs, self._plain, self._told = stage, runs, plain, told

    def __call__(self, values: list[Any]) -> list[Any]:
        """Return the outputs of the stage, given its inputs."""
        stage = self._stage
        outcome = self._runs.launch(stage, values)
        if isinstance(outcome, list):
            self._told[stage.name] = f"one launch over {len(stage.blocks)} chunks"
            return outcome
        self._told[stage.name] = _plain_because(outcome)
        inputs = zip(stage.needs, values, strict=True)
        graph = stage.plain | {key: DataNode(key, value) for key, value in inputs}
        return list(self._plain(graph, list(stage.outputs)))


def _culled(graph: Graph, wanted: set[Any]) -> Graph:
    """Return what is needed of a graph, in its order, by which keys without an index are dealt."""
    needed = cull(graph, wanted)
    return {key: task for key, task in graph.items() if key in needed}


def _plain_because(reason: str) -> str:
    return f"plain tasks, because {reason}"


def _engine() -> ModuleType:
    from dask_coop.chunks.cupy import multichunk

    return multichunk
