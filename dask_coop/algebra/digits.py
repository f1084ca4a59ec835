"""Elements of given ranks without a sort: radix selection by counts of digits.

Every element has a key, an unsigned integer of its bits, and keys are in the order of the elements.
The samples are counted by the first digit of their keys; the counts tell which digit the elements
of some ranks begin with, and only samples that begin so are counted by the next one::

    counts of digit 1 --> prefixes --> counts of digit 2 --> prefixes --> ... --> keys

The order is that of `numpy.sort`: NaN and NaT come last, all of them by one key. -0.0 comes before
0.0. T. Alabi et al., "Fast K-selection algorithms for graphics processing units", ACM Journal of
Experimental Algorithmics 17, 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_coop.algebra.quantiles import Quantiles

Array = np.ndarray[Any, Any]

#: Bits of the first digit of long keys: such a table of counts fits the memory of a block, and that
#: of a message. Later digits are as long as all tables together take no more.
WIDTH = 15

#: Keys of no more bits are one digit.
SHORT = 16

#: The largest share of the samples that is worth being taken out of the others.
FEW = 1 / 8

#: What `Digits.slots` has where no prefix begins so.
NO_SLOT = 0xFFFF


class Asked(NamedTuple):
    """Which quantiles are wanted, before a sample was counted.

    Attributes
    ----------
    quantiles : Quantiles
    missing : int or None
        How many samples are NaT, where the counts do not tell.
    defined : bool or None
        Where tables are sums of weights: whether quantiles are anything but NaN or NaT.
    """

    quantiles: Quantiles
    missing: int | None = None
    defined: bool | None = None


class Wanted(NamedTuple):
    """What is looked for among the samples that begin with some prefixes.

    Attributes
    ----------
    quantiles : Quantiles
    ranks : numpy.ndarray
        int64: those of elements, among the samples of their prefix; or the weight of all samples
        below their prefix.
    slots : numpy.ndarray
        The positions of these prefixes.
    gamma : numpy.ndarray or None
        How the elements are interpolated; the first half of them is before, the other behind.
    size : int
        The number of samples, NaN left out if it is to be; 0 where the result is NaN in any case.
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
    """What samples are counted by: a digit of their keys, if the digits before are among some.

    Attributes
    ----------
    dtype : numpy.dtype
        That of the samples.
    shift : int
        The bits of a key behind the digit.
    width : int
        The bits of the digit.
    prefixes : tuple of int
        Ascending: what keys begin with that are counted; each has a table of ``2**width`` entries.
    share : float
        How many of all samples begin so.
    left : float
        How many of all samples were still there for the digit before.
    collects : bool
        Whether those that begin so are to be taken out of the others before they are counted.
    wanted : Asked or Wanted, optional
        What is looked for.
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
        """How many the table has."""
        return len(self.prefixes) << self.width

    @property
    def n(self) -> int:
        """How many the table has."""
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
        """A bit, in uint32, for each first `WIDTH` bits of keys: whether a prefix begins so."""
        return np.packbits(self.slots != NO_SLOT, bitorder="little").view("u4")

    def lines(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the axes of a chunk of `shape` as `Grid.lines` does: all are counted over."""
        return (), tuple(range(len(shape)))


def key_bits(dtype: np.dtype[Any]) -> int:
    """Return the bits of the key of an element."""
    return 8 * dtype.itemsize


def first_digit(dtype: np.dtype[Any], wanted: Any = None) -> Digits:
    """Return what the samples are counted by first."""
    bits = key_bits(dtype)
    width = bits if bits <= SHORT else WIDTH
    return Digits(dtype, bits - width, width, wanted=wanted)


def count_digits(dtype: np.dtype[Any], slots: int) -> int:
    """Return in how many digits keys are read at most, with so many prefixes."""
    first = first_digit(dtype)
    return 1 + -(-first.shift // _width(slots))


def _width(slots: int) -> int:
    """Return the bits of a digit that follows so many prefixes."""
    return max(1, WIDTH - (slots - 1).bit_length())


def keys_of(x: Array) -> Array:
    """Return the keys of elements, unsigned integers of their size."""
    bits: Array = x.view(f"u{x.itemsize}")
    sign = bits.dtype.type(1 << (8 * x.itemsize - 1))
    match x.dtype.kind:
        case "f":
            # Of a negative number all bits are turned, of others the sign.
            keys = bits ^ np.where(bits & sign, ~bits.dtype.type(0), sign)
            keys[np.isnan(x)] = ~bits.dtype.type(0)
            return np.asarray(keys)
        case "i":
            return np.asarray(bits ^ sign)
        case "M" | "m":
            # NaT is the least integer, and its key becomes the largest.
            return np.asarray((bits ^ sign) - bits.dtype.type(1))
    return bits


def elements_of(keys: Array, dtype: np.dtype[Any]) -> Array:
    """Return the elements that have some keys."""
    keys = keys.astype(f"u{dtype.itemsize}")
    sign = keys.dtype.type(1 << (8 * dtype.itemsize - 1))
    match dtype.kind:
        case "f":
            found = (keys ^ np.where(keys & sign, sign, ~keys.dtype.type(0))).view(dtype)
            found[keys == ~keys.dtype.type(0)] = np.nan
            return np.asarray(found)
        case "i":
            return np.asarray((keys ^ sign).view(dtype))
        case "M" | "m":
            return np.asarray(((keys + keys.dtype.type(1)) ^ sign).view(dtype))
    return np.asarray(keys.view(dtype))


def begins(keys: Array, digits: Digits) -> tuple[Array, Array]:
    """Return whether keys begin with one of the prefixes, and the position of that one."""
    if not digits.prefixes:
        return np.zeros(keys.shape, bool), np.zeros(keys.shape, "i8")
    prefixes = np.array(digits.prefixes, keys.dtype)
    before = keys >> keys.dtype.type(digits.shift) >> keys.dtype.type(digits.width)
    at = np.minimum(np.searchsorted(prefixes, before), len(prefixes) - 1)
    return prefixes[at] == before, at


def descend(digits: Digits, table: Array) -> Digits:
    """Return what samples are counted by next, as the counts of a digit have it."""
    wanted, counts = _wanted(digits, table)
    keys, ranks = _one_digit_on(digits, wanted, counts)
    prefixes, slots = np.unique(keys, return_inverse=True)
    width = min(digits.shift, _width(len(prefixes)))
    share = 0.0
    if wanted.total is None:
        at = np.searchsorted(np.array(digits.prefixes, "u8"), prefixes >> np.uint64(digits.width))
        last = prefixes & np.uint64((1 << digits.width) - 1)
        counted = counts[at, last.astype("i8")].sum()
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
    """Return what was wanted, and the elements before and behind it, by the last digit's counts.

    Where there is none they are NaN.
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


def _wanted(digits: Digits, table: Array) -> tuple[Wanted, Array]:
    """Return what is looked for, and the table by prefixes; the first tells how many there are."""
    counts = table.reshape(len(digits.prefixes), 1 << digits.width)
    if isinstance(digits.wanted, Wanted):
        return digits.wanted, counts
    quantiles, missing, defined = digits.wanted
    if defined is not None:
        return _wanted_of_weights(quantiles, defined, float(counts.sum())), counts
    if missing is None:
        # No other float has the largest digit.
        missing = int(counts[0, -1]) if digits.dtype.kind == "f" else 0
    size = int(counts.sum())
    if not size:
        raise ValueError("there is no quantile of no element")
    size = size - missing if quantiles.skipna else size * (missing == 0)
    previous, following, gamma = quantiles.ranks(size)
    ranks = np.stack([np.ravel(previous), np.ravel(following)]).reshape(-1)
    ranks = ranks if size else ranks[:0]
    return Wanted(quantiles, ranks, np.zeros(len(ranks), "i8"), gamma, size), counts


def _wanted_of_weights(quantiles: Quantiles, defined: bool, total: float) -> Wanted:
    # As in NumPy: NaN have weights but where they are left out, and all may be.
    if not (0 < total < np.inf or (quantiles.skipna and not defined)):
        raise ValueError(f"weights add up to {total}; there must be some, all finite")
    size = int(defined)
    before = np.zeros(size * quantiles.q.size)
    return Wanted(quantiles, before, before.astype("i8"), None, size, total)


def _one_digit_on(digits: Digits, wanted: Wanted, counts: Array) -> tuple[Array, Array]:
    """Return the prefixes of what is looked for, longer by a digit, and the ranks among those."""
    if not len(wanted.ranks):
        return np.zeros(0, "u8"), wanted.ranks
    before = np.array(digits.prefixes, "u8")[wanted.slots] << np.uint64(digits.width)
    if wanted.total is not None:
        digit, ranks = _digits_by_weight(wanted, counts, wanted.total)
        return before | digit.astype("u8"), ranks
    upto = counts.cumsum(axis=1, dtype="i8")
    digit = np.empty(len(wanted.ranks), "i8")
    for slot in np.unique(wanted.slots):
        mine = wanted.slots == slot
        digit[mine] = np.searchsorted(upto[slot], wanted.ranks[mine], "right")
    ranks = wanted.ranks - (upto[wanted.slots, digit] - counts[wanted.slots, digit])
    return before | digit.astype("u8"), ranks


def _digits_by_weight(wanted: Wanted, sums: Array, total: float) -> tuple[Array, Array]:
    """Return the digits up to which weights make the wanted shares, and the weight below them.

    They are the first that reach the share, and weights that are zero reach none, as in NumPy.
    """
    q = np.ravel(wanted.quantiles.q)
    digits, below = np.empty(len(q), "i8"), np.empty(len(q))
    for i, (slot, before) in enumerate(zip(wanted.slots, wanted.ranks, strict=True)):
        upto = before + np.concatenate([[0.0], sums[slot].cumsum()])
        share = (upto[1:] / total).astype(q.dtype if q.dtype.kind == "f" else "f8")
        reached = (share >= q[i]) & (upto[1:] > 0) & (sums[slot] > 0)
        # Rounded, all weights together may be less than all.
        digits[i] = np.argmax(reached) if reached.any() else np.flatnonzero(sums[slot] > 0)[-1]
        below[i] = upto[digits[i]]
    return digits, below
