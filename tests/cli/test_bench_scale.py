"""The benchmark of the scheduler: it measures what is right, and the page holds what was found."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from benchmarks.systems import collective, scale


@pytest.mark.parametrize("processes", [1, 2])
def test_every_work_is_measured(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr(scale, "GRAPH_WORKERS", 2)
    rows = {(row["work"], row["contender"]): row for row in scale.run([8], [2], processes)}
    ways = (collective.COLLECTIVE, collective.PLAIN, collective.DA)
    assert rows.keys() == {(work, way) for work in scale.WORKS for way in ways}
    for row in rows.values():
        assert (row["chunks"], row["workers"]) == (8, 2)
        assert 0 < row["scheduler"] < row["seconds"] + 1
        assert 0 < row["idle"] < 1
        assert row["held"] >= 0
        assert row["released"] >= 0


def test_what_would_take_too_long_is_left_out() -> None:
    assert [*scale.run([1, 10], [2], limit=-1)] == []
    machine = {"date": "today", "versions": {}, "processors": 2, "processor": "P", "processes": 1}
    row = {
        "chunks": 1_000,
        "workers": 16,
        "seconds": 1.0,
        "scheduler": 0.5,
        "idle": 0.2,
        "held": 0.0,
    }
    rows = [
        row | {"work": work, "contender": way}
        for work in scale.WORKS
        for way in (collective.COLLECTIVE, collective.DA)
    ]
    told = scale.figures({"machine": machine, "rows": rows})
    assert "no time left for it: 100 chunks on 1 workers; 100 chunks on 16 workers; " in told
    assert '| sum | engine="collective" | 1,000 | 16 | 1.00 | 0.30 |' in told
    assert "it is 300 s by dask.array, at 300 us a chunk" in told


def test_plots_have_a_line_for_each_way(tmp_path: Path) -> None:
    scale.draw(json.loads(scale.RESULTS.read_text())["rows"], tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert drawn == scale.PLOT.read_text(), "write it anew"
    for way in (collective.COLLECTIVE, collective.PLAIN, collective.DA):
        for work in scale.WORKS:
            assert f"{work}, {way}" in html.unescape(drawn)


def test_the_line_is_found_again() -> None:
    rows = [
        {
            **{"work": "sum", "contender": collective.COLLECTIVE, "chunks": n, "workers": w},
            **{"scheduler": 0.004 + 20e-6 * n + 0.001 * w, "seconds": 1.0},
        }
        for n in scale.CHUNKS
        for w in scale.WORKERS
    ]
    assert scale.line(rows, "sum") == pytest.approx((0.004, 20e-6, 0.001))
    machine = {"date": "today", "versions": {}, "processors": 2, "processor": "P", "processes": 1}
    more = [{**row, "held": 0.05, "work": work} for row in rows for work in scale.WORKS]
    told = scale.figures({"machine": machine, "rows": more})
    assert "4.0 ms, 20 us a chunk and 1.00 ms a worker; by this line 21 s for 1,000,000" in told
    assert "on 1,000 workers: 20.0 s for the chunks and 1.0 s for the workers." in told
    line = '| sum | engine="collective" | 100,000 | 256 | 1.00 | 2.26 | 23 | 50 |  |'
    assert line in told
