"""Time the compilers of this process, and tell the user who waits for one.

A compilation that takes longer than a second is a line on stderr, once for each kind of code::

    dask_coop: compiling loops for sums, first use only (kept in /home/me/.cache/numba)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

#: A user who has waited for so many seconds gets a line.
_PATIENCE = 1.0


class Waits:
    """The compilations of a process, in any number of threads.

    Attributes
    ----------
    tells : bool
        Whether users are told; a command that compiles ahead says so itself.
    """

    def __init__(self) -> None:
        self.tells = True
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._running, self._since, self._total = 0, 0.0, 0.0

    def seconds(self) -> float:
        """Return the seconds until now in which at least one thread compiled."""
        with self._lock:
            return self._total + (perf_counter() - self._since if self._running else 0.0)

    def begin(self) -> None:
        """Count a compilation that begins."""
        with self._lock:
            if not self._running:
                self._since = perf_counter()
            self._running += 1

    def end(self) -> None:
        """Count a compilation that ends."""
        with self._lock:
            self._running -= 1
            if not self._running:
                self._total += perf_counter() - self._since

    def tell(self, what: str, where: Callable[[], str]) -> None:
        """Print the line on a kind of code, once."""
        with self._lock:
            if what in self._told or not self.tells:
                return
            self._told.add(what)
        # Without a terminal, there may be no stderr; and a line must fail no call.
        if sys.stderr is not None:
            with suppress(Exception):
                line = f"dask_coop: compiling {what}, first use only ({where()})"
                print(line, file=sys.stderr, flush=True)


#: The compilations of this process.
WAITS = Waits()


class compiling:
    """Time the compilation within, and tell of it if it takes long.

    Parameters
    ----------
    what : str
        Such as "loops for sums".
    where : callable
        Says where the machine code is kept, such as "kept in /home/me/.cache/numba".
    """

    def __init__(self, what: str, where: Callable[[], str]) -> None:
        self._timer = threading.Timer(_PATIENCE, WAITS.tell, (what, where))
        self._timer.daemon = True

    def __enter__(self) -> None:
        """Begin."""
        WAITS.begin()
        self._timer.start()

    def __exit__(self, *error: Any) -> None:
        """End."""
        self._timer.cancel()
        WAITS.end()


def kept_in(folder: str | None) -> str:
    """Return the words on a folder, or on the lack of one."""
    return f"kept in {folder}" if folder else "kept nowhere"


def compiled_apart(seconds: float) -> str:
    """Return the words behind a time from which compilations were left out; none for few."""
    return f" (+ {seconds:.1f} s compiling, first use only)" if seconds >= 0.05 else ""
