"""Machine code that is replaced is removed; what others may need yet is not."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from dask_coop.compiled import kept

NOW, BEFORE = ("now",), ("before",)


def write(path: Path, data: bytes = b"", hours: float = 2) -> str:
    path.write_bytes(data)
    os.utime(path, (time.time() - hours * 3600,) * 2)
    return path.name


def index(path: Path, stamp: Any, *names: str, version: str = "1", hours: float = 2) -> str:
    content = pickle.dumps(version) + pickle.dumps((stamp, dict(enumerate(names))))
    return write(path, content, hours)


def test_what_no_index_names_is_removed_after_an_hour(tmp_path: Path) -> None:
    tag = f".py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}"
    named = write(tmp_path / f"m.f-1{tag}.a.nbc")
    stays = {
        named,
        index(tmp_path / f"m.f-1{tag}.nbi", NOW, named),
        # Another process may be about to name it.
        write(tmp_path / f"m.f-1{tag}.b.nbc", hours=0.5),
        index(tmp_path / f"m.g-9{tag}.nbi", BEFORE, hours=0.5),
        # Another Python's, and no machine code.
        write(tmp_path / "m.f-1.py20.a.nbc"),
        write(tmp_path / "m.cpython-311.pyc"),
    }
    write(tmp_path / f"m.f-1{tag}.c.nbc")
    write(tmp_path / f"m.f-1{tag}.nbi.tmp.0123")
    for line, (stamp, version) in enumerate([(BEFORE, "1"), (NOW, "0")]):
        old = write(tmp_path / f"m.f-{line}7{tag}.a.nbc")
        index(tmp_path / f"m.f-{line}7{tag}.nbi", stamp, old, version=version)
    write(tmp_path / f"m.h-3{tag}.nbi", b"damaged")
    kept.sweep(tmp_path, "1", NOW)
    assert {path.name for path in tmp_path.iterdir()} == stays
