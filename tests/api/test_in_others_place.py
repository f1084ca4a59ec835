"""A share of the tests of libraries whose functions ours can stand in for."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import upstream

from benchmarks.systems import others

#: Tests of a few seconds, and functions that they call, which are then ours. `make upstream` runs
#: all.
SELECTED = {
    "bottleneck": (
        "arg_parsing or list_input",
        {"move_median", "move_argmax", "nanargmin", "rankdata", "push", "nanvar"},
    ),
    "numbagg": (
        "(test_moving_exp or test_grouped) and pandas or test_move_pandas_comp",
        {"move_exp_nanmean", "group_nanvar", "move_std"},
    ),
    "dask-image": ("test_extrema or test_label and shape2", {"extrema", "label"}),
    "xskillscore": ("test_contingency", {"histogram"}),
    "xarray-spatial": ("test_multispectral and dask", {"nanmax", "nanmin"}),
}


@pytest.mark.parametrize("name", SELECTED)
def test_their_own_tests_pass_with_ours(name: str, tmp_path: Path) -> None:
    suite = upstream.SUITES[name]
    try:
        assert all(map(version, suite.needs))
    except PackageNotFoundError as missing:
        pytest.skip(f"the tests are {name}'s own: {missing}")
    root = suite.find(tmp_path)
    if not (root / suite.tests[0]).exists():
        pytest.skip(f"{name} is installed without its tests")
    selected, needed = SELECTED[name]
    outcome = upstream.run(suite, root, ["-k", selected])
    new, _ = upstream.judge(suite, outcome.failed, whole=False)
    assert not new, outcome.failed
    assert outcome.served.keys() >= needed


def test_named_differences_that_pass_are_errors() -> None:
    suite = upstream.SUITES["bottleneck"]
    new, gone = upstream.judge(suite, ["a_test.py::test_push", "a_test.py::test_move"], whole=True)
    assert new == ["a_test.py::test_move"]
    assert gone == [name for name in suite.differences if name != "test_push"]


def test_the_page_counts_differences_by_reason(tmp_path: Path) -> None:
    known = {"test_a[*]": "why", "test_b": "why"}
    suite = replace(upstream.SUITES["dask"], differences=known, every=4)
    outcome = upstream.Outcome(Counter(passed=1300, failed=4), served=Counter(sum=4, mean=3))
    results = tmp_path / "suites.json"
    for _ in range(2):
        differing = ["a.py::test_a[1]", "a.py::test_a[2]", "a.py::test_b", "a.py::test_c"]
        upstream.keep(suite, outcome, differing, results)
    (row,) = json.loads(results.read_text())
    *_, last = others.suites([row]).splitlines()
    dask = version("dask")
    assert last == f"| dask {dask}, one in 4 | 1,300 | 7 | 3: why; 1: not explained |"
