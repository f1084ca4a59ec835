"""`make check`: which tests it runs for which files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import check
import pytest

PACKAGE = check.REPOSITORY / "dask_coop"


@pytest.mark.parametrize(
    ("paths", "tests"),
    [
        (["dask_coop/graph/scan.py"], ["tests/graph", "tests/test_architecture.py"]),
        (["dask_coop/chunks/numpy/scan.py"], ["tests/chunks", "tests/test_architecture.py"]),
        (
            ["dask_coop/cuda/programs/scan.py", "kernels/warp.cuh"],
            ["tests/cuda", "tests/kernels", "tests/test_architecture.py"],
        ),
        (["dask_coop/errors.py"], ["tests/test_architecture.py"]),
        (["docs/design.md", "README.md", "tools/check.py"], ["tests/docs"]),
        (["tests/graph/test_graphs.py"], ["tests/graph/test_graphs.py"]),
        (["tests/fuzz/case.py", "tests/fuzz/test_fuzz.py"], ["tests/fuzz"]),
        (["tests/graph/test_gone.py", "CHANGELOG.md"], ["tests/docs/test_project_files.py"]),
        (["dask_coop/graph/scan.py", "tests/support/sums.py"], ["tests"]),
        ([], []),
    ],
)
def test_what_is_run_for_what_has_changed(paths: list[str], tests: list[str]) -> None:
    assert check.select(paths) == tests


def test_every_folder_has_tests() -> None:
    folders = [path.parent for path in PACKAGE.glob("*/__init__.py")]
    assert len(folders) >= 8
    for folder in folders:
        assert f"tests/{folder.name}" in check.select([f"dask_coop/{folder.name}/any.py"])
    for names in check.TESTS.values():
        assert all((check.REPOSITORY / "tests" / name).exists() for name in names)
    for path in check.TESTS:
        assert (check.REPOSITORY / path).exists()


def test_changes_are_those_of_a_branch_of_the_working_tree_and_new_files(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str, text: str = "") -> None:
        (tmp_path / name).write_text(text)
        git("add", name)
        git("commit", "-m", name)

    git("init", "-b", "main")
    commit(".gitignore", "ignored\n")
    commit("old")
    assert check.changed(folder=tmp_path) == []
    (tmp_path / "old").write_text("edited")
    (tmp_path / "ignored").write_text("")
    assert check.changed(folder=tmp_path) == ["old"]
    git("switch", "-c", "branch")
    commit("committed")
    (tmp_path / "new").write_text("")
    assert check.changed(folder=tmp_path) == ["committed", "new", "old"]
    assert check.changed("HEAD", tmp_path) == ["new", "old"]
    with pytest.raises(SystemExit, match="git diff --name-only nowhere failed"):
        check.changed("nowhere", tmp_path)
