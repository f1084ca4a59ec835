"""`explain` tells what serves each operation of a lazy result, by which method, and why."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from support.calls import refuse
from support.processes import printed

import dask_coop as dc
from dask_coop.api.call import fallback

KINDS = {"numpy": "NumPy", "cupy": "CuPy"}
OBJECTS = da.from_array(np.array([3, 1, 4, 1], "O"), chunks=2)


def chunked(xp: Any, shape: tuple[int, ...] = (6, 8), dtype: str = "f8") -> da.Array:
    array = xp.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return da.from_array(array, chunks=(2, 4)[: len(shape)], asarray=False)


def row(x: Any, operation: str) -> Any:
    """Return the only row of an operation."""
    (found,) = [each for each in dc.explain(x) if each.operation == operation]
    return found


def tasks_of_ours(x: Any, data: da.Array) -> int:
    parts = x if isinstance(x, tuple) else [x]
    return len(set().union(*(part.dask for part in parts)) - set(data.dask))


#: The groups of eight columns, of which a chunk has four.
ODD, PAIRS = np.arange(8) % 2, np.arange(8) // 2

#: What is said of reductions, scans and counts of an array of 6 chunks, 3 along the first axis.
TREE, TABLES = "tree over 6 chunks, up to", "tables of 5 bins over 6 chunks, up to 6 states a task"
SCAN = "reduce-then-scan over 6 chunks"
COUNTED = {"bins": 5, "range": (0, 9)}
#: What is done to the array, and what is said of it.
CALLS: dict[str, tuple[Any, str, str]] = {
    "sum": (lambda x: dc.sum(x), "sum", f"{TREE} 6 states a task"),
    "by two": (lambda x: dc.sum(x, split_every=2), "sum", f"{TREE} 2 states a task"),
    "lines": (lambda x: dc.argmax(x, 0), "argmax", f"{TREE} 3 states a task"),
    "scan": (lambda x: dc.cumsum(x, 0), "cumsum", SCAN),
    "chain": (
        lambda x: dc.cumprod(x, 0, method="sequential"),
        "cumprod",
        "sequential over 6 chunks",
    ),
    "counts": (lambda x: dc.histogram(x, **COUNTED)[0], "histogram", TABLES),
    "flow": (lambda x: dc.histogram(x, flow=True, **COUNTED)[0], "histogram", TABLES),
    "weights": (
        lambda x: dc.histogram(x, weights=x, **COUNTED)[0],
        "histogram",
        f"sums in {TABLES}",
    ),
    "steady weights": (
        lambda x: dc.histogram(x, weights=x, reproducible=True, **COUNTED)[0],
        "histogram",
        f"reproducible sums in {TABLES}",
    ),
    "digitize": (lambda x: dc.digitize(x, [1, 2]), "digitize", "chunk by chunk"),
    "transpose": (lambda x: dc.transpose(x, contiguous=True), "transpose", "chunk by chunk"),
    "groups": (
        lambda x: dc.groupby_reduce(x, ODD, func="sum")[0],
        "groupby-sum",
        "table of 2 groups over 6 chunks, up to 2 tables a task",
    ),
    "groups in few chunks": (
        lambda x: dc.groupby_reduce(x, PAIRS, func="nanmax")[0],
        "groupby-nanmax",
        "tables of up to 2 of 4 groups over 6 chunks, up to 1 table a task",
    ),
    "statistics of groups": (
        lambda x: dc.groupby_reduce(x, ODD, func=["mean", "std"])[0],
        "groupby-mean, groupby-std",
        "table of 2 groups over 6 chunks, up to 2 tables a task",
    ),
    "groups of lazy labels": (
        lambda x: dc.groupby_reduce(x, x[0], func="max", expected_groups=[1, 2, 5])[0],
        "groupby-max",
        "table of 3 groups over 6 chunks, up to 2 tables a task",
    ),
    "groups of two labels": (
        lambda x: dc.groupby_reduce(x, ODD, PAIRS, func="count")[0],
        "groupby-count",
        "tables of up to 4 of 8 groups over 6 chunks, up to 2 tables a task",
    ),
    "medians of groups": (
        lambda x: dc.groupby_reduce(x, PAIRS, func="median")[0],
        "groupby-median",
        "6 blocks of whole groups",
    ),
    "scans of groups": (
        lambda x: dc.groupby_scan(x, PAIRS, func="cumsum"),
        "cumsum",
        f"{SCAN} with segments",
    ),
    "gaps": (lambda x: dc.ffill(x, 0), "ffill", SCAN),
    "gaps in turn": (
        lambda x: dc.bfill(x, 0, 2, method="sequential"),
        "bfill",
        "sequential over 6 chunks",
    ),
    "weighted means": (lambda x: dc.ewm_mean(x, 0, com=1), "ewm_mean", SCAN),
    "areas": (
        lambda x: dc.cumulative_trapezoid(x),
        "cumulative-trapezoid-areas",
        "areas between the samples of 6 chunks",
    ),
    "windows": (lambda x: dc.move_mean(x, 3), "move_mean", "windows over 6 chunks"),
    "long windows": (
        lambda x: dc.move_max(x, 6, axis=0),
        "move_max",
        "windows over 6 chunks, with states of 4 parts between their ends",
    ),
}


#: Those that are all that is made of the array.
ALONE = {operation for name, (_, operation, _) in CALLS.items()} - {
    "cumsum",
    "groupby-max",
    "cumulative-trapezoid-areas",
}


@pytest.mark.parametrize(("call", "operation", "method"), CALLS.values(), ids=CALLS)
def test_the_method_of_what_is_ours(xp: Any, call: Any, operation: str, method: str) -> None:
    x = chunked(xp)
    with dask.config.set(scheduler=refuse):
        result = call(x)
        found = row(result, operation)
    assert found.served_by == "dask_coop"
    if operation in ALONE:
        assert found.method == f"{method}; {tasks_of_ours(result, x)} tasks"
    assert found.method.startswith(f"{method}; ")
    assert found.why.endswith(f"{KINDS[xp.__name__]} chunks")


def test_what_a_function_adds_to_its_own_tasks_is_told_beside_them(xp: Any) -> None:
    x = chunked(xp)
    in_place = {r.operation: r.method for r in dc.explain(dc.groupby_scan(x, PAIRS, func="cummax"))}
    assert in_place["group-begins"] == "known when the graph is built; 2 tasks"
    assert in_place["cummax"] == "reduce-then-scan over 6 chunks with segments; 12 tasks"
    moved = dc.explain(dc.groupby_scan(x, ODD, func="cummax"))
    assert "dask_coop" in {r.served_by for r in moved if "cummax" in r.operation}
    means = dc.explain(dc.ewm_mean(x, com=1, min_periods=2))
    ours = [r.operation for r in means if r.served_by == "dask_coop"]
    assert ours == ["ewm_mean-valid", "ewm_mean", "cumsum", "ewm_mean-seen"]
    boxes = [r for r in dc.explain(dc.box_filter(x, 3)) if r.operation == "box_filter"]
    assert [r.method.partition(",")[0] for r in boxes] == [
        "windows over 10 chunks",
        "windows over 12 chunks",
    ]


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
def test_the_dtype_and_the_kind_of_chunks_are_why(xp: Any, dtype: str) -> None:
    x = chunked(xp, dtype=dtype)
    for result, operation in [
        (dc.min(x), "min"),
        (dc.cummax(x, 1), "cummax"),
        (dc.cummax(x, 1, method="sequential"), "cummax"),
        (dc.groupby_reduce(x, ODD, func="max")[0], "groupby-max"),
    ]:
        assert row(result, operation).why == f"{np.dtype(dtype)} in {KINDS[xp.__name__]} chunks"


def test_chunks_that_are_made_twice_are_said_to_be() -> None:
    x = da.random.default_rng(0).random((6, 8), chunks=(2, 4))
    explained = dc.explain(dc.cumsum(x + 1, 0, method="recompute"))
    assert [r.method for r in explained if r.operation == "cumsum"] == [
        "recompute over 6 chunks; 12 tasks"
    ]
    assert [r.operation for r in explained].count("add") == 2


def test_products_and_bins_that_a_task_finds() -> None:
    x = chunked(np)
    assert row(dc.matmul(x, dc.transpose(x)), "matmul").method.startswith(
        "18 products of blocks, up to 2 added a task; "
    )
    hist, edges = dc.histogram(x)
    explained = {r.operation: r for r in dc.explain((hist, edges))}
    assert explained["histogram"].method.startswith("tables of bins that a task finds over 6 ")
    assert explained["histogram-bins"].method.startswith("tree over 6 chunks")
    assert {r.served_by for r in explained.values() if r.operation[:4] == "hist"} == {"dask_coop"}
    counts = dc.bincount(chunked(np, dtype="i4"))
    assert row(counts, "bincount").method.startswith("tables of integers over 6 chunks")


def test_statistics_of_one_read_are_one_operation() -> None:
    x = chunked(np)
    of_all = dc.explain(dc.describe(x))
    assert [r.operation for r in of_all] == ["array", ", ".join(sorted(dc.Description._fields))]
    assert of_all[1].method.startswith("tree over 6 chunks, up to 6 states a task")
    assert [r.operation for r in dc.explain([dc.describe(x).mean])] == ["array", "mean"]


def test_what_is_dasks_says_what_it_calls() -> None:
    x = chunked(np) + 1
    explained = dc.explain(da.mean(x))
    assert {r.served_by for r in explained} == {"Dask"}
    assert {r.why for r in explained} == {"no function of dask_coop"}
    assert explained[0] == ("array", "Dask", "6 chunks of data", "no function of dask_coop")
    assert explained[1][:3] == ("add", "Dask", "6 tasks of add")
    mixed = dc.explain(dc.sum(dc.cumsum(x, 0)) + 1)
    assert [(r.operation, r.served_by) for r in mixed] == [
        ("array", "Dask"),
        ("add", "Dask"),
        ("cumsum", "dask_coop"),
        ("sum", "dask_coop"),
        ("add", "Dask"),
    ]


def test_what_was_left_to_dask_says_why() -> None:
    doubled = OBJECTS + OBJECTS
    result = dc.max(doubled)
    explained = dc.explain(dc.sum((result + 1).astype("f8")))
    assert [(r.operation, r.served_by) for r in explained] == [
        ("array", "Dask"),
        ("add", "Dask"),
        ("max", "Dask"),
        ("add", "Dask"),
        ("astype", "Dask"),
        ("sum", "dask_coop"),
    ]
    left = explained[2]
    assert left.method == f"max of dask.array; {tasks_of_ours(result, doubled)} tasks"
    assert left.why.startswith("max does not take dtype object; it takes bool")
    counts = dc.histogram(OBJECTS, [0, 2, 5])[0]
    assert row(counts, "histogram").why.startswith(
        "histogram does not take samples of dtype object"
    )


def test_what_dask_gives_back_as_it_was_says_nothing() -> None:
    bins = da.from_array(np.array([0, 2, 5]), chunks=3) + 0
    hist, edges = dc.histogram(OBJECTS, bins)
    assert edges.name == bins.name
    assert row(edges, "add").why == "no function of dask_coop"
    assert "does not take samples" in row(hist, "histogram").why


def test_what_is_put_into_an_array_that_was_given_says_why() -> None:
    out = da.zeros((), dtype="O")
    assert dc.max(OBJECTS, out=out) is out
    assert "max does not take dtype object" in row(out, "max").why


def test_causes_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "LIMIT", 2)
    results = [dc.max(OBJECTS + i) for i in range(3)]
    known = ["does not take" in repr(dc.explain(result)) for result in results]
    assert known == [False, True, True]


def test_a_result_from_another_process_is_explained_too() -> None:
    x = chunked(np)
    result = dc.cumsum(x, 0)
    assert dc.explain(cloudpickle.loads(cloudpickle.dumps(result))) == dc.explain(result)


def test_fused_tasks_are_told_apart() -> None:
    x = chunked(np) + 1
    (optimised,) = dask.optimize(dc.sum(x))
    assert dc.explain(optimised)[-1] == dc.explain(dc.sum(x))[-1]
    for more in (
        dc.groupby_reduce(x, ODD, func="mean")[0],
        dc.groupby_reduce(x, x[0] + 1, func="mean", expected_groups=range(9))[0],
        dc.move_sum(x, 6),
        dc.ffill(x, 0),
    ):
        (optimised,) = dask.optimize(more)
        assert dc.explain(optimised)[-1] == dc.explain(more)[-1]
    lazy = dask.delayed(float)(dc.sum(x))
    assert row(lazy, "sum") == row(dc.sum(x), "sum")
    assert row(lazy, "float").served_by == "Dask"


def test_it_prints_as_a_table_that_is_always_the_same() -> None:
    x = chunked(np)
    parts = dc.histogram(x), [dc.describe(x), dask.delayed(int)(3)], 5
    explained = dc.explain(parts)
    assert isinstance(explained, tuple)
    assert str(explained) == repr(explained)
    lines = str(explained).splitlines()
    assert lines[0].split() == ["operation", "served", "by", "method", "why"]
    assert len(lines) == 1 + len(explained)
    where = lines[0].index("method")
    assert all(
        line[where:].startswith(r.method) for line, r in zip(lines[1:], explained, strict=True)
    )
    program = """
import dask, dask.array as da, numpy as np, dask_coop as dc
x = da.from_array(np.arange(48.0).reshape(6, 8), chunks=(2, 4))
print(dc.explain((dc.histogram(x), [dc.describe(x), dask.delayed(int)(3)], 5)))
"""
    said = {run(program, PYTHONHASHSEED=str(seed)).replace("int-", "") for seed in (1, 2)}
    assert len(said) == 1


@pytest.mark.parametrize("x", [3, (), np.arange(3), [None]])
def test_what_is_not_lazy_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match=rf"explain takes lazy results, got {type(x).__name__}"):
        dc.explain(x)


def run(program: str, **environment: str) -> str:
    return printed("-W", "ignore", "-c", program, **environment)


def test_expressions_are_explained_as_graphs_are() -> None:
    program = """
import dask, dask.array as da, numpy as np, dask_coop as dc
assert da.array_expr_enabled()
def refuse(*args, **kwargs):
    raise AssertionError("computed")
x = da.from_array(np.ones((6, 8)), chunks=(2, 4)) + 1
objects = da.from_array(np.array([[3, 1], [4, 1]], "O"), chunks=1)
with dask.config.set(scheduler=refuse):
    ours = {r.operation: r for r in dc.explain(dc.sum(dc.cumsum(x, axis=0)) + 1)}
    total = dc.sum(dc.max(objects + 1, axis=0).astype("f8")) + 1
    left = {r.operation: r for r in dc.explain(total)}
    several = dc.explain(dc.describe(x))
    hist = {r.operation: r for r in dc.explain(dc.histogram(x, 5, (0, 1)))}
why = "float64 in NumPy chunks"
assert ours["cumsum"][1:] == ("dask_coop", "reduce-then-scan over 6 chunks; 12 tasks", why), ours
tree = "tree over 6 chunks, up to 6 states a task; 7 tasks"
assert ours["sum"][1:] == ("dask_coop", tree, why), ours
assert ours["add"].served_by == "Dask"
assert left["max"].served_by == "Dask"
assert left["max"].why.startswith("max does not take dtype object"), left
assert left["sum"].served_by == "dask_coop"
assert several[-1].method == "tree over 6 chunks, up to 6 states a task; 15 tasks", several
assert hist["histogram"].method.startswith("tables of 5 bins over 6 chunks"), hist
"""
    run(program, DASK_ARRAY__QUERY_PLANNING="true")


def test_what_is_remembered_may_be_dropped_by_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shared(OrderedDict[str, fallback.HandOver]):
        def __setitem__(self, name: str, hand_over: fallback.HandOver) -> None:
            super().__setitem__(name, hand_over)
            # As if others had filled it up meanwhile.
            self.clear()

    monkeypatch.setattr(fallback, "_hand_overs", Shared())
    x = da.ones(4, chunks=2)
    fallback.remember("sum", "why", x, [])
    assert fallback.recall(x.name) is None
