"""``python -m dask_coop run``: run a script or module as Python does, with `install` in effect."""

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
    """Raise UserError if there is no such script; a missing module is Python's error."""
    if not module and not Path(target).exists():
        raise UserError(f"there is no script {target}")


def run(
    target: str, arguments: Sequence[str], *, module: bool, chunks: Any, with_report: bool
) -> None:
    """Run a script, or the module of that name, as ``__main__``.

    Parameters
    ----------
    target : str
        The path of a script, or a module's name.
    arguments : sequence of str
        The script's arguments, ``sys.argv[1:]``.
    module : bool
        Whether the target is a module.
    chunks : {"numpy", "cupy"}
        As for `dask_coop.install`.
    with_report : bool
        Whether to print the report to stderr when the script has ended or failed.
    """
    sys.argv[:] = [target, *arguments]
    try:
        with installed(chunks):
            if module:
                # As with `python -m`; for a command Python has put its own folder there.
                sys.path[0] = str(Path.cwd())
                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                # `python -m` has put the current folder where Python puts the script's.
                sys.path[0] = str(Path(target).resolve().parent)
                # An absolute path, as the script may change the folder and use __file__.
                runpy.run_path(str(Path(target).absolute()), run_name="__main__")
    finally:
        if with_report:
            print(report(), file=sys.stderr)
