"""``dask-coop worker``: what it refuses, and what it asks of distributed."""

from __future__ import annotations

import os
from typing import Any

import dask
import pytest

from dask_coop.cli import info, worker
from dask_coop.cli.main import main


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Take what ``dask worker`` would be asked, on a machine with four GPUs."""
    calls: list[Any] = []

    def of_distributed(arguments: list[str], prog_name: str) -> None:
        memory = dask.config.get("distributed.worker.memory")
        calls.append((arguments, memory["target"], memory["spill"]))

    def gpus() -> list[str]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
        return ["a GPU" for name in visible if name in "0123"]

    monkeypatch.setattr(info, "cupy_gpus", gpus)
    monkeypatch.setattr("distributed.cli.dask_worker.main", of_distributed)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return calls


def test_options_are_those_of_dask_worker_behind_ours(asked: list[Any]) -> None:
    theirs = ["--name", "a", "tcp://host:1", "--nthreads", "9", "--no-nanny"]
    assert main(["worker", *theirs]) == 0
    ((arguments, *memory),) = asked
    assert arguments[-len(theirs) :] == theirs
    assert arguments[:2] == ["--nthreads", "4"]
    # Chunks on GPUs take none of the host's memory.
    assert memory == [False, False]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize(
    ("visible", "gpus", "chosen"), [(None, "1,3", "1,3"), ("3,2,0", "2,0", "0,3")]
)
def test_some_of_the_gpus_may_be_chosen(
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    gpus: str,
    chosen: str,
) -> None:
    # So that what the command sets is undone.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    assert main(["worker", "--gpus", gpus, "tcp://host:1"]) == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen
    ((arguments, *_),) = asked
    assert arguments[:2] == ["--nthreads", "2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give the address of the scheduler, or --scheduler-file FILE"),
        (["tcp://host:1", "--nworkers", "2"], "one worker has all GPUs"),
        (["--gpus", "0,0", "tcp://host:1"], "'0,0' is not different whole numbers"),
        (["--gpus", "a", "tcp://host:1"], "'a' is not different whole numbers"),
        (["--gpus", "0,7", "tcp://host:1"], "--gpus 0,7: only 1 of these are there"),
    ],
)
def test_what_cannot_be_is_said(
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ})
    assert main(["worker", *words]) == 2
    assert said in capsys.readouterr().err
    assert not asked


def test_a_gpu_that_is_hidden_cannot_be_chosen(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert main(["worker", "--gpus", "2", "tcp://host:1"]) == 2
    assert "there is no GPU 2, for CUDA_VISIBLE_DEVICES=2,3 leaves 2" in capsys.readouterr().err


@pytest.mark.parametrize("reason", ["there is no NVIDIA driver", None])
def test_without_gpus_it_says_what_is_missing(
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reason: str | None,
) -> None:
    monkeypatch.setattr(info, "cupy_gpus", lambda: [])
    monkeypatch.setattr(worker.info, "facts", lambda: {"no_gpu": reason})
    assert main(["worker", "tcp://host:1"]) == 2
    said = capsys.readouterr().err
    assert (reason or "the package CuPy is not installed") in said
    assert "dask worker --preload dask_coop" in said
    assert not asked
