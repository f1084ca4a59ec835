"""Programs that were compiled ahead, in the package's archive."""

from __future__ import annotations

import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import printed

pytest.importorskip("cuda.core")

from dask_coop.chunks.cupy.program_sets import shipped
from dask_coop.cli import main, warm
from dask_coop.cuda import archive, compiler, disk_cache
from dask_coop.cuda.devices import usual

SOURCES = [f"source {i}" for i in range(9)]


def cubin(source: str, arch: str) -> bytes:
    return f"{arch} {source}".encode() * 100


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what is compiled, by a compiler that takes no time; the archive is in a folder."""
    programs: list[tuple[str, str]] = []

    def compile_program(source: str, arch: str) -> bytes:
        programs.append((source, arch))
        return cubin(source, arch)

    monkeypatch.setattr(compiler, "compile_program", compile_program)
    monkeypatch.setattr(archive, "file", lambda: tmp_path / "programs.zip")
    monkeypatch.setattr(archive, "_driver", lambda: 13)
    monkeypatch.setattr(archive, "_BLOCK_BYTES", 5000)
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path / "kernels"))
    for cache in (archive._index, archive._block, archive._warn_once, disk_cache._warn_once):
        cache.cache_clear()  # type: ignore[attr-defined]
    return programs


def write(archs: tuple[str, ...] = ("sm_80", "sm_90")) -> Path:
    """Write an archive of `SOURCES`, for programs that no process has loaded."""
    compiler.write_archive(archive.file(), [(s, arch) for arch in archs for s in SOURCES])
    return archive.file()


def forget(compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin on a new machine, whose cache is empty."""
    compiled.clear()
    monkeypatch.setenv("DASK_COOP_CACHE", str(archive.file().with_name("empty")))
    archive._index.cache_clear()
    archive._block.cache_clear()


def test_what_is_in_the_archive_is_neither_compiled_nor_kept(
    compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    assert len(compiled) == 2 * len(SOURCES)
    with zipfile.ZipFile(path) as file:
        assert len(file.namelist()) > 3
    forget(compiled, monkeypatch)
    for arch in ("sm_80", "sm_90"):
        for source in SOURCES:
            assert compiler.load_or_compile(source, arch) == cubin(source, arch)
            assert not compiler.keep(source, arch)
    assert compiled == []
    assert not path.with_name("empty").exists()
    assert compiler.load_or_compile("another", "sm_80") == cubin("another", "sm_80")
    assert compiled == [("another", "sm_80")]


def test_a_gpu_runs_the_code_of_older_ones_of_its_major_number(
    compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    forget(compiled, monkeypatch)
    assert compiler.load_or_compile(SOURCES[0], "sm_89") == cubin(SOURCES[0], "sm_80")
    assert compiled == []
    for arch in ("sm_75", "sm_100", "sm_87"):
        assert compiler.load_or_compile(SOURCES[0], arch) == cubin(SOURCES[0], arch)
    assert len(compiled) == 3


def test_edited_headers_and_older_drivers_leave_the_archive_alone(
    compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    forget(compiled, monkeypatch)
    with monkeypatch.context() as older:
        older.setattr(archive, "_driver", lambda: 11)
        compiler.load_or_compile(SOURCES[0], "sm_80")
    assert len(compiled) == 1
    with monkeypatch.context() as edited:
        edited.setattr(compiler, "_headers_digest", lambda: b"others")
        compiler.load_or_compile(SOURCES[0], "sm_80")
    assert len(compiled) == 2


def swap(path: Path, damage: Any) -> None:
    """Write the members of an archive anew, damaged, with checksums that hold."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members = damage(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, data in members.items():
            file.writestr(name, data)


def bits(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no archive"),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(bits(path.read_bytes(), 50)),
        lambda path: swap(path, lambda members: members | {"0": members["0"][::-1]}),
        lambda path: swap(path, lambda members: members | {"0": b""}),
        lambda path: swap(path, lambda members: {"0": members["0"]}),
        lambda path: swap(path, lambda members: members | {"index.json": b"[1]"}),
        lambda path: swap(path, lambda members: members | {"index.json": b"{"}),
        lambda path: swap(
            path, lambda members: members | {"index.json": b'{"toolkit": 12, "programs": 3}'}
        ),
    ],
)
def test_a_damaged_archive_is_said_and_not_used(
    compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    path = write()
    forget(compiled, monkeypatch)
    damage(path)
    with pytest.warns(RuntimeWarning, match="is damaged and not used") as caught:
        loaded = [compiler.load_or_compile(source, "sm_80") for source in SOURCES[:2]]
    assert loaded == [cubin(source, "sm_80") for source in SOURCES[:2]]
    assert str(path) in str(caught[0].message)
    assert len(compiled) == 2


def test_an_interrupted_write_leaves_the_archive_as_it_was(
    compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise lzma.LZMAError("interrupted")

    monkeypatch.setattr(archive, "_member", fail)
    with pytest.raises(lzma.LZMAError):
        write()
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir() if "zip" in each.name] == [path.name]


def test_the_same_programs_make_the_same_file(compiled: list[tuple[str, str]]) -> None:
    assert write().read_bytes() == write().read_bytes()


def test_the_command_writes_it(
    compiled: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = "--archive", str(tmp_path / "programs.zip"), "--arch", "sm_90", "--dtypes", "float32"
    assert main.main(["warm", *given]) == 0
    listed = shipped(np.dtype("f4"), usual("sm_90"))
    assert f"programs.zip: {len(listed)} programs, 0." in capsys.readouterr().out
    assert {source for source, _ in compiled} == set(listed)
    with zipfile.ZipFile(tmp_path / "programs.zip") as file:
        index = json.loads(file.read("index.json"))
    assert len(index["programs"]) == len(listed)


def test_what_archives_do_not_have_is_refused(
    compiled: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for given, said in (
        (("--only", "scans"), "takes no --only"),
        (("--dtypes", "int8"), "--dtypes int8: archives are for float32, float64"),
    ):
        assert main.main(["warm", "--archive", str(tmp_path / "a.zip"), *given]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path, said in (("file/a.zip", "file is no folder that"), ("folder", "cannot write it")):
        given = "--archive", str(tmp_path / path), "--arch", "sm_90", "--dtypes", "float32"
        assert main.main(["warm", *given]) == 2
        assert said in capsys.readouterr().err


def test_without_a_path_it_is_the_packages() -> None:
    assert archive.file().name == "programs.zip"
    assert archive.file().parent == Path(archive.__file__).parent
    assert warm._SHIPPED_ARCHS == ("sm_80", "sm_90", "sm_100")


#: Loads the programs of a list with an empty cache; prints what was compiled.
LOADS = """
import sys
from pathlib import Path
from dask_coop.cuda import archive, compiler
archive.file = lambda: Path(sys.argv[1])
compiled = []
compiler.compile_program = lambda *program: compiled.append(program) or b""
source = 'extern "C" __global__ void entry() {}'
cubin = compiler.load_or_compile(source, "sm_80")
print(len(compiled), cubin[:4])
"""


def test_a_new_process_with_an_archive_and_an_empty_cache_compiles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "programs.zip"
    source = 'extern "C" __global__ void entry() {}'
    compiler.write_archive(path, [(source, "sm_80")])
    empty = tmp_path / "empty"
    assert printed("-c", LOADS, path, DASK_COOP_CACHE=empty) == "0 b'\\x7fELF'\n"
    assert not empty.exists()
    assert printed("-c", LOADS, tmp_path / "none.zip", DASK_COOP_CACHE=empty).startswith("1 ")
