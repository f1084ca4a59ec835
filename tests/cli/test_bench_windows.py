"""The benchmark of windows: its page shows its results, its checks find what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.systems import node, order, windows


def test_the_page_is_that_of_the_results() -> None:
    told = order.figures(windows.RESULTS)
    assert node.holds(told, windows.PAGE), "write it anew"


@pytest.mark.parametrize("axis", [0, 1])
def test_results_are_compared_but_for_the_borders(axis: int) -> None:
    x = np.random.default_rng(0).random((20, 30))
    other = x.copy()
    other[(slice(None),) * axis + (slice(3),)] += 1
    assert windows.close(x, 3, axis, other)
    other[10, 10] += 1
    assert not windows.close(x, 3, axis, other)
