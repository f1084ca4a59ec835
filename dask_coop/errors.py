"""Define the exceptions and warnings that a user can meet, and some that we catch ourselves.

`remedy` and `pip_install` write advice for their messages.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np


class Refused(TypeError):
    """Raised if dask_coop does not support the elements or chunks; the message has the reason.

    If Dask has a function of the same name, that one is called instead and nothing is raised,
    unless the configuration's ``coop.fallback`` is "raise".
    """


class RefusedByDask(Refused, ValueError, NotImplementedError):
    """Raised if Dask's function does not support the elements or chunks either.

    The message has our reason first, then that of Dask, whose exception is the cause.
    """


class Declined(RuntimeError):
    """Raised if engine="collective" cannot run a call; the message has the reason.

    A graph runs the call instead and nothing is raised, unless ``coop.fallback`` is "raise".
    """


class Silent(Declined):
    """Raised if engine="collective" gives up on a silent worker, for which a graph may wait."""


class Absent(RuntimeError):
    """Raised if a chunk or its worker is gone; a graph then runs in place of the collective."""


class Incompatible(Declined, Absent):
    """Raised if engine="collective" does not support this version of distributed or Dask."""


class Closed(RuntimeError):
    """Raised if pinned memory and its threads are closed in the middle of a copy."""


class FallbackWarning(UserWarning):
    """Issued if a call is left to Dask or runs as a graph, and ``coop.fallback`` is "warn".

    While `install` is in force, also if NumPy computes Dask arrays in memory, unless
    ``coop.fallback`` is "raise".
    """


class CooperativeTimeout(RuntimeError):
    """Raised if a GPU waits too long for another one at a barrier of a launch."""


class DoesNotApply(ValueError):
    """Raised if a strategy does not apply to a chunk; the message completes its name."""


class NotSupported(ValueError):
    """Raised if another library has to read a stored array; the message says why."""


class UserError(Exception):
    """Raised for an error that the user of the command line can correct; the message says how."""


def remedy(dtype: np.dtype[Any], kinds: str) -> str:
    """Return advice on how to convert elements of a refused dtype to one of the `kinds`."""
    if dtype.names:
        return f"take one of its fields: x[{dtype.names[0]!r}]"
    if dtype.kind in "SUT":
        return "unique and value_counts take strings; .astype('f8') reads numbers from them"
    if dtype.kind in "mM":
        return ".view('i8') has its ticks, NaT as the least integer"
    if dtype.kind == "c" and "c" not in kinds:
        return "take .real, .imag or abs() of it"
    if dtype.kind == "O":
        return "its elements are Python objects; .astype('f8') makes numbers of them"
    wide = "c16" if dtype.kind == "c" else "f8" if "f" in kinds else "i8"
    return f"convert it with .astype({wide!r})"


@cache
def pip_install(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    pip writes down which checkout or wheel it installs, but nothing of an index (PEP 610).
    """
    checkout = Path(__file__).resolve().parents[1]
    try:
        written = metadata.distribution("dask-coop").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        if not (checkout / "pyproject.toml").exists():
            return f'pip install "dask-coop[{extra}]"'
        return f'pip install -e "{checkout}[{extra}]"'
    origin = json.loads(written or "{}")
    url = origin.get("url", "")
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f'pip install {editable}"{url2pathname(urlsplit(url).path)}[{extra}]"'
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f'pip install "dask-coop[{extra}]{f" @ {url}" if url else ""}"'
