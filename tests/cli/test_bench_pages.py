"""Pages and plots of benchmarks hold their results; steps of order and windows are right."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.systems import (
    accuracy,
    collective,
    files,
    grouped,
    node,
    one_gpu,
    operations,
    order,
    others,
    scale,
    transfer_page,
    unchanged,
    windows,
)

#: The pages, and what they have to hold.
PAGES = {
    accuracy.PAGE: lambda: accuracy.figures(accuracy.RESULTS),
    grouped.PAGE: lambda: order.compared(grouped.RESULTS),
    collective.PAGE: lambda: collective.figures(collective.RESULTS, collective.PAGE.parent),
    files.PAGE: lambda: files.figures(files.RESULTS),
    node.PAGE: lambda: node.figures(node.RESULTS),
    one_gpu.PAGE: lambda: one_gpu.figures(one_gpu.RESULTS),
    operations.PAGE: lambda: operations.figures(operations.RESULTS),
    order.PAGE: lambda: order.compared(order.RESULTS),
    others.PAGE: lambda: others.figures(others.RESULTS),
    scale.PAGE: lambda: scale.told(json.loads(scale.RESULTS.read_text())),
    transfer_page.PAGE: lambda: transfer_page.figures(transfer_page.RESULTS),
    unchanged.PAGE: lambda: unchanged.figures(unchanged.RESULTS),
    windows.PAGE: lambda: order.compared(windows.RESULTS),
}


def test_all_benchmarks_have_pages_of_their_own() -> None:
    assert len(PAGES) == 13


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_holds_the_results(page: Path) -> None:
    assert node.holds(PAGES[page](), page), "write it anew"


def words(plot: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", plot.read_text())


@pytest.mark.parametrize("module", [accuracy, unchanged], ids=lambda each: each.__name__)
def test_plots_are_those_of_the_results(tmp_path: Path, module: Any) -> None:
    pytest.importorskip("matplotlib")
    for path in module.RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    drawn = module.draw(tmp_path)
    if module is accuracy:
        assert len(drawn) == 2 * len([*tmp_path.glob("*.json")])
    else:
        assert {"times as fast as dask.array", "rolling mean"} <= set(words(drawn))
        drawn = [drawn]
    for path in drawn:
        assert words(path) == words(module.RESULTS / path.name), "write it anew"


def test_collectives_have_plots() -> None:
    for path in collective.RESULTS.glob("*.json"):
        assert path.with_suffix(".svg").exists()


def test_the_steps_of_a_chunk_are_those_of_tasks() -> None:
    x = np.random.default_rng(0).random(10_000)
    assert order.quantiles(x, None) == np.median(x)
    np.testing.assert_array_equal(order.quantiles(x, order.NINE), np.quantile(x, order.NINE))


def test_what_fails_is_a_row_that_says_why() -> None:
    def refuse() -> float:
        raise MemoryError("no room")

    row = order.calls("median", "nobody", refuse, 1)
    assert row == {"work": "median", "by": "nobody", "note": "MemoryError: no room"}
    wrong = order.calls("median", "nobody", lambda: 0.7, 1)
    assert "the median is 0.7" in wrong["note"]


@pytest.mark.parametrize("axis", [0, 1])
def test_results_are_compared_but_for_the_borders(axis: int) -> None:
    x = np.random.default_rng(0).random((20, 30))
    other = x.copy()
    other[(slice(None),) * axis + (slice(3),)] += 1
    assert windows.close(x, 3, axis, other)
    other[10, 10] += 1
    assert not windows.close(x, 3, axis, other)
