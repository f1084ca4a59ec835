"""The benchmark of collectives: it times what is right, and pages hold what was found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from benchmarks.systems import collective, node


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    pytest.importorskip("matplotlib")
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        return [*collective.on_cluster(client, lambda: None, np, 4096, 4)]


def test_every_work_is_timed_and_right(rows: list[dict[str, Any]]) -> None:
    assert [row.get("note") for row in rows] == [None] * len(rows)
    assert {row["work"] for row in rows} == set(collective.WORKS)
    assert {row["contender"] for row in rows} == set(collective.CONTENDERS) - {collective.NODE}


def test_results_become_a_page_with_a_plot(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    machine = {"date": "today", "versions": {}, "gpu": None, "workers": 2, "size": 4096}
    path = tmp_path / "2-processes.json"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{node.BEGIN}\nold\n{node.END}\nbehind\n")
    path.write_text(json.dumps({"machine": machine, "rows": rows}))
    collective.write(page, tmp_path)
    text = page.read_text()
    assert "old" not in text
    assert re.search(r"\| cumsum \| [\d.]+ \| [\d.]+ \| [\d.]+ \|", text)
    assert "<svg" in (tmp_path / "2-processes.svg").read_text()


def test_a_wrong_result_has_no_time() -> None:
    truth = {"sums": [1.0, 2.0], "min": 0.0}
    collective.check("sum", [3.0], truth)
    with pytest.raises(AssertionError):
        collective.check("sum", [3.1], truth)
    with pytest.raises(AssertionError):
        collective.check("cumsum", [np.array([1.0, 2.0])], truth)
