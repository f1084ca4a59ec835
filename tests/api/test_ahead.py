"""``coop.warm``: an idle process that compiles ahead, started by the first call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import pytest
from support.processes import printed

import dask_coop as dc
from dask_coop.api.call import ahead


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the processes that would be started."""
    calls: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *of, **with_: calls.append((of, with_)))
    ahead._start.cache_clear()
    yield calls
    ahead._start.cache_clear()


def test_no_process_is_started_by_default(started: list[Any]) -> None:
    dc.sum(da.ones(3))
    assert started == []


def test_the_first_call_starts_one_process(started: list[Any]) -> None:
    with dask.config.set({"coop.warm": True}):
        dc.sum(da.ones(3))
        dc.cumsum(da.ones(3), axis=0)
    (((command,), options),) = started
    assert command[0] == sys.executable
    # It starts none itself.
    assert options["env"]["DASK_COOP__WARM"] == "false"
    assert options["env"]["DASK_COOP_INSTALL"] == "0"


def test_the_process_runs(tmp_path: Any) -> None:
    # With nothing to compile, as its folder cannot be made.
    (tmp_path / "file").touch()
    assert printed("-c", ahead._COMMAND, DASK_COOP_CACHE=tmp_path / "file") == ""


def test_what_is_neither_true_nor_false_is_refused(started: list[Any]) -> None:
    with (
        dask.config.set({"coop.warm": "now"}),
        pytest.raises(ValueError, match=r"coop\.warm must be True or False, got 'now'"),
    ):
        dc.sum(da.ones(3))


def test_a_process_that_cannot_be_started_fails_no_call(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with dask.config.set({"coop.warm": True}):
        assert dc.sum(da.ones(3)).compute() == 3
