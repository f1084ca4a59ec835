"""The arrays among the inputs of a task."""

from __future__ import annotations

import operator
from typing import NamedTuple

import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef
from support.host_cupy.gpus import FakeGpus, on_gpu

import dask_coop as dc
from dask_coop.graph.inputs import bring, hands_on, held, leaves, replace, taken
from dask_coop.graph.tasks import DownsweepTask, PrefixesTask, name_of, read


class Pair(NamedTuple):
    a: object
    b: object


def test_leaves_and_their_replacement_reach_into_containers_and_tasks() -> None:
    x, y = object(), object()
    inner = {"a": DataNode("a", x), "b": Task("b", max, [TaskRef("a"), Pair(1, x)], key={"k": x})}
    work = Task("t", print, inner, List(x, TaskRef("u")), Dict(a=x)), {"u": [(x,), {"v": x}]}
    assert sum(leaf is x for leaf in leaves(work)) == 7
    replaced = replace(work, {id(x): y})
    assert sum(leaf is x for leaf in leaves(replaced)) == 0
    assert sum(leaf is y for leaf in leaves(replaced)) == 7
    assert sum(leaf is x for leaf in leaves(work)) == 7
    assert replace(work, {id(y): x}) is work
    task, data = replaced
    assert (task.key, task.func, task.dependencies) == ("t", print, work[0].dependencies)
    assert task.args[1]({"u": 5}) == [y, 5]
    assert task.args[2]() == {"a": y}
    assert isinstance(task.args[0]["b"].args[0][1], Pair)
    assert data == {"u": [(y,), {"v": y}]}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Alias("a", "list"), True),
        (List(TaskRef("list"), TaskRef("array")), True),
        (Dict(a=TaskRef("array")), True),
        (List(Task("t", abs, TaskRef("array"))), False),
        (Task("t", operator.getitem, TaskRef("list"), 0), True),
        (Task("t", operator.getitem, TaskRef("array"), 0), False),
        (Task("t", operator.getitem, TaskRef("list"), TaskRef("array")), False),
        (Task("t", abs, TaskRef("list")), False),
    ],
)
def test_what_only_hands_on_is_told_from_what_computes(task: object, expected: bool) -> None:
    assert hands_on(task, {"list": [1, 2], "array": object()}) is expected


def test_a_scan_takes_one_of_the_base_sums_of_its_group() -> None:
    y = dc.cumsum(da.ones(140, chunks=2), method="reduce-then-scan")
    graph = dict(y.dask)
    chunk = read(graph[y.name, 35], DownsweepTask)
    assert chunk is not None
    data = {chunk.block: "x", chunk.bases: [*range(32)]}
    wanted = {chunk.block: "x", chunk.bases: [chunk.position]}
    task = graph[y.name, 35]
    assert chunk.position == 2
    assert taken(task, data) == wanted
    more = Task("more", abs, TaskRef(task.key))
    assert taken(Task.fuse(task, more, key="more"), data) == wanted
    # The base sums of a group begin at one of the totals of all groups.
    key = next(key for key in graph if name_of(key).startswith("cumsum-base") and key[-1] == 2)
    bases = read(graph[key], PrefixesTask)
    assert bases is not None
    states = dict.fromkeys(bases.states, "s")
    assert taken(graph[key], {**states, bases.above: "abc"}) == {**states, bases.above: ["b"]}
    for other in (graph[y.name, 0], more, Alias("a", "b"), List(TaskRef("b"))):
        assert taken(other, data) is data


def test_what_a_task_takes_is_counted_and_brought_to_one_gpu() -> None:
    gpus, x, y = FakeGpus(3), on_gpu(np.ones(4), 1), on_gpu(np.ones(8), 2)
    task, data = Task("t", max, TaskRef("a"), [x]), {"a": {"inner": (y, "host")}}
    assert held(gpus, task, data) == {1: 32, 2: 64}
    task, data = bring(gpus, 2, task, data)
    assert gpus.moves() == [((1,), 2)]
    assert held(gpus, task, data) == {2: 96}
    assert data["a"]["inner"][0] is y
    assert bring(gpus, 2, task, data) == (task, data)
    assert len(gpus.moves()) == 1
