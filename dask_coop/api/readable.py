"""Numbers, dates and durations as people read them."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Seconds in a unit of time, and units in a second.
_SECONDS = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_FRACTIONS = {"ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}
_CALENDAR = {"Y": "year", "M": "month"}


def readable(value: Any) -> str:
    """Return the text of a number, a date or a duration.

    Examples
    --------
    >>> readable(2.5), readable(np.datetime64("2020-01-31T12:00:00.500", "ns"))
    ('2.5', '2020-01-31T12:00:00.5')
    >>> readable(np.timedelta64(90_061_250, "ms")), readable(np.timedelta64(-3, "M"))
    ('1 day 01:01:01.25', '-3 months')
    """
    if isinstance(value, np.timedelta64):
        return _of_duration(value)
    if isinstance(value, np.datetime64):
        text = str(value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _of_duration(value: np.timedelta64) -> str:
    if np.isnat(value):
        return "NaT"
    unit, step = np.datetime_data(value.dtype)
    count = int(value.view("i8")) * step
    if unit in _CALENDAR:
        return _counted(count, _CALENDAR[unit])
    digits = _FRACTIONS.get(unit, 0)
    seconds, rest = divmod(abs(count) * _SECONDS.get(unit, 1), 10**digits)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    text = f"{hour:02}:{minute:02}:{second:02}"
    if rest:
        text += f".{rest:0{digits}}".rstrip("0")
    if unit in ("W", "D"):
        text = _counted(days, "day")
    elif days:
        text = f"{_counted(days, 'day')} {text}"
    return f"-{text}" if count < 0 else text


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if abs(n) == 1 else f"{n} {noun}s"
