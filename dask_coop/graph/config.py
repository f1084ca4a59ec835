"""What Dask's configuration says of this library: `get` alone reads it.

Keys and defaults are those of ``dask_coop.yaml``, which `_dask_coop.py` registers with Dask. Which
values a key may have is said where it is read; so a new key is a line of that file, and a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import dask
from dask.utils import format_bytes, parse_bytes, parse_timedelta

from _dask_coop_early import VARIABLES, defaults


class Kind(NamedTuple):
    """Values of a kind.

    Attributes
    ----------
    words : str
        What they are called.
    read : callable
        Makes one of what is given; raises an error, or returns None, if that is none.
    """

    words: str
    read: Callable[[Any], Any]


def size(least: int) -> Kind:
    """Return the kind of numbers of bytes from `least` on, which are read as int."""

    def read(given: Any) -> int | None:
        nbytes = int(parse_bytes(given))
        return nbytes if nbytes >= least else None

    return Kind(f"a number of bytes such as '128 MiB', at least {format_bytes(least)}", read)


def _positive(given: Any) -> int | None:
    return given if isinstance(given, int) and given > 0 else None


def _seconds(given: Any) -> float | None:
    seconds = float(parse_timedelta(given))
    return seconds if seconds > 0 else None


COUNT = Kind("a positive whole number", _positive)
#: Read as seconds.
SPAN = Kind("a positive span of time such as '30s'", _seconds)


def get(key: str, *allowed: Any) -> Any:
    """Return the value of a key.

    Parameters
    ----------
    key : str
        Such as "coop.engine".
    *allowed : Kind or object
        The values that it may have, and kinds of them.

    Raises
    ------
    ValueError
        If the value is none of these; or if the configuration has a key that nothing reads.
    """
    if wrong := unread():
        raise ValueError(wrong)
    given = dask.config.get(key, DEFAULTS[key])
    for one in allowed:
        if not isinstance(one, Kind):
            # True is 1, and no number of anything.
            if type(given) is type(one) and given == one:
                return given
        elif not isinstance(given, bool) and (value := _read(one, given)) is not None:
            return value
    *words, last = (one.words if isinstance(one, Kind) else repr(one) for one in allowed)
    said = f"{', '.join(words)} or {last}" if words else last
    raise ValueError(f"{key} must be {said}, got {given!r}")


def _read(kind: Kind, given: Any) -> Any:
    try:
        return kind.read(given)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys below `key`, spelled with hyphens, and their values."""
    if isinstance(value, Mapping):
        for name, inner in [*value.items()]:
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield key.replace("_", "-"), value


#: All keys, and the values that they have if nobody sets them.
DEFAULTS = dict(_flat("coop", defaults()["coop"]))
#: What Dask makes of environment variables that have a reader of their own.
_OTHERS = {name.removeprefix("DASK_").lower().replace("_", "-") for name in VARIABLES}


def in_force() -> dict[str, Any]:
    """Return all keys with their values, whether these may be had or not."""
    return {key: dask.config.get(key, default) for key, default in DEFAULTS.items()}


def unread() -> str | None:
    """Return what is wrong with a key that begins as ours, and is none; None if there is none."""
    # A copy, for other threads may set what they like meanwhile.
    for name, value in [*dask.config.config.items()]:
        # A variable with one underscore in the place of two makes the likes of "coop_engine".
        if name != "coop" and not name.startswith(("coop_", "coop-")):
            continue
        for key, _ in _flat(name, value):
            if key in DEFAULTS or key in _OTHERS:
                continue
            meant = get_close_matches(key, DEFAULTS, n=1)
            if meant:
                variable = "DASK_" + meant[0].upper().replace(".", "__").replace("-", "_")
                instead = f"did you mean {meant[0]}, in the environment {variable}?"
            else:
                instead = f"dask_coop has {', '.join(DEFAULTS)}"
            return f"Dask's configuration has {key}, which nothing reads; {instead}"
    return None
