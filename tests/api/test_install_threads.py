"""`installed` in several threads, beside imports, with switches where they hurt."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.array as da
import pytest
from dask.array import reductions

import dask_coop as dc
from _dask_coop_early import WhenImported
from dask_coop.api.call import public
from dask_coop.api.install import (
    install,
    substitutes,
)
from dask_coop.api.install import (
    of_xarray as installed_xarray,
)
from dask_coop.api.install import (
    on_gpus as gpu_chunks,
)
from dask_coop.api.install.substitutes import Row

#: Names of modules that nobody has imported yet.
LATE = [f"imported_late_{i}" for i in range(3)]


class Switch(MetaPathFinder):
    """Finds nothing, and calls a function instead: what another thread does meanwhile."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile

    def find_spec(self, *_: Any) -> None:
        self.meanwhile()


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in LATE:
        (tmp_path / f"{name}.py").write_text("def mean(x): return 'its own'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield
    for name in LATE:
        sys.modules.pop(name, None)


@pytest.fixture
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the modules be among those that are served."""
    rows = [Row(name, "mean", lambda x: "ours") for name in LATE]
    monkeypatch.setattr(installed_xarray, "rows", lambda: rows)
    monkeypatch.setattr(substitutes, "PACKAGES", (*substitutes.PACKAGES, *LATE))


@pytest.fixture
def _switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_imports_of_others_pass_over_no_finder() -> None:
    waiting = WhenImported(["another"], lambda module: None)
    sys.meta_path[:] = [Switch(waiting.stop), PathFinder]
    waiting.start()
    assert importlib.import_module(LATE[0]).mean(0) == "its own"
    assert waiting not in sys.meta_path


def test_an_import_that_a_stopped_finder_has_is_seen_to() -> None:
    seen: list[str] = []
    waiting = WhenImported(LATE, lambda module: seen.append(module.__name__))
    waiting.start()
    sys.meta_path.insert(0, Switch(waiting.stop))
    assert importlib.import_module(LATE[0]).mean(0) == "its own"
    assert seen == LATE[:1]


@pytest.mark.usefixtures("_served")
@pytest.mark.parametrize("moment", ["start", "stop"])
def test_what_is_imported_between_two_blocks_is_served(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    late, does = iter(LATE), getattr(WhenImported, moment)

    def then(waiting: WhenImported) -> None:
        importlib.import_module(next(late))
        does(waiting)
        importlib.import_module(next(late))

    with dc.installed(), monkeypatch.context() as patch:
        patch.setattr(WhenImported, moment, then)
        with dc.installed():
            patch.undo()
            assert [importlib.import_module(name).mean(0) for name in LATE] == ["ours"] * 3


@pytest.mark.usefixtures("_served")
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_being_imported_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    begun, go = threading.Event(), threading.Event()
    signals = ModuleType("signals_of_a_test")
    signals.__dict__.update(wait=lambda: (begun.set(), go.wait(30)))
    monkeypatch.setitem(sys.modules, signals.__name__, signals)
    code = f"import {signals.__name__} as signals; signals.wait(); {'1 / 0' if fails else ''}\n"
    with (tmp_path / f"{LATE[0]}.py").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(code + text)
    with ThreadPoolExecutor(2) as pool:
        importing = pool.submit(importlib.import_module, LATE[0])
        assert begun.wait(30)
        threading.Timer(0.1, go.set).start()
        with dc.installed():
            if fails:
                assert isinstance(importing.exception(30), ZeroDivisionError)
            else:
                assert importing.result(30).mean(0) == "ours"


@pytest.mark.usefixtures("_switches")
def test_blocks_of_several_threads() -> None:
    dasks, errors = reductions.mean, list[str]()
    done = threading.Event()

    def blocks(seed: int) -> None:
        for i in range(3):
            with dc.installed():
                if (i + seed) % 2:
                    with dc.installed():
                        pass
                if da.mean is dasks:
                    errors.append("not installed")

    def imports() -> None:
        while not done.is_set():
            for name in LATE:
                sys.modules.pop(name, None)
                importlib.import_module(name)

    with ThreadPoolExecutor(5) as pool:
        importing = [pool.submit(imports)]
        working = [pool.submit(blocks, seed) for seed in range(4)]
        try:
            for each in working:
                each.result(60)
        finally:
            done.set()
        for each in importing:
            each.result(60)
    assert not errors
    assert da.mean is reductions.mean is dasks
    assert not install.is_installed()
    assert not any(isinstance(finder, WhenImported) for finder in sys.meta_path)


def test_gpus_may_be_given_up_while_a_call_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread does that leaves its block."""

    def given_up() -> bool:
        public.before = None
        return False

    monkeypatch.setattr(public, "before", gpu_chunks.before)
    monkeypatch.setattr(gpu_chunks, "moved", lambda value: value)
    monkeypatch.setattr(public, "is_inside", given_up)
    assert dc.sum(da.ones(4, chunks=2)).compute(scheduler="sync") == 4
