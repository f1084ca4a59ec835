"""The benchmark of strategies: what it calls works and is held to NumPy, its page shows results."""

from __future__ import annotations

import dask
import numpy as np
import pytest

from benchmarks import strategies
from benchmarks.systems import node, order


@pytest.mark.parametrize("family", ["scans", "histograms", "transposes", "products"])
def test_public_calls_are_right_and_wrong_results_are_seen(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, "WALKED", 1)
    works = list(getattr(strategies, family)(np, 1 << 18))
    assert works or family == "transposes"
    for work in works:
        (result,) = dask.compute(work.public(*map(order.whole, work.inputs[0])))
        assert work.right(result), work.name
        result = result.copy()
        result[..., 0] = ~result[..., 0] if result.dtype == bool else result[..., 0] + 1000
        assert not work.right(result), work.name


def test_the_page_is_that_of_the_tables_and_of_the_results() -> None:
    told = strategies.figures(strategies.RESULTS)
    assert node.holds(told, strategies.PAGE), "python -m benchmarks.strategies --write"


def test_figures_of_a_run() -> None:
    rows = [
        {"family": "matmul", "work": "w", "strategy": name, "ms": ms, "call_ms": 2 * ms}
        for name, ms in (("auto", 0.0125), ("library", 0.009), ("tiles", 1234.5))
    ]
    rows.append({"family": "matmul", "work": "w", "strategy": "bytes", "note": "not for floats"})
    machine = {"gpu": {"name": "A GPU"}, "date": "2026-01-01"}
    told = "\n".join(strategies.compared("matmul", {"machine": machine, "rows": rows}, "x.json"))
    assert "| work | auto | library | bytes | tiles |" in told
    assert "| w | 12.5 | **9** |  | 1,234,500 |" in told
