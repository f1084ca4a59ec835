"""The benchmark of order and selection: its page shows its results, its steps are right."""

from __future__ import annotations

import numpy as np

from benchmarks.systems import node, order


def test_the_page_is_that_of_the_results() -> None:
    told = order.figures(order.RESULTS)
    assert node.holds(told, order.PAGE), "write it anew"


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
