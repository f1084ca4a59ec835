"""Python in processes of its own, in which it imports all that it can import here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


def beside(**variables: Any) -> dict[str, str]:
    """Return the environment of such a process, with some variables besides."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), *sys.path]))
    return {**os.environ, "PYTHONPATH": path, **{k: str(v) for k, v in variables.items()}}


def python(
    *arguments: Any, cwd: Any = None, timeout: float = 300, **variables: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with what follows its name on a command line, and variables of the environment."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=beside(**variables),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def printed(*arguments: Any, **options: Any) -> str:
    """Return what Python prints, which has to end well."""
    done = python(*arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
