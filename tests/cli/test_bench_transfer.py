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
    assert "| to_gpu | dask_coop.Node | 1 |" in told
    assert transfer_page.LARGE not in told.partition("of the copy to the GPU |")[2]


def test_a_wrong_result_has_no_time(
    setting: transfer.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "from_numpy", lambda x, *_: lists.listed(x * 1.01))
    with dc.Node():
        row = transfer.attempt("to_gpu", "Node", 1, lambda: transfer.there(setting, 1))
    assert row["note"].startswith("AssertionError: ")
    assert "rate" not in row


def test_results_become_a_page(tmp_path: Path) -> None:
    host, npy = (f"from {source}" for source in transfer_page.SOURCES[:2])
    rates = {
        (transfer_page.LINKS[0], transfer_page.PINNED): 50.0,
        (transfer_page.LINKS[1], transfer_page.PINNED): 40.0,
        (transfer_page.TO_GPU, transfer_page.NODE): 45.0,
        (f"histogram, 256 bins {host}", transfer_page.NODE): 47.0,
        (f"sum {host}", transfer_page.NODE): 46.0,
        (f"describe {host}", transfer_page.NODE): 44.0,
        (f"histogram, 256 bins {npy}", transfer_page.NODE): 50.0,
        (transfer_page.CUMSUM, transfer_page.NODE): 24.0,
    }
    rows = [
        {"work": work, "contender": by, "gpus": 1, "bytes": 16 * GIB, "rate": rate}
        for (work, by), rate in rates.items()
    ]
    files = {transfer_page.WRITING: ("dask.array", 0, 2.0), transfer_page.INTO_FILE: ("", 1, 1.5)}
    for work, (by, gpus, rate) in files.items():
        more = {"contender": by or transfer_page.NODE, "gpus": gpus, "rate": rate}
        rows.insert(0, {"work": work, "bytes": GIB, **more})
    rows[-1] |= {"peak": 9 * GIB, "explain": "streamed"}
    rows.append({"work": "sum", "contender": "x", "gpus": 1, "bytes": 0, "note": "E: no\nmore"})
    machine = {"gpus": 1, "gpu": {"name": "H"}, "date": "today", "versions": {}, "samples": 3}
    machine |= {"bytes": 16 * GIB, "chunk": 2**27, "seconds": 9}
    (tmp_path / "1-gpus.json").write_text(json.dumps({"machine": machine, "rows": rows}))
    told = transfer_page.figures(tmp_path)
    for line in (
        "| to_gpu, of the pinned copy's rate | 1 | 0.85 | 0.90 | yes |",
        "from NumPy memory, the slowest | 1 | 45.0 GB/s | 44.0 GB/s | no |",
        # Of which two were not measured.
        "| the same from a .npy map | 1 | 40.0 GB/s |  | no |",
        "| Node: cumsum from host to host, of the link each way | 1 | 0.60 | 0.60 | yes |",
        "slower of the link and the file system | 1 | 0.60 | 0.75 | yes |",
        "| writing a file alone | dask.array |  | 1 | 2.0 |  |",
        "| memory of a GPU: cumsum from host to host | 1 | 8.00 GiB | 9.00 GiB | no |",
        "| to_gpu | dask_coop.Node | 1 | 16 | 45.0 | 0.90 |",
        "| sum | x | 1 |  | failed |  |",
        "Failed: sum, x, GPUs: 1: `E: no more`",
        "streamed",
    ):
        assert line in told, line
