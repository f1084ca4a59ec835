"""The benchmark of the scheduler: it measures what is right, and the page holds what was found."""

from __future__ import annotations

import json

import pytest

from benchmarks.systems import collective, node, scale


def test_the_page_holds_the_results() -> None:
    told = scale.figures(json.loads(scale.RESULTS.read_text()))
    assert f"{node.BEGIN}\n{told}\n{node.END}" in scale.PAGE.read_text(), "write it anew"


def test_every_work_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "GRAPH_WORKERS", 2)
    found = scale.run([8], [2])
    rows = {(row["work"], row["contender"]): row for row in found["rows"]}
    ways = (collective.COLLECTIVE, collective.PLAIN, collective.DA)
    assert rows.keys() == {(work, way) for work in scale.WORKS for way in ways}
    for row in rows.values():
        assert (row["chunks"], row["workers"]) == (8, 2)
        assert 0 < row["scheduler"] < row["seconds"] + 1
        assert row["held"] >= 0


def test_the_line_is_found_again() -> None:
    rows = [
        {
            **{"work": "sum", "contender": collective.COLLECTIVE, "chunks": n, "workers": w},
            **{"scheduler": 0.004 + 20e-6 * n + 0.001 * w},
        }
        for n in scale.CHUNKS
        for w in scale.WORKERS
    ]
    assert scale.line(rows, "sum") == pytest.approx((0.004, 20e-6, 0.001))
    machine = {"date": "today", "versions": {}, "processors": 2, "processor": "P"}
    more = [
        {**row, "seconds": 1.0, "held": 0.05, "work": work} for row in rows for work in scale.WORKS
    ]
    told = scale.figures({"machine": machine, "rows": more})
    assert "4.0 ms, 20 us a chunk and 1.00 ms a worker; by this line 21 s for 1,000,000" in told
    line = '| sum | engine="collective" | 100,000 | 256 | 1.00 | 2.26 | 23 | 50 |'
    assert line in told
