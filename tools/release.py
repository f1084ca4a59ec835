"""Build the release and test it, as ``make dist`` does; the files stay in dist/.

- NVRTC compiles the kernels that the wheel brings, which takes a quarter of an hour of a processor.
- The sdist, and the wheel built from it, pass twine's checks.
- The wheel installs in a clean environment of each Python that pyproject.toml names and this
  machine has, alone and with ``[cpu]``, and works there.
- pyright knows the type of everything that the package exports, but for Dask's.
- The CUDA extras resolve for each of these Pythons, without downloads of their dependencies.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
DIST = REPOSITORY / "dist"

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
CUDA = [extra for extra in PROJECT["optional-dependencies"] if extra.startswith("cuda")]

#: Folders with Pythons that are not on the path: those of pyenv, and of uv.
ELSEWHERE = (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/cpython-{}.*/bin/python")

SMOKE = """
import dask.array as da
import numpy as np
import dask_coop as dc

found = dc.describe(da.from_array(np.arange(12.0).reshape(3, 4), chunks=2))
assert [float(each) for each in found[:6]] == [12, 0, 0, 11, 66, 5.5], found
print(dc.__version__)
"""


def find(version: str) -> str | None:
    """Return the path of a Python of that version, such as "3.12", or None."""
    homes = [path for pattern in ELSEWHERE for path in Path.home().glob(pattern.format(version))]
    for python in filter(None, [shutil.which(f"python{version}"), *map(str, homes)]):
        ask = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        # pyenv has shims also for versions that it cannot run.
        if done.stdout.strip() == version:
            return python
    return None


def run(*command: str | Path, given: str = "", **environment: str) -> str:
    """Run a command outside the checkout; return its output, or exit with its error."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            list(map(str, command)),
            cwd=elsewhere,
            env=kept | environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def build() -> Path:
    """Build the sdist and the wheel, and return the path of the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    # The user's cache provides the programs that it has already.
    print(run(sys.executable, "-m", "dask_coop", "warm", "--archive", PYTHONPATH=str(REPOSITORY)))
    run(sys.executable, "-m", "build", "-o", DIST, REPOSITORY)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    (wheel,) = DIST.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        assert "dask_coop/cuda/programs.zip" in file.namelist(), "the wheel lacks its kernels"
    print("built and checked by twine:", *sorted(path.name for path in DIST.iterdir()))
    return wheel


def use(python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel in a new environment and use it; then the same with ``[cpu]``."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    run(*uv, "venv", "--python", python, folder)
    for extra in ("", "[cpu]"):
        run(*uv, "pip", "install", "--python", folder / "bin" / "python", f"{wheel}{extra}")
        version = run(folder / "bin" / "python", "-I", "-c", SMOKE)
        said = run(folder / "bin" / "dask-coop", "info")
        assert re.search(rf"^ +dask_coop +{re.escape(version)}$", said, re.MULTILINE), said
        print(f"{run(folder / 'bin' / 'python', '--version')}: dask-coop{extra} {version} works")


def know_types(folder: Path, wheel: Path) -> None:
    """Check with pyright that all types of the package are known, beside xarray and Zarr."""
    uv = [sys.executable, "-m", "uv", "--quiet", "pip", "install"]
    run(*uv, "--python", folder / "bin" / "python", f"{wheel}[cli,cpu,hist]")
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    pyright = [sys.executable, "-m", "pyright", "--ignoreexternal", "--outputjson"]
    # It exits with an error also for what is left out here.
    done = subprocess.run(
        [*pyright, "--verifytypes", "dask_coop"],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    ours = [symbol for symbol in symbols if symbol["isExported"]]
    if unknown := [line for symbol in ours for line in unknown_types(symbol)]:
        raise SystemExit("pyright:\n" + "\n".join(unknown))
    print(f"pyright knows the types of {len(ours):,} names")


#: What pyright says of other packages: Dask's Array has no annotations, so pyright takes it for a
#: generic class without its argument; numcodecs' Blosc, a base class, is compiled.
OF_OTHERS = ('class "Array" has', "Type of metaclass unknown", "Type of base class unknown")


def unknown_types(symbol: dict[str, Any]) -> list[str]:
    """Return what pyright says of a symbol's types, but for those of other packages."""
    said = [each["message"] for each in symbol["diagnostics"] if each["severity"] == "error"]
    ours = [text for text in said if not any(words in text for words in OF_OTHERS)]
    return [f"{symbol['name']}: {text}" for text in ours]


def resolve(extra: str, version: str, wheel: Path) -> None:
    """Resolve one of the extras to releases on the index, on Linux."""
    compiled = run(
        *(sys.executable, "-m", "uv", "--quiet", "pip", "compile", "--no-header", "--no-annotate"),
        *("--python-version", version, "--python-platform", "x86_64-manylinux_2_28", "-"),
        given=f"dask-coop[{extra}] @ {wheel.as_uri()}",
    )
    releases = dict(re.findall(r"^([\w-]+)==(\S+)", compiled, re.MULTILINE))
    shown = ", ".join(
        f"{name} {releases[name]}" for name in releases if name.startswith(("cupy", "dask"))
    )
    print(f"Python {version}: [{extra}] resolves to {len(releases)} packages, such as {shown}")


def main() -> None:
    """Build and test; exit at the first failure."""
    wheel = build()
    pythons = {version: find(version) for version in PYTHONS}
    with tempfile.TemporaryDirectory() as folder:
        tried = [version for version, python in pythons.items() if python]
        if not tried:
            raise SystemExit(f"none of Python {', '.join(PYTHONS)} is on this machine")
        for version in tried:
            use(str(pythons[version]), wheel, Path(folder, version))
        know_types(Path(folder, tried[0]), wheel)
    for version in PYTHONS:
        for extra in CUDA:
            resolve(extra, version, wheel)
    if missing := [version for version in PYTHONS if version not in tried]:
        print(f"not tried, for want of them on this machine: Python {', '.join(missing)}")


if __name__ == "__main__":
    main()
