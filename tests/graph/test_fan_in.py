"""How many results of others a task takes: few, of any number of chunks, and fewer large ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.task_spec import Task

import dask_coop as dc
from dask_coop.graph import prefixes
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import (
    AggregateTask,
    CombineTask,
    PrefixesTask,
    TabulateTask,
    read,
)

#: Of one task, whatever there is.
MOST = 64


def cells(n: int) -> Any:
    """Return which of 50 groups each of n elements is in, few of them in any one place."""
    return np.arange(n) // max(1, n // 50)


CALLS: dict[str, tuple[Callable[[da.Array], Any], Callable[[Any], Any]]] = {
    "sum": (dc.sum, np.sum),
    "var": (dc.var, np.var),
    "argmax": (dc.argmax, np.argmax),
    "describe": (lambda x: dc.describe(x).max, np.max),
    "histogram": (lambda x: dc.histogram(x, 9)[0], lambda x: np.histogram(x, 9)[0]),
    "median": (dc.median, np.median),
    "topk": (lambda x: dc.topk(x, 3), lambda x: np.sort(x)[:-4:-1]),
    "unique": (lambda x: dc.unique(x), np.unique),
    "groups": (
        lambda x: dc.groupby_reduce(x, cells(x.size), func="max")[0],
        lambda x: np.maximum.reduceat(x, np.unique(cells(x.size), return_index=True)[1]),
    ),
    "cumsum": (dc.cumsum, np.cumsum),
    "reverse": (lambda x: dc.cumsum(x, reverse=True), lambda x: np.cumsum(x[::-1])[::-1]),
    "cummax": (dc.cummax, np.maximum.accumulate),
    "ffill": (dc.ffill, lambda x: x),
    "restarts": (
        lambda x: dc.cumsum(x, segments=da.arange(x.size, chunks=x.chunks) % 2000 == 0),
        lambda x: np.concatenate(
            [part.cumsum() for part in np.split(x, range(2000, x.size, 2000))]
        ),
    ),
}


def tasks_of(lazy: Any) -> Iterator[Task]:
    return (task for task in dict(lazy.dask).values() if isinstance(task, Task))


def most(lazy: Any) -> int:
    """Return how many others a task depends on, of all tasks at most."""
    return max(len(task.dependencies) for task in tasks_of(lazy))


#: Those of which even many chunks take little time.
QUICK = ["sum", "histogram", "groups", "cumsum"]


@pytest.mark.parametrize(
    ("name", "k"),
    [*((name, k) for name in CALLS for k in (10, 600)), *((name, 1100) for name in QUICK)],
)
def test_a_task_takes_few_of_any_number_of_chunks(name: str, k: int) -> None:
    ours, numpys = CALLS[name]
    array = np.random.default_rng(k).integers(-999, 999, k).astype("f8")
    lazy = ours(da.from_array(array, chunks=1))
    assert most(lazy) <= MOST
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), numpys(array), rtol=1e-12)


# So many that trees have a fourth level; results of as many are those of small groups, below.
@pytest.mark.parametrize(
    ("name", "k"), [("sum", 33_000), ("histogram", 5000), ("groups", 5000), ("cumsum", 33_000)]
)
def test_a_task_takes_few_of_very_many_chunks(name: str, k: int) -> None:
    assert most(CALLS[name][0](da.zeros(k, chunks=1))) <= MOST


@pytest.mark.parametrize(
    ("most", "nbytes"), [(32, 0), (32, 1 << 19), (16, 1 << 20), (32, math.nan)]
)
def test_small_states_are_taken_as_many_at_a_time_as_may_be(most: int, nbytes: float) -> None:
    assert at_a_time(most, nbytes) == most


def test_large_states_are_taken_a_few_at_a_time() -> None:
    assert [at_a_time(32, n << 20) for n in (1, 2, 4, 5, 8, 9, 4000)] == [16, 8, 4, 3, 2, 2, 2]


def states_of(task: Task) -> int:
    """Return how many states one of our tasks takes."""
    for kind in (CombineTask, AggregateTask, TabulateTask, PrefixesTask):
        if found := read(task, kind):
            return len(found.states)  # type: ignore[attr-defined]
    named = task.kwargs.get("states")
    return len(named.args) if named is not None else 0


LARGE: dict[str, Callable[[int], Any]] = {
    "cumsum": lambda n: dc.cummax(da.zeros((312, n), chunks=(1, -1)), 0),
    "max": lambda n: dc.max(da.zeros((312, n), chunks=(1, -1)), 0),
    "topk": lambda n: dc.topk(da.zeros((624, n // 2), chunks=(2, -1)), 2, 0),
    "histogram": lambda n: dc.histogram(da.zeros(312, chunks=1), n, (0, 1))[0],
    "groups of rows": lambda n: dc.groupby_reduce(
        da.zeros((n, 312), chunks=(-1, 1)), np.arange(312) % 2, func="max", axis=-1
    )[0],
    "many groups": lambda n: dc.groupby_reduce(
        da.zeros(312 * n, chunks=n), np.arange(312 * n) % n, func="max"
    )[0],
    "searchsorted": lambda n: dc.searchsorted(da.arange(312, chunks=1), da.zeros(n, chunks=-1)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_states_never_meet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "TAKEN_BYTES", 1 << 14)
    lazy = LARGE[name](512)
    assert 2 <= max(states_of(task) for task in tasks_of(lazy)) <= 4
    lazy.compute(scheduler="sync")


@pytest.mark.parametrize("name", ["cumsum", "max"])
def test_states_of_four_mebibytes_never_meet(name: str) -> None:
    lazy = LARGE[name](1 << 19)
    assert max(states_of(task) for task in tasks_of(lazy)) == 4


def test_what_a_caller_asks_for_is_done() -> None:
    x = da.zeros((312, 1 << 19), chunks=(1, -1))
    assert most(dc.max(x, 0, split_every=20)) == 20
    with dask.config.set(split_every=10):
        assert most(dc.max(x, 0)) == 10


@pytest.mark.parametrize("name", CALLS)
def test_small_groups_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "TAKEN_BYTES", 48)
    test_a_task_takes_few_of_any_number_of_chunks(name, 100)
