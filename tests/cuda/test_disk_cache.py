"""Compiled programs on disk: what is damaged is made anew, an unsafe folder is not used."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core")

from dask_coop.cli import info
from dask_coop.compiled import folders
from dask_coop.cuda import archive, compiler, disk_cache

CUBIN = b"\x7fELF" + bytes(range(256)) * 8


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is compiled, by a compiler that takes no time, for a cache of its own."""
    sources: list[str] = []

    def compile_program(source: str, arch: str) -> bytes:
        sources.append(source)
        return CUBIN

    monkeypatch.setattr(compiler, "compile_program", compile_program)
    monkeypatch.setattr(archive, "file", lambda: tmp_path / "none.zip")
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path / "kernels"))
    disk_cache._warn_once.cache_clear()
    return sources


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def load_twice(compiled: list[str], *words: str) -> None:
    """Hold two loads to compile each time, and to warn once, in these words."""
    with pytest.warns(RuntimeWarning, match="compiled kernels are not kept in") as caught:
        assert [compiler.load_or_compile("unkept", "sm_90") for _ in range(2)] == [CUBIN] * 2
    assert compiled == ["unkept"] * 2
    (warning,) = caught
    for word in (*words, "DASK_COOP_CACHE"):
        assert word in str(warning.message)


def test_what_is_kept_is_not_compiled_again(compiled: list[str], tmp_path: Path) -> None:
    assert [compiler.load_or_compile("source", "sm_90") for _ in range(2)] == [CUBIN] * 2
    assert compiled == ["source"]
    (entry,) = entries(tmp_path)
    # As tools that read cubins want it.
    assert entry.read_bytes().startswith(CUBIN)


@pytest.mark.parametrize(
    "damage",
    [lambda kept: kept[:-1], lambda kept: kept[:9], lambda kept: b"", lambda kept: CUBIN]
    + [lambda kept, i=i: kept[:i] + bytes([kept[i] ^ 1]) + kept[i + 1 :] for i in (0, 999, -1)],
)
def test_a_damaged_entry_is_compiled_and_written_anew(
    compiled: list[str], tmp_path: Path, damage: Any
) -> None:
    compiler.load_or_compile("source", "sm_90")
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    if entry.read_bytes() == whole:
        pytest.fail("nothing was damaged")
    assert [compiler.load_or_compile("source", "sm_90") for _ in range(2)] == [CUBIN] * 2
    assert compiled == ["source"] * 2
    assert entry.read_bytes() == whole


def test_a_folder_that_everybody_may_write_to_is_not_used(
    compiled: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "kernels"
    compiler.load_or_compile("unkept", "sm_90")
    compiled.clear()
    folder.chmod(0o777)
    before = entries(folder)
    load_twice(compiled, f"everybody may write to {folder}")
    assert entries(folder) == before
    assert info.facts()["cache"] == f"none: {folder}: everybody may write to {folder}"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owners here")
def test_a_folder_of_another_owner_is_not_used(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.load_or_compile("unkept", "sm_90")
    compiled.clear()
    mine = os.getuid()
    monkeypatch.setattr(folders, "_owners", lambda: {mine + 1})
    load_twice(compiled, str(tmp_path), "belongs to user", f"and this is user {mine}")


def test_without_a_home_kernels_are_compiled_in_memory(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DASK_COOP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    load_twice(compiled, "the user's cache", "Could not determine home directory.")
    assert info.facts()["cache"] == "none: Could not determine home directory."


def test_a_file_in_the_place_of_the_folder_is_said(compiled: list[str], tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    load_twice(compiled, str(tmp_path / "kernels"), f"{tmp_path / 'kernels'} is no folder")
    assert (tmp_path / "kernels").read_text() == "a file"


def test_a_folder_that_cannot_be_made_is_said(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file")
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path / "file" / "kernels"))
    load_twice(compiled, str(tmp_path / "file" / "kernels"), f"{tmp_path / 'file'} is no folder")


@pytest.mark.parametrize("method", ["__getitem__", "__setitem__"])
def test_a_disk_that_fails_costs_a_warning(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from cuda.core.utils import FileStreamProgramCache

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileStreamProgramCache, method, fail)
    if method == "__setitem__":
        load_twice(compiled, "No space left on device")
        return
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert compiler.load_or_compile("source", "sm_90") == CUBIN


def test_an_error_of_the_compiler_is_not_taken_for_one_of_the_disk(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_program(source: str, arch: str) -> bytes:
        raise FileNotFoundError("CUDA's headers are missing")

    monkeypatch.setattr(compiler, "compile_program", compile_program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FileNotFoundError, match="headers are missing"):
            compiler.load_or_compile("source", "sm_90")
