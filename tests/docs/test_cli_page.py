"""The commands of docs/cli.md run as they are written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.processes import beside
from test_readme import REPOSITORY, blocks

PAGE = REPOSITORY / "docs" / "cli.md"
COMMANDS = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]

pytest.importorskip("matplotlib")
pytest.importorskip("dask.dataframe", exc_type=ImportError)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the page names, and the command."""
    io = pytest.importorskip("skimage.io")
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    rain = rng.gamma(1, 2, (40, 30))
    np.save(folder / "rain.npy", rain)
    for month in (1, 2):
        np.save(folder / f"month-{month}.npy", rain[month:])
    np.savez(folder / "several.npz", wind=rain * 3, sun=rain)
    (folder / "weather.csv").write_text("town,rain\n" + "x,1.5\ny,2.5\n" * 20)
    (folder / "photos").mkdir()
    io.imsave(folder / "photos" / "a.png", rng.integers(0, 255, (20, 30, 3), "u1"))
    (folder / "bin").mkdir()
    for name, words in (("dask-coop", "-m dask_coop"), ("python", "")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
@pytest.mark.parametrize("line", COMMANDS)
def test_what_the_page_says_to_type_works(folder: Path, line: str) -> None:
    found = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    before = {*folder.rglob("*.png")}
    command = ["sh", "-c", line]
    done = subprocess.run(
        command, cwd=folder, env=beside(PATH=found), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr
    figures = {*folder.rglob("*-histogram.png")} - before
    assert bool(figures) == ("--figure" in line or "--out" in line)
    for figure in figures:
        figure.unlink()
    rain = np.load(folder / "rain.npy")
    said = {
        "--json": f"{np.median(rain)}\n",
        "head": "source: rain.npy\n",
        "--quiet": "",
    }
    for word, expected in said.items():
        if word in line:
            assert done.stdout == expected
            return
    assert "  median " in done.stdout
    assert done.stdout.count("  median ") == 3 or "--each" not in line
    if "--join" in line:
        assert "shape: 77 x 30" in done.stdout
