"""States of dates and durations, as integer ticks of their unit, and how they merge.

float64 cannot distinguish dates in nanoseconds, so their sum is exact: two words,
``high * 2**48 + low`` with ``0 <= low < 2**48``, which hold the sum of 2**48 ticks of any size. The
mean is the sum divided in integers, and deviations are from that mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

State = tuple[Any, ...]

#: The tick that stands for NaT.
NAT = np.iinfo("i8").min

_LAST = np.iinfo("i8").max

_BITS = 48
_MASK = (1 << _BITS) - 1

#: The bits of the low word divided at a time: they fit in 64 bits with remainders of 2**48.
_STEP = 12


def summarize(ticks: Any, axes: tuple[int, ...], valid: Any) -> State:
    """Return the state of the `valid` ticks of an array over `axes`, fewer than 2**32."""
    nats = (ticks == NAT) & valid
    valid = ~nats & valid
    count, every = np.sum(valid, axes, dtype="i8"), bool(np.all(valid))

    def among(values: Any, else_: Any) -> Any:
        return values if every else np.where(valid, values, else_)

    known = among(ticks, 0)
    # Add words of 32 bits, and convert the sums to words of 48.
    above = np.add.reduce(known >> 32, axes)
    below = np.add.reduce((known & 0xFFFFFFFF).view("u8"), axes)
    low = ((above & 0xFFFF) << 32) + (below & np.uint64(_MASK)).astype("i8")
    high = (above >> 16) + (below >> np.uint64(_BITS)).astype("i8") + (low >> _BITS)
    low = low & _MASK
    whole, fraction = divide(high, low, count)
    deviation = apart(ticks, np.expand_dims(whole, axes)) - np.expand_dims(fraction, axes)
    return (
        count,
        np.sum(nats, axes, dtype="i8"),
        np.minimum.reduce(among(ticks, _LAST), axes, initial=_LAST),
        np.maximum.reduce(among(ticks, NAT), axes, initial=NAT),
        high,
        low,
        np.add.reduce(among(np.square(deviation), 0), axes),
    )


def merge(a: State, b: State) -> State:
    """Combine two states; squared deviations as in `merges.merge_variances`."""
    a_count, a_nats, a_least, a_most, a_high, a_low, a_m2 = a
    b_count, b_nats, b_least, b_most, b_high, b_low, b_m2 = b
    count, low = a_count + b_count, a_low + b_low
    a_whole, a_fraction = divide(a_high, a_low, a_count)
    b_whole, b_fraction = divide(b_high, b_low, b_count)
    delta = apart(b_whole, a_whole) + (b_fraction - a_fraction)
    return (
        count,
        a_nats + b_nats,
        np.minimum(a_least, b_least),
        np.maximum(a_most, b_most),
        a_high + b_high + (low >> _BITS),
        low & _MASK,
        a_m2 + b_m2 + delta * delta * (a_count * (b_count / np.maximum(count, 1))),
    )


def divide(high: Any, low: Any, count: Any) -> tuple[Any, Any]:
    """Return a sum divided by `count`, or by 1 if it is 0: its exact floor, and the fraction."""
    some = np.maximum(count, 1)
    quotient, remainder = np.divmod(high, some)
    for shift in range(_BITS - _STEP, -1, -_STEP):
        bits = (low >> shift) & ((1 << _STEP) - 1)
        digit, remainder = np.divmod((remainder << _STEP) | bits, some)
        quotient = (quotient << _STEP) + digit
    return quotient, remainder / some


def apart(a: Any, b: Any) -> Any:
    """Return ``a - b`` in float64, rounded once for any distance."""
    ahead = a >= b
    distance = np.where(ahead, a - b, b - a).view("u8").astype("f8")
    return np.where(ahead, distance, -distance)[()]
