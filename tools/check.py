"""Run the tests of changed files: ``python tools/check.py [--base COMMIT] [--list]``.

git finds the files that have changed since COMMIT, untracked ones included. By default COMMIT is
where the branch left main, or on main the last commit. ``make test`` runs all tests.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

#: The tests of changed files, by their first folders; the longest match counts.
TESTS = {
    "dask_coop": ["test_architecture.py"],
    **{
        f"dask_coop/{folder}": ["test_architecture.py", folder]
        for folder in (
            *(
                "algebra",
                "api",
                "chunks",
                "cli",
                "cluster",
                "compiled",
                "cuda",
                "files",
                "graph",
                "node",
                "xarray",
            ),
        )
    },
    "dask_coop/testing.py": ["test_architecture.py", "api"],
    "dask_coop/api/call/labelled.py": ["test_architecture.py", "api", "xarray"],
    "dask_coop/cuda/programs": ["test_architecture.py", "cuda", "kernels"],
    "dask_coop/chunks/cupy/programs_list.py": ["test_architecture.py", "chunks", "kernels"],
    "kernels": ["cuda", "kernels"],
    "benchmarks": ["cli"],
    "docs": ["docs"],
    "examples": ["docs"],
    "tools": ["docs"],
    "Makefile": ["docs"],
    "README.md": ["docs"],
    "CONTRIBUTING.md": ["docs"],
    "CHANGELOG.md": ["docs/test_project_files.py"],
    "CITATION.cff": ["docs"],
    ".github": ["docs"],
    ".pre-commit-config.yaml": ["docs"],
}
#: Files on which all tests depend.
COMMON = ("pyproject.toml", "tests/conftest.py", "tests/support")


def git(*arguments: str, folder: Path) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return [line for line in done.stdout.splitlines() if line]


def changed(base: str | None = None, folder: Path = REPOSITORY) -> list[str]:
    """Return the files that differ from `base`, new ones included."""
    if base is None:
        branches = git("branch", "--list", "main", "--format=%(refname:short)", folder=folder)
        base = git("merge-base", "HEAD", "main", folder=folder)[0] if branches else "HEAD"
    new = git("ls-files", "--others", "--exclude-standard", folder=folder)
    return sorted({*git("diff", "--name-only", base, folder=folder), *new})


def tests_of(path: str) -> list[str]:
    """Return the tests, files or folders in tests/, of a changed file."""
    if path.startswith("tests/"):
        name = path.removeprefix("tests/")
        is_test = name.rpartition("/")[2].startswith("test_")
        return [name if is_test else name.partition("/")[0]]
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        if (found := TESTS.get("/".join(parts[:length]))) is not None:
            return found
    return []


def select(paths: Iterable[str]) -> list[str]:
    """Return the existing files and folders for pytest to run, each once."""
    chosen: set[str] = set()
    for path in paths:
        if any(path == common or path.startswith(f"{common}/") for common in COMMON):
            return ["tests"]
        chosen |= {f"tests/{name}" for name in tests_of(path)}
    there = {name for name in chosen if (REPOSITORY / name).exists()}
    return sorted(name for name in there if name.rpartition("/")[0] not in there)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", help="the commit to compare with")
    parser.add_argument("--list", action="store_true", help="name the tests and run none")
    options = parser.parse_args(arguments)
    chosen = select(changed(options.base))
    print("tests of what has changed:", " ".join(chosen) or "none", flush=True)
    if options.list or not chosen:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--maxprocesses", "8"]
    command += ["--dist", "loadgroup", "-m", "not gpu", *chosen]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
