"""``python -m dask_coop run``: run a script or module as Python does, with `install` in effect."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dask_coop.api.call.report import report
from dask_coop.api.install.install import installed
from dask_coop.errors import UserError


def require(target: str, module: bool) -> None:
    """Raise UserError if there is no such script; a missing module is Python's error."""
    if not module and not Path(target).exists():
        raise UserError(f"there is no script {target}")


def _print_theirs(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print an exception with the script's frames, as Python does, without those that run it."""
    theirs, inside = traceback, False
    while theirs is not None:
        file = theirs.tb_frame.f_code.co_filename
        if inside and not file.startswith("<frozen ") and file not in (__file__, runpy.__file__):
            break
        inside = inside or file == __file__
        theirs = theirs.tb_next
    # Without a frame of the script, its source has an error, or there is no such module.
    sys.__excepthook__(kind, error.with_traceback(theirs), theirs)


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
    sys.excepthook = _print_theirs
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
