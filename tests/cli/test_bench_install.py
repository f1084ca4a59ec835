"""The benchmark of unchanged code: its page shows its results, and wrong ones are found."""

from __future__ import annotations

import ast
import math

import pytest

from benchmarks.systems import unchanged


def test_the_script_knows_nothing_of_this_library() -> None:
    tree = ast.parse(unchanged.SCRIPT.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports
    assert not any("dask_coop" in ast.unparse(node) for node in imports)


def test_the_script_runs_with_and_without() -> None:
    ours, theirs = (unchanged.run(by, 0.001, 2) for by in (unchanged.OURS, unchanged.DASK))
    for a, b in zip(ours, theirs, strict=True):
        assert a["work"] == b["work"]
        assert len(a["s"]) == len(b["s"]) == 2
        assert math.isclose(a["mean"], b["mean"], rel_tol=1e-4)


def test_wrong_results_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(by: str, gib: float, samples: int) -> list[unchanged.Row]:
        return [{"work": "mean", "s": [1.0, 3.0], "mean": float(by == unchanged.OURS), "by": by}]

    monkeypatch.setattr(unchanged, "run", run)
    with pytest.raises(ArithmeticError, match=r"mean of dask_coop is 1\.0, not 0\.0"):
        unchanged.compare([unchanged.DASK, unchanged.OURS], 1, 2, 1)
    rows = unchanged.compare([unchanged.DASK], 1, 2, 2)
    assert rows == [{"work": "mean", "by": "Dask", "s": 3.0, "first": 1.0, "gib": 1}]
