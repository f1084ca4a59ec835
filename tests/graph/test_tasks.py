"""What tasks of a graph do is read back, and another argument of a task's function is no matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef, convert_legacy_graph, cull
from dask.array.utils import assert_eq
from dask.core import flatten
from dask.local import get_sync

import dask_coop as dc
from dask_coop.graph import tasks
from dask_coop.node.find import find_launches, put_in

ARRAY = np.random.default_rng(7).integers(-50, 50, 400).astype("f8")

#: Between them these call every function of a task.
RESULTS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: dc.sum(x),
    "masked": lambda x: dc.sum(x, where=x > 0),
    "argmax": lambda x: dc.argmax(x),
    "histogram": lambda x: dc.histogram(x, 5, (-50, 50))[0],
    "weighted": lambda x: dc.histogram(x, 5, (-50, 50), weights=x)[0],
    "lazy bins": lambda x: dc.histogram(x, 5)[0],
    "median": lambda x: dc.median(x),
    "cumsum": lambda x: dc.cumsum(x),
    "restarting": lambda x: dc.cumsum(x, segments=np.arange(400) % 30 == 0),
    "sequential": lambda x: dc.cumsum(x, method="sequential"),
}


def lazy(name: str) -> Any:
    x = da.from_array(ARRAY, chunks=10).persist(scheduler="sync")
    return RESULTS[name](x)


def graph_of(x: Any) -> dict[Any, Any]:
    return dict(convert_legacy_graph(dict(x.__dask_graph__())))


def tasks_of(name: str, kind: type[tasks.Kind]) -> dict[Any, tasks.Kind]:
    """Return what the tasks of a result do, by their keys and in their order."""
    graph, _ = tasks.taken_apart(graph_of(lazy(name)), set(tasks.KINDS.values()))
    found = {key: does for key, task in graph.items() if (does := tasks.read(task, kind))}
    return dict(sorted(found.items(), key=str))


def test_every_kind_of_task_is_read() -> None:
    found = {type(does) for name in RESULTS for does in tasks_of(name, tasks.OurTask).values()}
    assert found == set(tasks.KINDS.values())


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_read_needs_what_the_task_needs(name: str) -> None:
    graph, _ = tasks.taken_apart(graph_of(lazy(name)), set(tasks.KINDS.values()))
    read = {key: does for key, task in graph.items() if (does := tasks.read(task, tasks.OurTask))}
    assert read
    for key, does in read.items():
        values = [getattr(does, field.name) for field in fields(does)]
        several = [value for value in values if isinstance(value, tuple)]
        keys = {value for value in (*values, *sum(several, ())) if is_key(value, graph)}
        if isinstance(grid := getattr(does, "grid", None), TaskRef):
            keys.add(grid.key)
        assert keys == graph[key].dependencies


def is_key(value: Any, graph: dict[Any, Any]) -> bool:
    return isinstance(value, tuple | str) and value in graph


def test_what_a_lift_does_is_read() -> None:
    (name,) = {key[0] for key in tasks_of("masked", tasks.LiftTask)}
    third = tasks_of("masked", tasks.LiftTask)[name, 3]
    assert third.op.monoid.name == "compensated_sum"
    assert third.axes == (0,)
    assert third.block[1:] == (3,)
    assert third.where is not None
    assert third.where[1:] == (3,)
    assert third.origin is None
    origins = [does.origin for does in tasks_of("argmax", tasks.LiftTask).values()]
    assert ((30, 400),) in origins


def test_what_a_count_does_is_read() -> None:
    weights = {does.weights for does in tasks_of("histogram", tasks.CountTask).values()}
    assert weights == {None}
    for does in tasks_of("weighted", tasks.CountTask).values():
        assert does.samples == (does.weights,)
        assert does.grid.shape == (5,)  # type: ignore[union-attr]


def test_what_a_scan_does_is_read() -> None:
    scans = {key[1]: does for key, does in tasks_of("cumsum", tasks.DownsweepTask).items()}
    assert scans[0].bases is None
    assert [scans[j].position for j in (1, 32, 33)] == [0, 31, 0]
    assert {does.block for does in scans.values()} >= {
        does.block for does in tasks_of("cumsum", tasks.UpsweepTask).values()
    }
    above = [does for does in tasks_of("cumsum", tasks.PrefixesTask).values() if does.above]
    assert [len(does.states) for does in above] == [7]


def test_other_tasks_are_not_read() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    for other in (None, 3, Task("a", print), Task("a", Unhashable()), Task("a", tasks.take_turn)):
        assert tasks.read(other, tasks.OurTask) is None
    total = next(
        task for task in graph_of(lazy("sum")).values() if tasks.kind_of(task) is tasks.LiftTask
    )
    assert tasks.read(total, tasks.LiftTask)
    assert tasks.read(total, tasks.CombineTask) is None


def with_another_argument(function: Any) -> Any:
    """Return a function that takes one more argument, before all others."""

    def called(*args: Any, verbose: str = "no", **kwargs: Any) -> Any:
        assert verbose in ("no", "yes")
        return function(*args, **kwargs)

    return called


@pytest.mark.parametrize("given", [False, True], ids=["defaulted", "given"])
@pytest.mark.parametrize("name", RESULTS)
def test_another_argument_of_all_functions_changes_nothing(
    name: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, explained = found_and_computed(lazy(name)), dc.explain(lazy(name))
    for function, kind in list(tasks.KINDS.items()):
        changed = with_another_argument(function)
        changed.__module__ = function.__module__
        monkeypatch.setattr(tasks, function.__name__, changed)
        monkeypatch.setitem(tasks.KINDS, changed, kind)
        monkeypatch.delitem(tasks.KINDS, function)
    x = lazy(name)
    graph = graph_of(x)
    if given:
        for key, task in graph.items():
            if tasks.kind_of(task):
                more = {"verbose": "yes", **task.kwargs}
                graph[key] = Task(key, task.func, *task.args, **more)
    assert dc.explain(x) == explained
    after = found_and_computed(x, graph)
    assert after[:2] == before[:2]
    assert_eq(after[2], before[2])


def found_and_computed(x: Any, graph: dict[Any, Any] | None = None) -> tuple[Any, Any, Any]:
    """Return the launches of a graph, why others are none, and the result that launches make."""
    keys = x.__dask_keys__()
    wanted = set(flatten(keys))
    found = find_launches(graph_of(x) if graph is None else graph, wanted)
    plain = dict(found.graph)
    for launch in found.launches:

        def run(values: list[Any], launch: Any = launch) -> list[Any]:
            inside = launch.plain | dict(zip(launch.needs, values, strict=True))
            return list(get_sync(inside, list(launch.outputs)))

        put_in(plain, launch, run)
    of_launches = [
        (launch.key, launch.op, launch.blocks, launch.outputs, launch.plain.keys(), launch.origins)
        for launch in found.launches
    ]
    blocks = flatten([get_sync(cull(plain, wanted), keys)])
    result = np.concatenate([np.ravel(block) for block in blocks])
    return of_launches, found.others, result


def test_fused_tasks_are_taken_apart() -> None:
    (x,) = dask.optimize(dc.cumsum(da.from_array(ARRAY, chunks=10) + 1) * 2)
    graph = graph_of(x)
    fused = {key for key, task in graph.items() if tasks.is_fused(task)}
    assert any(tasks.does_any(graph[key], {tasks.DownsweepTask}) for key in fused)
    whole, homes = tasks.taken_apart(graph, {tasks.DownsweepTask})
    scans = [key for key, task in whole.items() if tasks.kind_of(task) is tasks.DownsweepTask]
    assert len(scans) == 40
    assert {homes[key] for key in scans if key in homes} <= fused
