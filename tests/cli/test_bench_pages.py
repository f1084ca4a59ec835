"""Pages and plots of benchmarks hold their results; steps of order and windows are right."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import grey

from benchmarks import plots
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


def draw_all(folder: Path) -> int:
    """Draw the plots of all committed results in a folder, and return their number."""
    for module in (accuracy, unchanged):
        for path in module.RESULTS.glob("*.json"):
            shutil.copy(path, folder / path.name)
        module.draw(folder)
        for path in folder.glob("*.json"):
            path.unlink()
    for path in collective.RESULTS.glob("*.json"):
        collective.draw(Path(shutil.copy(path, folder)))
    for path in accuracy.RESULTS.parent.glob("*.json"):
        plots.draw(folder / path.name, json.loads(path.read_text()))
    scale.draw(json.loads(scale.RESULTS.read_text())["rows"], folder / "scale.svg")
    return len([*folder.glob("*.svg")])


def test_plots_can_be_read_in_grey(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with grey.checked():
        assert draw_all(tmp_path) == 11


def test_what_grey_hides_is_refused() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    try:
        axes.plot([0, 1], color="#c8553d", label="red")
        axes.plot([1, 0], color="#588b4b", label="green")
        axes.plot([1, 1], color="#588b4b", linestyle="--", label="dashed")
        axes.plot([1, 2], color="#17395c", label="dark")
        axes.imshow([[1.0]], cmap="RdBu")
        assert grey.alike(figure) == [("red", "green"), "RdBu"]
    finally:
        pyplot.close(figure)


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
