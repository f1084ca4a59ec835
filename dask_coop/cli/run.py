"""``python -m dask_coop run``: a script or module as Python runs it, with ours installed."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask_coop.api.call.report import report
from dask_coop.api.install.install import installed
from dask_coop.errors import UserError


def require(target: str, module: bool) -> None:
    """Raise UserError if there is no such script; that there is a module, Python says."""
    if not module and not Path(target).exists():
        raise UserError(f"there is no script {target}")


def run(target: str, arguments: Sequence[str], *, module: bool, chunks: Any, tell: bool) -> None:
    """Run a script, or the module of that name, as ``__main__``.

    Parameters
    ----------
    target : str
        The path of a script, or a module's name.
    arguments : sequence of str
        What the script finds behind ``sys.argv[0]``.
    module : bool
        Whether the target is a module.
    chunks : {"numpy", "cupy"}
        As for `dask_coop.install`.
    tell : bool
        Whether the report is printed to stderr when the script has ended, or failed.
    """
    sys.argv[:] = [target, *arguments]
    try:
        with installed(chunks):
            if module:
                # As it is by `python -m`; a command has the folder that it lies in.
                sys.path[0] = str(Path.cwd())
                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                # Where Python has the script's folder, `python -m` has the current one.
                sys.path[0] = str(Path(target).resolve().parent)
                # The script may change the folder, and look for files beside its own.
                runpy.run_path(str(Path(target).absolute()), run_name="__main__")
    finally:
        if tell:
            print(report(), file=sys.stderr)
