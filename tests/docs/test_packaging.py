"""What is shipped: the wheel and the sdist, installed far from the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import dask_coop

REPOSITORY = Path(__file__).parents[2]
KERNELS = sorted(path.name for path in (REPOSITORY / "kernels").glob("*.cuh"))

# One worker builds for all of these tests.
pytestmark = pytest.mark.xdist_group("packaging")


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run `command` with nothing of this checkout on its path but `path`; return what it prints."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an sdist and the wheel that was built out of it."""
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation, which would download the backend.
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, REPOSITORY, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """Return the wheel."""
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a clean environment that has the wheel.

    The dependencies are links to those of this environment, so that hundreds of megabytes need not
    be downloaded; what an editable install of this checkout left there is not linked.
    """
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in sys.path:
        if Path(entry).name in ("site-packages", "dist-packages"):
            for thing in Path(entry).iterdir():
                if "dask_coop" not in thing.name and not (site / thing.name).exists():
                    (site / thing.name).symlink_to(thing)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return python


def test_the_wheel_holds_the_package_and_its_kernels(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert KERNELS
    for kernel in KERNELS:
        assert f"dask_coop/kernels/{kernel}" in names
    modules = {p.relative_to(REPOSITORY).as_posix() for p in REPOSITORY.glob("dask_coop/**/*.py")}
    assert modules <= set(names)
    assert {"dask_coop/py.typed", "dask_coop/dask_coop.yaml"} <= set(names)
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    beside = {"_dask_coop.py", "_dask_coop_early.py"}
    assert tops == beside | {"dask_coop", f"dask_coop-{dask_coop.__version__}.dist-info"}
    tests = {name for name in zipfile.ZipFile(wheel).namelist() if "test" in name}
    assert tests == {"dask_coop/testing.py"}


def test_the_sdist_holds_what_building_and_testing_needs(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"kernels/{kernel}" for kernel in KERNELS} <= names
    here = Path(__file__).relative_to(REPOSITORY).as_posix()
    assert {"dask_coop/dask_coop.yaml", "_dask_coop.py", "_dask_coop_early.py"} <= names
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", here} <= names
    assert {"CITATION.cff", ".github/workflows/tests.yml", ".pre-commit-config.yaml"} <= names
    assert not [
        name for name in names if "__pycache__" in name or name.startswith((".venv", ".gpu"))
    ]


#: What is asked of the installed package, in one process.
ASKED = """
import json
from importlib.metadata import version
import dask.array as da
import dask_coop
from dask_coop.cuda.compiler import compile_program

source = '#include "kernel_reduce.cuh"\\nextern "C" __global__ void entry() {}'
print(json.dumps({
    "file": dask_coop.__file__,
    "version": version("dask-coop"),
    "sum": int(dask_coop.sum(da.arange(10, chunks=3))),
    "bytes": len(compile_program(source, "sm_80")),
}))
"""


@pytest.fixture(scope="module")
def answers(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the installed package says of itself, somewhere else."""
    return dict(json.loads(run(installed, "-c", ASKED, cwd=tmp_path_factory.mktemp("empty"))))


def test_the_installed_package_is_used_from_anywhere(
    installed: Path, answers: dict[str, Any]
) -> None:
    assert Path(answers["file"]).is_relative_to(installed.parents[1])
    assert answers["sum"] == 45


def test_the_dask_command_knows_our_configuration(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "-m", "dask", "config", "get", "coop.engine", cwd=tmp_path)
    assert said == "auto"


def test_the_version_is_said_and_is_the_one_of_the_metadata(
    installed: Path, answers: dict[str, Any], tmp_path: Path
) -> None:
    said = run(installed, "-m", "dask_coop", "--version", cwd=tmp_path)
    assert dask_coop.__version__ in said
    assert run(installed.with_name("dask-coop"), "--version", cwd=tmp_path) == said
    assert answers["version"] == dask_coop.__version__


WHERE = """
import sys
from dask_coop.cuda.compiler import kernels_folder
print(kernels_folder())
assert "cupy" not in sys.modules
"""


def test_the_installed_package_finds_its_own_kernels(installed: Path, tmp_path: Path) -> None:
    folder = Path(run(installed, "-c", WHERE, cwd=tmp_path))
    assert folder.is_relative_to(installed.parents[1])
    assert sorted(path.name for path in folder.glob("*.cuh")) == KERNELS
    assert (folder / "config.cuh").read_text() == (REPOSITORY / "kernels/config.cuh").read_text()


def test_a_checkout_finds_the_kernels_beside_the_package(tmp_path: Path) -> None:
    # An editable install is no more than this: the repository on the path.
    folder = run(sys.executable, "-c", WHERE, cwd=tmp_path, path=REPOSITORY)
    assert Path(folder) == REPOSITORY / "kernels"


def test_nvrtc_compiles_with_the_installed_kernels(answers: dict[str, Any]) -> None:
    assert answers["bytes"] > 0
