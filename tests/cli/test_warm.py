"""``python -m dask_coop warm``: what it compiles, keeps and says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core")

from dask_coop.chunks.cupy import program_sets
from dask_coop.cli import info, loops, main, warm
from dask_coop.cuda import archive, compiler, disk_cache
from dask_coop.cuda.devices import Device, usual
from dask_coop.errors import pip_install


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what is compiled, and for which architecture, by a compiler that takes no time."""
    programs: list[tuple[str, str]] = []

    def compile_program(source: str, arch: str) -> bytes:
        programs.append((source, arch))
        return b"cubin"

    monkeypatch.setattr(compiler, "compile_program", compile_program)
    monkeypatch.setattr(archive, "file", lambda: tmp_path / "none.zip")
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path / "kernels"))
    # Loops have tests of their own.
    monkeypatch.setattr(loops, "exist", lambda: False)
    return programs


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main.main(["warm", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.main(["warm", *arguments]) == 2
    return capsys.readouterr().err


def test_what_it_compiles_is_kept_and_counted(
    compiled: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = "--arch", "sm_90", "--only", "histograms,scans", "--dtypes", "float32"
    folder, *lines = run(capsys, *given)
    assert folder == f"folder of kernels: {tmp_path / 'kernels'}"
    sources = {
        group: program_sets.warm(group, np.dtype("f4"), usual("sm_90"))
        for group in ("histograms", "scans")
    }
    for line, (group, listed) in zip(lines, sources.items(), strict=True):
        said = (
            rf"sm_90 float32 {group}: {len(listed)} programs, (\d+) of them compiled now, in .* s"
        )
        found = re.fullmatch(said, line)
        assert found, line
    assert {source for source, _ in compiled} == {s for some in sources.values() for s in some}
    assert len(compiled) == len(set(compiled))
    before = compiled.copy()
    assert all("0 of them compiled now" in line for line in run(capsys, *given)[1:])
    assert compiled == before
    # A call finds them there.
    compiler.load_or_compile(sources["scans"][0], "sm_90")
    assert compiled == before


def test_by_default_it_is_everything_for_the_gpus_of_this_machine(
    compiled: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Device("sm_120", 84, 101_376, True)
    monkeypatch.setattr(info, "facts", lambda: {"gpus": [{}] * 3, "no_gpu": None})
    monkeypatch.setattr(warm, "device", lambda ordinal: small)
    _, *lines = run(capsys)
    assert len(lines) == len(program_sets.GROUPS) * len(program_sets.WARM)
    assert {arch for _, arch in compiled} == {"sm_120"}
    listed = program_sets.common(program_sets.WARM, small)
    # What CoopPlugin loads is among it: multi-chunk launches too, with that GPU's own tiles.
    assert {source for source, _ in compiled} > set(listed)
    assert any("multichunk_scan_waves" in source for source in listed)


def test_without_a_gpu_an_architecture_has_to_be_named(
    compiled: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "there is no NVIDIA driver"
    monkeypatch.setattr(info, "facts", lambda: {"gpus": [], "no_gpu": why})
    said = refusal(capsys)
    assert why in said
    assert "--arch sm_90" in said
    # There is no Numba either.
    assert pip_install("cpu") in said
    assert not compiled


def test_what_is_not_known_is_refused(
    compiled: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "sm_60: this NVRTC compiles for sm_7" in refusal(capsys, "--arch", "sm_60")
    assert "sums: choose among reductions, " in refusal(capsys, "--only", "scans,sums")
    assert "f4: choose among bool, " in refusal(capsys, "--dtypes", "f4")
    assert not compiled


def test_a_folder_that_keeps_nothing_is_refused(
    compiled: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("a file")
    monkeypatch.setenv("DASK_COOP_CACHE", str(tmp_path / "file"))
    said = refusal(capsys, "--arch", "sm_90")
    assert f"{tmp_path / 'file'}: {tmp_path / 'file'} is no folder" in said
    assert "DASK_COOP_CACHE" in said
    assert not compiled


def test_an_idle_process_compiles_once_until_something_changes(
    compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[Any, ...]] = []
    niceness: list[int] = []

    def run(*given: Any) -> list[str]:
        runs.append(given)
        if len(runs) == 1:
            # Another process, meanwhile.
            warm.idle()
        return ["a line"]

    monkeypatch.setattr(warm, "run", run)
    monkeypatch.setattr(os, "nice", niceness.append)
    warm.idle()
    warm.idle()
    assert runs == [((), ("float64", "float32"), ())]
    monkeypatch.setattr(warm, "_state", lambda: "another version")
    warm.idle()
    assert len(runs) == 2
    assert set(niceness) == {19}
    disk_cache.folder().chmod(0o777)
    monkeypatch.setattr(warm, "_state", lambda: "a third")
    warm.idle()
    assert len(runs) == 2


def test_an_error_of_the_compiler_ends_it(
    compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_program(source: str, arch: str) -> bytes:
        raise RuntimeError("this does not compile")

    monkeypatch.setattr(compiler, "compile_program", compile_program)
    with pytest.raises(RuntimeError, match="does not compile"):
        main.main(["warm", "--arch", "sm_90", "--only", "products", "--dtypes", "uint8"])


def test_without_a_compiler_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def architectures() -> list[str]:
        raise ImportError("NVRTC cannot be loaded")

    monkeypatch.setattr(compiler, "architectures", architectures)
    assert pip_install("nvrtc") in refusal(capsys, "--arch", "sm_90")


def test_without_a_gpu_the_loops_are_compiled_and_the_rest_is_said_to_be_left_out(
    compiled: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(info, "facts", lambda: {"gpus": [], "no_gpu": "no driver"})
    monkeypatch.setattr(loops, "exist", lambda: True)
    monkeypatch.setattr(loops, "folder", lambda: "/loops")
    asked: list[tuple[list[str], tuple[str, ...]]] = []
    monkeypatch.setattr(loops, "warm", lambda *given: asked.append(given) or ["a line"])
    first, line, rest = run(capsys, "--only", "scans,products", "--dtypes", "float32")
    assert first == "folder of loops over NumPy chunks: /loops"
    assert line == "a line"
    assert rest.startswith("no kernels are compiled: there is no GPU (no driver)")
    assert asked == [(["scans"], ("float32",))]
    assert not compiled
    monkeypatch.setattr(loops, "folder", lambda: "none: no folder can be written")
    assert "set NUMBA_CACHE_DIR to a folder" in refusal(capsys)
    # For another machine's GPU there is nothing to do with this machine's processor.
    assert run(capsys, "--arch", "sm_90", "--only", "products", "--dtypes", "uint8")[0] != first
    assert len(asked) == 1
