"""Programs are compiled beside each other before they are launched; no GPU is needed for that."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.core")
pytest.importorskip("cupy")

import cupy

from dask_coop.cuda import launch
from dask_coop.cuda.devices import usual


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is compiled, by a compiler that ends only when it has two programs at a time."""
    sources: list[str] = []
    meeting = threading.Barrier(2, timeout=60)

    def load_or_compile(source: str, arch: str) -> bytes:
        assert arch == "sm_90"
        sources.append(source)
        meeting.wait()
        return source.encode()

    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(launch, "device", lambda ordinal: usual("sm_90"))
    monkeypatch.setattr(launch, "load_or_compile", load_or_compile)
    monkeypatch.setattr(launch, "ObjectCode", SimpleNamespace(from_cubin=bytes.decode))
    monkeypatch.setattr(launch, "_code", launch.once(launch._code._make))
    return sources


def code(source: str) -> Any:
    return launch._code(source, "sm_90", False)


def test_what_a_call_needs_is_compiled_beside_each_other_and_once(compiled: list[str]) -> None:
    # The caller compiles the first itself, when it launches it.
    launch.prepare("first", "second", "second")
    assert (code("first"), code("second")) == ("first", "second")
    launch.prepare("first", "second")
    assert sorted(compiled) == ["first", "second"]


def test_one_program_is_left_to_its_launch(compiled: list[str]) -> None:
    launch.prepare("only")
    assert not compiled
