"""Find the elements of given ranks without a sort: radix selection by counts of digits.

Every element has a key, an unsigned integer made of its bits, and keys sort as elements do. The
samples are counted by the first digit of their keys. The counts give the first digits of the wanted
elements, and only samples with these are counted by the next digit::

    counts of digit 1 --> prefixes --> counts of digit 2 --> prefixes --> ... --> keys

The order is that of `numpy.sort`: NaN and NaT come last, and all of them have one key. -0.0 comes
before 0.0. T. Alabi et al., "Fast K-selection algorithms for graphics processing units", ACM
Journal of Experimental Algorithmics 17, 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_coop.algebra.quantiles import Quantiles

Array = np.ndarray[Any, Any]

#: The bits of the first digit of long keys, whose table of counts fits a block's memory and a
#: message. Later digits have fewer bits, so that all tables together take no more.
WIDTH = 15

#: The most bits of keys that are read as one digit.
SHORT = 16

#: Samples are collected if they are at most this fraction of the others.
FEW = 1 / 8

#: The entry of `Digits.slots` for bits that no prefix begins with.
NO_SLOT = 0xFFFF


class Asked(NamedTuple):
    """The quantiles to find, before any sample was counted.

    Attributes
    ----------
    quantiles : Quantiles
    missing : int or None
        The number of NaT, where counts do not show it.
    defined : bool or None
        For tables of weights: whether quantiles are other than NaN or NaT.
    """

    quantiles: Quantiles
    missing: int | None = None
    defined: bool | None = None


class Wanted(NamedTuple):
    """The elements to find among the samples with some prefixes.

    Attributes
    ----------
    quantiles : Quantiles
    ranks : numpy.ndarray
        int64: the ranks of elements among the samples of their prefix. With weights, the weight of
        all samples below their prefix.
    slots : numpy.ndarray
        The position of each element's prefix in `Digits.prefixes`.
    gamma : numpy.ndarray or None
        The fractions that interpolate between the first half of the elements and the second.
    size : int
        The number of samples, without NaN if `skipna`; 0 where the result is NaN in any case.
    total : float or None
        The sum of all weights, if there are any.
    """

    quantiles: Quantiles
    ranks: Array
    slots: Array
    gamma: Array | None
    size: int
    total: float | None = None


@dataclass(frozen=True)
class Digits:
    """The next digit to count samples by, and the prefixes of the keys that count.

    Attributes
    ----------
    dtype : numpy.dtype
        The dtype of the samples.
    shift : int
        The number of a key's bits after the digit.
    width : int
        The number of bits of the digit.
    prefixes : tuple of int
        Ascending: the leading bits of the keys that count; each has a table of ``2**width``
        entries.
    share : float
        The fraction of all samples that have one of the prefixes.
    left : float
        The fraction of all samples that were counted for the digit before.
    collects : bool
        Whether to collect the samples with these prefixes before they are counted.
    wanted : Asked or Wanted, optional
        The quantiles or elements to find.
    """

    dtype: np.dtype[Any]
    shift: int
    width: int
    prefixes: tuple[int, ...] = (0,)
    share: float = 1.0
    left: float = 1.0
    collects: bool = False
    wanted: Any = field(default=None, compare=False)

    ndim: ClassVar[int] = 1
    flow: ClassVar[bool] = False
    has_lines: ClassVar[bool] = False

    @property
    def entries(self) -> int:
        """The number of entries of the table."""
        return len(self.prefixes) << self.width

    @property
    def n(self) -> int:
        """The number of entries of the table."""
        return self.entries

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table."""
        return (self.entries,)

    @cached_property
    def slots(self) -> Array:
        """The position of the first prefix by the first `WIDTH` bits of a key; else `NO_SLOT`."""
        slots = np.full(1 << WIDTH, NO_SLOT, "u2")
        begin = key_bits(self.dtype) - self.shift - self.width
        for slot, prefix in reversed([*enumerate(self.prefixes)]):
            slots[prefix >> (begin - WIDTH)] = slot
        return slots

    @cached_property
    def begins(self) -> Array:
        """A bitmap, in uint32, of the first `WIDTH` bits of keys that a prefix begins with."""
        return np.packbits(self.slots != NO_SLOT, bitorder="little").view("u4")

    def lines(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the axes of a chunk of `shape` as `Grid.lines` does: all are counted over."""
        return (), tuple(range(len(shape)))


def key_bits(dtype: np.dtype[Any]) -> int:
    """Return the number of bits of an element's key."""
    return 8 * dtype.itemsize


def first_digit(dtype: np.dtype[Any], wanted: Any = None) -> Digits:
    """Return the first digit that samples are counted by."""
    bits = key_bits(dtype)
    width = bits if bits <= SHORT else WIDTH
    return Digits(dtype, bits - width, width, wanted=wanted)


def leading_digit(dtype: np.dtype[Any], error: float, wanted: Asked) -> Digits:
    """Return a first digit that floats of one value share if they differ by at most `error` of it.

    Short keys are one digit.
    """
    bits = key_bits(dtype)
    if bits <= SHORT:
        return first_digit(dtype, wanted)
    width = bits - np.finfo(dtype).nmant + math.ceil(-math.log2(error))
    return Digits(dtype, bits - width, width, wanted=wanted)


def count_digits(dtype: np.dtype[Any], slots: int) -> int:
    """Return the most digits that keys are read in, with `slots` prefixes."""
    first = first_digit(dtype)
    return 1 + -(-first.shift // _width(slots))


def _width(slots: int) -> int:
    """Return the bits of a digit that follows `slots` prefixes."""
    return max(1, WIDTH - (slots - 1).bit_length())


def keys_of(x: Any) -> Any:
    """Return the keys of elements, unsigned integers of the same size, in the array's class."""
    bits = x.view(f"u{x.itemsize}")
    sign = bits.dtype.type(1 << (8 * x.itemsize - 1))
    match x.dtype.kind:
        case "f":
            # Flip all bits of negative numbers, and the sign of others.
            keys = bits ^ np.where(bits & sign, ~bits.dtype.type(0), sign)
            keys[np.isnan(x)] = ~bits.dtype.type(0)
            return keys
        case "i":
            return bits ^ sign
        case "M" | "m":
            # NaT is the least integer, and its key becomes the largest.
            return (bits ^ sign) - bits.dtype.type(1)
    return bits


def elements_of(keys: Array, dtype: np.dtype[Any]) -> Array:
    """Return the elements with the given keys."""
    keys = keys.astype(f"u{dtype.itemsize}")
    sign = keys.dtype.type(1 << (8 * dtype.itemsize - 1))
    match dtype.kind:
        case "f":
            elements = (keys ^ np.where(keys & sign, sign, ~keys.dtype.type(0))).view(dtype)
            elements[keys == ~keys.dtype.type(0)] = np.nan
            return np.asarray(elements)
        case "i":
            return np.asarray((keys ^ sign).view(dtype))
        case "M" | "m":
            return np.asarray(((keys + keys.dtype.type(1)) ^ sign).view(dtype))
    return np.asarray(keys.view(dtype))


def begins(keys: Array, digits: Digits) -> tuple[Array, Array]:
    """Return whether keys begin with one of the prefixes, and the position of that prefix."""
    if not digits.prefixes:
        return np.zeros(keys.shape, bool), np.zeros(keys.shape, "i8")
    prefixes = np.array(digits.prefixes, keys.dtype)
    before = keys >> keys.dtype.type(digits.shift) >> keys.dtype.type(digits.width)
    slots = np.minimum(np.searchsorted(prefixes, before), len(prefixes) - 1)
    return prefixes[slots] == before, slots


def descend(digits: Digits, table: Array) -> Digits:
    """Return the next digit to count samples by, given the counts of a digit."""
    wanted, counts = _wanted(digits, table)
    keys, ranks = _one_digit_on(digits, wanted, counts)
    prefixes, slots = np.unique(keys, return_inverse=True)
    width = min(digits.shift, _width(len(prefixes)))
    share = 0.0
    if wanted.total is None:
        parents = prefixes >> np.uint64(digits.width)
        rows = np.searchsorted(np.array(digits.prefixes, "u8"), parents)
        last = prefixes & np.uint64((1 << digits.width) - 1)
        counted = counts[rows, last.astype("i8")].sum()
        share = digits.share * float(counted / max(1, counts.sum()))
    left = digits.share if digits.collects else digits.left
    return replace(
        digits,
        shift=digits.shift - width,
        width=width,
        prefixes=tuple(map(int, prefixes)),
        share=share,
        left=left,
        collects=share <= FEW * left,
        wanted=wanted._replace(ranks=ranks, slots=slots.reshape(-1)),
    )


def finish(digits: Digits, table: Array) -> tuple[Wanted, Array, Array]:
    """Return the wanted quantiles, and the elements before and after each, from the last counts.

    The elements are NaN if there are none.
    """
    wanted, counts = _wanted(digits, table)
    keys, _ = _one_digit_on(digits, wanted, counts)
    shape = (2, *wanted.quantiles.shape)
    if not wanted.size:
        nothing = np.uint64((1 << key_bits(digits.dtype)) - 1)
        keys = np.full(shape, nothing)
    elif wanted.total is not None:
        keys = np.stack([keys, keys])
    low, high = elements_of(keys, digits.dtype).reshape(shape)
    return wanted, low, high


def estimate(digits: Digits, table: Array) -> Array:
    """Return quantiles by the counts of a first digit, and how far their ranks are off at most.

    The elements of a digit are taken to lie evenly between its least and its greatest value. Ranks
    are fractions of the number of elements. Both are NaN where the result is.
    """
    wanted, (counts,) = _wanted(digits, table)
    if not wanted.size:
        return np.full((2, *wanted.quantiles.shape), np.nan)
    digit = _one_digit_on(digits, wanted, counts[np.newaxis])[0].astype("i8")
    upto, ranks, shape = counts.cumsum(), wanted.ranks.astype("f8"), (2, -1)
    within = (ranks - (upto - counts)[digit] + 0.5) / counts[digit]
    shift = np.uint64(digits.shift)
    first = digit.astype("u8") << shift
    keys = first, first | (np.uint64(1) << shift) - np.uint64(1)
    low, high = (elements_of(ends, digits.dtype).astype("f8") for ends in keys)
    with np.errstate(invalid="ignore"):
        values = low + (high - low) * within
    # Infinities are at an end of their digits, and so are zeros, which often repeat.
    for end in (low, high):
        values = np.where(np.isinf(end) | (end == 0), end, values)
    (before, after), (rank, next_rank) = values.reshape(shape), ranks.reshape(shape)
    fraction = np.zeros(()) if wanted.gamma is None else np.ravel(wanted.gamma).astype("f8")
    at = rank + fraction * (next_rank - rank)
    first, last = (upto - counts)[digit].reshape(shape)[0], upto[digit].reshape(shape)[1] - 1
    off = np.maximum(at - first, last - at) / wanted.size if digits.shift else np.zeros(at.shape)
    with np.errstate(invalid="ignore"):
        between = before + fraction * (after - before)
    values = np.where((before == after) | (fraction == 0), before, between)
    return np.stack([values, off]).reshape(2, *wanted.quantiles.shape)


def _wanted(digits: Digits, table: Array) -> tuple[Wanted, Array]:
    """Return the elements to find, and the table by prefixes; the first table gives the size."""
    counts = table.reshape(len(digits.prefixes), 1 << digits.width)
    if isinstance(digits.wanted, Wanted):
        return digits.wanted, counts
    quantiles, missing, defined = digits.wanted
    if defined is not None:
        return _wanted_of_weights(quantiles, defined, float(counts.sum())), counts
    if missing is None:
        # Only NaN has the largest digit.
        missing = int(counts[0, -1]) if digits.dtype.kind == "f" else 0
    size = int(counts.sum())
    if not size:
        quantiles.warn_without_elements(digits.dtype)
    size = size - missing if quantiles.skipna else size * (missing == 0)
    previous, following, gamma = quantiles.ranks(size)
    ranks = np.stack([np.ravel(previous), np.ravel(following)]).reshape(-1)
    ranks = ranks if size else ranks[:0]
    return Wanted(quantiles, ranks, np.zeros(len(ranks), "i8"), gamma, size), counts


def _wanted_of_weights(quantiles: Quantiles, defined: bool, total: float) -> Wanted:
    # As in NumPy: NaN have weights unless skipna leaves them out, possibly all samples.
    if not (0 < total < np.inf or (quantiles.skipna and not defined)):
        raise ValueError(f"weights add up to {total}; their sum must be positive and finite")
    size = int(defined)
    before = np.zeros(size * quantiles.q.size)
    return Wanted(quantiles, before, before.astype("i8"), None, size, total)


def _one_digit_on(digits: Digits, wanted: Wanted, counts: Array) -> tuple[Array, Array]:
    """Return the elements' prefixes, longer by a digit, and their ranks within these."""
    if not len(wanted.ranks):
        return np.zeros(0, "u8"), wanted.ranks
    before = np.array(digits.prefixes, "u8")[wanted.slots] << np.uint64(digits.width)
    if wanted.total is not None:
        digit, ranks = _digits_by_weight(wanted, counts, wanted.total)
        return before | digit.astype("u8"), ranks
    upto = counts.cumsum(axis=1, dtype="i8")
    digit = np.empty(len(wanted.ranks), "i8")
    for slot in np.unique(wanted.slots):
        of_slot = wanted.slots == slot
        digit[of_slot] = np.searchsorted(upto[slot], wanted.ranks[of_slot], "right")
    ranks = wanted.ranks - (upto[wanted.slots, digit] - counts[wanted.slots, digit])
    return before | digit.astype("u8"), ranks


def _digits_by_weight(wanted: Wanted, sums: Array, total: float) -> tuple[Array, Array]:
    """Return the digits at which cumulative weights reach the quantiles, and the weight below them.

    A digit without weight reaches none, as in NumPy.
    """
    q = np.ravel(wanted.quantiles.q)
    digits, below = np.empty(len(q), "i8"), np.empty(len(q))
    for i, (slot, before) in enumerate(zip(wanted.slots, wanted.ranks, strict=True)):
        upto = before + np.concatenate([[0.0], sums[slot].cumsum()])
        fraction = (upto[1:] / total).astype(q.dtype if q.dtype.kind == "f" else "f8")
        reached = (fraction >= q[i]) & (upto[1:] > 0) & (sums[slot] > 0)
        # Rounding may keep the last fraction below 1.
        digits[i] = np.argmax(reached) if reached.any() else np.flatnonzero(sums[slot] > 0)[-1]
        below[i] = upto[digits[i]]
    return digits, below
