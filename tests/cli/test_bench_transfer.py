"""The benchmark of transfers, on GPUs that are made up: it times what is right, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.host_cupy import lists
from support.host_cupy.gpus import FakeGpus

import dask_coop as dc
from benchmarks.systems import transfer, transfer_page
from dask_coop.node import node, run

GIB = 2**30


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[transfer.Setting]:
    team = SimpleNamespace(objection="GPUs are fakes")
    monkeypatch.setattr(node, "_peers", lambda: FakeGpus(2))
    monkeypatch.setattr(run, "_multichunk", lambda: SimpleNamespace(Team=lambda *_: team))
    monkeypatch.setattr(transfer, "synchronise", lambda gpus: None)
    monkeypatch.setattr(transfer, "release", lambda gpus: None)
    monkeypatch.setattr(transfer, "used", lambda ordinal: (ordinal + 1) << 30)
    monkeypatch.setattr(
        transfer.collective,
        "_host",
        lambda x: lists.to_numpy(x) if isinstance(x, lists.ListArray) else x,
    )
    with lists.in_cupys_place():
        yield transfer.Setting(1600, 100, tmp_path / "files", 2, seen=3)


def by_name(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["work"], row["contender"]): row for row in rows}


def test_what_can_be_measured_is_and_the_rest_says_why_not(setting: transfer.Setting) -> None:
    setting.folder.mkdir()
    rows = by_name(list(transfer.measure(setting, 1)))
    memory = transfer_page.SOURCES[0]
    for work, nbytes in (
        (transfer_page.TO_GPU, 6400),
        (transfer_page.TO_HOST, 6400),
        (f"histogram, 256 bins from {memory}", 6400),
        (f"sum from {memory}", 6400),
        (transfer_page.CUMSUM, 6400),
        (f'{transfer_page.CUMSUM}, method="sequential"', 6400),
        (transfer_page.LARGE, 3 * 6400),
    ):
        row = rows[work, transfer_page.NODE]
        assert "note" not in row, row["note"]
        assert (row["bytes"], len(row["seconds"])) == (nbytes, 2)
        assert row["rate"] == pytest.approx(nbytes / 1e9 / np.median(row["seconds"]), rel=0.1)
    large = rows[transfer_page.LARGE, transfer_page.NODE]
    assert (large["peak"], large["before"]) == (GIB, GIB)
    # The chunks that stand in have no moments.
    failed = rows[f"describe from {memory}", transfer_page.NODE]
    assert failed["note"].startswith("NotImplementedError: chunks of lists have no moments")
    assert "rate" not in failed


def test_zarr_and_files_are_read_and_written(setting: transfer.Setting) -> None:
    pytest.importorskip("zarr")
    setting.folder.mkdir()
    with dc.Node():
        for source in transfer_page.SOURCES[2:]:
            nbytes, times, _ = transfer.on_node(setting, 1, transfer_page.WORKS[0], source)
            assert (nbytes, len(times)) == (6400, 1)
    assert [path.name for path in sorted(setting.folder.iterdir())] == ["plain.zarr", "zstd.zarr"]
    rows = by_name(list(transfer.write_files(setting, [1, 2])))
    assert rows[transfer_page.WRITING, "dask.array"]["rate"] > 0
    row = rows[transfer_page.INTO_FILE, transfer_page.NODE]
    assert "note" not in row, row["note"]
    assert (row["gpus"], row["bytes"], row["peak"]) == (2, 3 * 6400, 2 * GIB)
    assert not list(setting.folder.iterdir())


def test_a_run_keeps_what_it_knows(
    setting: transfer.Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    setting.folder.mkdir()
    monkeypatch.setattr(transfer, "back", interrupt)
    with pytest.raises(KeyboardInterrupt):
        transfer.run(tmp_path / "results", setting, [1])
    told = transfer_page.figures(tmp_path / "results")
    assert "| to_gpu | dask_coop.Node | " in told
    assert transfer_page.LARGE not in told


def test_a_wrong_result_has_no_time(
    setting: transfer.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "from_numpy", lambda x, *_: lists.listed(x * 1.01))
    with dc.Node():
        row = transfer.attempt("to_gpu", "Node", 1, lambda: transfer.there(setting, 1))
    assert row["note"].startswith("AssertionError: ")
    assert "rate" not in row


def test_results_become_a_page(tmp_path: Path) -> None:
    row = {"gpus": 1, "bytes": 16 * GIB}
    rows = [
        {**row, "work": transfer_page.LINKS[0], "contender": transfer_page.PINNED, "rate": 50.0},
        {**row, "work": transfer_page.TO_GPU, "contender": transfer_page.NODE, "rate": 45.0},
        {**row, "work": transfer_page.TO_GPU, "contender": "x", "note": "E: no\nmore"},
    ]
    machine = {"gpus": 1, "gpu": {"name": "H"}, "date": "today", "versions": {}, "samples": 3}
    machine |= {"bytes": 16 * GIB, "chunk": 2**27, "seconds": 9}
    (tmp_path / "1-gpus.json").write_text(json.dumps({"machine": machine, "rows": rows}))
    told = transfer_page.figures(tmp_path)
    assert "| work | by | 1 GPU |" in told
    assert "| to_gpu | dask_coop.Node | 45.0 |" in told
    # Failed calls have no row.
    assert "| x |" not in told
