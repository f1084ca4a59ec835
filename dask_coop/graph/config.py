"""Read the library's keys in Dask's configuration; only `get` reads them.

Keys and defaults are those of ``dask_coop.yaml``, which `_dask_coop.py` registers with Dask. The
caller of `get` states the allowed values, so a new key is a line of that file and a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import dask
from dask.utils import format_bytes, parse_bytes, parse_timedelta

from _dask_coop_early import VARIABLES, defaults


class Kind(NamedTuple):
    """A kind of values.

    Attributes
    ----------
    words : str
        Their description in messages.
    read : callable
        Converts a configured value; raises an error or returns None for other values.
    """

    words: str
    read: Callable[[Any], Any]


def size(least: int) -> Kind:
    """Return the kind of numbers of bytes from `least` on, read as int."""

    def read(value: Any) -> int | None:
        nbytes = int(parse_bytes(value))
        return nbytes if nbytes >= least else None

    return Kind(f"a number of bytes such as '128 MiB', at least {format_bytes(least)}", read)


def _share(value: Any) -> float | None:
    if isinstance(value, float):
        return value if 0 <= value <= 1 else None
    nbytes = int(parse_bytes(value))
    return nbytes if nbytes >= 0 else None


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _seconds(value: Any) -> float | None:
    seconds = float(parse_timedelta(value))
    return seconds if seconds > 0 else None


#: Read as float, the fraction, or as int.
SHARE = Kind("a fraction up to 1.0 or a number of bytes such as '8 GiB'", _share)
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
        The allowed values and kinds of values.

    Raises
    ------
    ValueError
        If the value is not allowed, or the configuration has a key that nothing reads.
    """
    if wrong := unread():
        raise ValueError(wrong)
    value = dask.config.get(key, DEFAULTS[key])
    for choice in allowed:
        if not isinstance(choice, Kind):
            # True equals 1 but is not a number here.
            if type(value) is type(choice) and value == choice:
                return value
        elif not isinstance(value, bool) and (converted := _read(choice, value)) is not None:
            return converted
    *words, last = (kind.words if isinstance(kind, Kind) else repr(kind) for kind in allowed)
    choices = f"{', '.join(words)} or {last}" if words else last
    raise ValueError(f"{key} must be {choices}, got {value!r}")


def _read(kind: Kind, value: Any) -> Any:
    try:
        return kind.read(value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys below `key`, spelled with hyphens, and their values."""
    if isinstance(value, Mapping):
        for name, inner in [*value.items()]:
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield key.replace("_", "-"), value


#: All keys with their default values.
_KNOWN = defaults()["coop"]
DEFAULTS = dict(_flat("coop", _KNOWN))
_TREES = {key for key, value in _KNOWN.items() if isinstance(value, dict)}
_NAMES = [key.removeprefix("coop.") for key in DEFAULTS]
#: Keys that Dask derives from environment variables with other readers.
_OTHERS = {name.removeprefix("DASK_").lower().replace("_", "-") for name in VARIABLES}


def in_force() -> dict[str, Any]:
    """Return all keys with their current values, allowed or not."""
    return {key: dask.config.get(key, default) for key, default in DEFAULTS.items()}


def _is_all_read(value: Any, known: Any) -> bool:
    """Return whether all keys of a tree have defaults, in the spelling of those."""
    # Every call asks this several times, and `_flat` takes many times as long.
    if not (isinstance(value, dict) and isinstance(known, dict)):
        return not (isinstance(value, dict) or isinstance(known, dict))
    if not value.keys() <= known.keys():
        return False
    trees = [key for key, of in [*value.items()] if isinstance(of, dict) or key in _TREES]
    return all([_is_all_read(value[key], known[key]) for key in trees])


def unread() -> str | None:
    """Return a message about a key with our prefix that nothing reads, or None."""
    # A copy, because other threads may set keys meanwhile.
    for name, value in [*dask.config.config.items()]:
        # An environment variable with one underscore instead of two yields "coop_engine".
        if name != "coop" and not name.startswith(("coop_", "coop-")):
            continue
        if name == "coop" and _is_all_read(value, _KNOWN):
            continue
        for key, _ in _flat(name, value):
            if key in DEFAULTS or key in _OTHERS:
                continue
            meant = get_close_matches(key.removeprefix("coop."), _NAMES, n=1)
            if meant:
                variable = "DASK_COOP__" + meant[0].upper().replace(".", "__").replace("-", "_")
                instead = f"did you mean coop.{meant[0]}, in the environment {variable}?"
            else:
                instead = f"dask_coop has {', '.join(DEFAULTS)}"
            return f"Dask's configuration has {key}, which nothing reads; {instead}"
    return None


def on_cluster() -> bool:
    """Return whether Dask is configured to run graphs on a cluster."""
    return dask.config.get("scheduler", None) in ("dask.distributed", "distributed")
