"""The benchmark of unchanged code: its page shows its results, and wrong ones are found."""

from __future__ import annotations

import ast
import math
from pathlib import Path

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


def test_the_script_reads_a_store(tmp_path: Path) -> None:
    store = unchanged.write_store(tmp_path, 0.05)
    ours, theirs = (unchanged.run(by, 0, 1, store) for by in (unchanged.OURS, unchanged.DASK))
    assert [row["work"] for row in ours] == ["climatology", "quantile", "warmest 30 days"]
    for a, b in zip(ours, theirs, strict=True):
        assert a["work"] == b["work"]
        assert math.isclose(a["mean"], b["mean"], rel_tol=1e-4)
        assert 250 < a["mean"] < 300


def test_wrong_results_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, Path | None]] = []

    def run(by: str, gib: float, samples: int, store: Path | None = None) -> list[unchanged.Row]:
        calls.append((by, samples, store))
        return [{"work": "mean", "s": [1.0, 3.0], "mean": float(by == unchanged.OURS), "by": by}]

    monkeypatch.setattr(unchanged, "run", run)
    with pytest.raises(ArithmeticError, match=r"mean of dask_coop is 1\.0, not 0\.0"):
        unchanged.compare([unchanged.DASK, unchanged.OURS], 1, 2, 1)
    calls.clear()
    unchanged.compare([unchanged.GPU], 1, 2, 1, Path("x"))
    unchanged.compare([unchanged.DASK], 1, 2, 1, Path("x"))
    assert calls == [(unchanged.GPU, 2, Path("x")), (unchanged.DASK, 1, Path("x"))]
    calls.clear()
    rows = unchanged.compare([unchanged.DASK], 1, 2, 2)
    assert calls == [(unchanged.DASK, 2, None)] * 2
    assert rows == [{"work": "mean", "by": "Dask", "s": 3.0, "first": 1.0, "gib": 1}]
