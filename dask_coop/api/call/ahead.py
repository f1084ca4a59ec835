"""Compile common loops and kernels ahead, in an idle process, if ``coop.warm`` asks for it.

The first call of a process starts it, and goes on at once::

    first call --start--> python -c ...: cli/warm.py `idle`, at the lowest priority
        |                     |
        | work                | compile
        v                     v
      result              ~/.cache/dask_coop, ~/.cache/numba --> later processes

A call that needs code which is not there yet compiles it, as without the process. Several callers
may start a process each: one works, and the others end. It outlives its caller, as a script may end
long before everything is compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache

from dask_coop.graph import config

#: The program of the process. Lists of processes show it, so a user sees whose it is. `subprocess`
#: starts it, as processes of `multiprocessing` end with their parents and import their scripts.
_COMMAND = "from dask_coop.cli import warm; warm.idle()"


def warm_if_wanted() -> None:
    """Start the process, once, if ``coop.warm`` is true.

    A public function calls it before it builds a graph.

    Raises
    ------
    ValueError
        If ``coop.warm`` is neither true nor false.
    """
    if config.get("coop.warm", True, False):
        _start()


@cache
def _start() -> subprocess.Popen[bytes] | None:
    """Start the process, and return it, as a process that nobody holds is warned of."""
    # It must neither start another one nor install the functions.
    environment = os.environ | {"DASK_COOP__WARM": "false", "DASK_COOP_INSTALL": "0"}
    # A call does its work without the process, too.
    with suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is meant for the caller.
            start_new_session=True,
        )
    return None
