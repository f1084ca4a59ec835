"""The benchmark of strategies: what it calls works and is held to NumPy, its page shows results."""

from __future__ import annotations

import dask
import numpy as np
import pytest

from benchmarks import strategies
from benchmarks.systems import order


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
