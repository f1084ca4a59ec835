"""Find the quantiles of many groups without a sort: radix selection, by tables of all groups.

The keys of `digits.py` are counted by group and digit. The counts give the first digits of each
group's wanted elements, and only its keys with these are counted by the next digit::

    group  key         table                digits found
      0    3 1 4   -->   0: 1 1 ...    -->    group 0: 3   -->  count what begins so  --> ...
      1    3 2 7         1: 0 1 ...           group 1: 2

Once few keys begin so, they are sorted instead. There are at most `GroupDigits.rounds` digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_coop.algebra.digits import elements_of, key_bits
from dask_coop.algebra.quantiles import Quantiles

Array = np.ndarray[Any, Any]

#: The entries of the tables of all groups and prefixes together, if they are enough for digits of
#: `_LEAST` bits; and the most bits of a digit.
ENTRIES, _LEAST, _MOST = 1 << 20, 4, 15

#: The most keys that are sorted instead of counted.
FEW = 1 << 20


@dataclass(frozen=True, eq=False)
class GroupDigits:
    """The next digit of keys to count in each group, and the prefixes of the keys that count.

    Attributes
    ----------
    dtype : numpy.dtype
        The dtype of the elements.
    quantiles : Quantiles
        The quantiles to find.
    room : int
        The entries of a table, if they are enough.
    few : int
        The most keys that are sorted instead of counted.
    rounds : int
        The digits left, the next one included.
    shift, width : int
        The bits of a key after the digit, and of the digit.
    prefixes, tables : numpy.ndarray
        uint64 and int64, of shape (slots, groups): the leading bits of the keys that count, and the
        number of the table of each; -1 where there is none.
    left : int or None
        The number of keys that have one of the prefixes; None before any were counted.
    lengths, valid, sizes : numpy.ndarray or None
        The number of elements of each group, of those that are not NaN, and of those among which
        the quantiles are: none where the result is NaN in any case.
    at, ranks : numpy.ndarray or None
        int64, of shape (wanted, groups): the table of the prefix of each wanted element, and its
        rank there.
    keys : numpy.ndarray or None
        uint64, in the same shape: the keys of the wanted elements, once they are known.
    """

    dtype: np.dtype[Any]
    quantiles: Quantiles
    room: int
    few: int
    rounds: int
    shift: int
    width: int
    prefixes: Array
    tables: Array
    left: int | None = None
    lengths: Array | None = None
    valid: Array | None = None
    sizes: Array | None = None
    at: Array | None = None
    ranks: Array | None = None
    keys: Array | None = None

    @property
    def n(self) -> int:
        """The number of groups."""
        return int(self.prefixes.shape[1])

    @property
    def entries(self) -> int:
        """The number of entries of all tables; a first digit counts NaN by group after them."""
        return ((int(self.tables.max(initial=-1)) + 1) << self.width) + self.n * self.is_first

    @property
    def is_first(self) -> bool:
        """Whether nothing was counted yet; then NaN is counted by group, too."""
        return self.left is None

    @property
    def sorts(self) -> bool:
        """Whether the keys that are left are to be sorted, because they are few."""
        return self.left is not None and self.left <= self.few


def first_digit(
    dtype: np.dtype[Any], quantiles: Quantiles, n: int, room: int, few: int, rounds: int
) -> GroupDigits:
    """Return the first digit to count keys by, of `n` groups."""
    bits = key_bits(dtype)
    width = _width(n, bits, room, rounds)
    shape = (1, n)
    tables = np.arange(n).reshape(shape)
    return GroupDigits(
        dtype, quantiles, room, few, rounds, bits - width, width, np.zeros(shape, "u8"), tables
    )


def count_rounds(dtype: np.dtype[Any], n: int, wanted: int, room: int) -> int:
    """Return how many digits keys have, if all wanted elements of `n` groups have prefixes."""
    bits = key_bits(dtype)
    first = min(bits, _bits(n, room))
    return 1 + -(-(bits - first) // _bits(n * wanted, room))


def _bits(tables: int, room: int) -> int:
    return min(_MOST, max(_LEAST, (room // max(1, tables)).bit_length() - 1))


def _width(tables: int, left: int, room: int, rounds: int) -> int:
    """Return the bits of a digit, with `left` bits and `rounds` digits left."""
    return min(left, max(_bits(tables, room), -(-left // max(1, rounds))))


def descend(digits: GroupDigits, counts: Array) -> GroupDigits:
    """Return the next digit to count keys by, given the counts of a digit."""
    tables = int(digits.tables.max(initial=-1)) + 1
    size = tables << digits.width
    counts, nan = counts[:size], counts[size:]
    if digits.is_first:
        digits = _first_ranks(digits, counts, nan)
    assert digits.at is not None
    assert digits.ranks is not None
    # The entries of a table are neighbours, so that one search finds the digits of all tables.
    upto = np.cumsum(counts, dtype="i8")
    begins = np.concatenate([[0], upto])[np.arange(tables) << digits.width]
    wanted = digits.at >= 0
    targets = begins[digits.at[wanted]] + digits.ranks[wanted]
    entries = np.searchsorted(upto, targets, "right")
    ranks, at = digits.ranks.copy(), digits.at.copy()
    ranks[wanted] = targets - (upto[entries] - counts[entries])
    distinct, at[wanted] = np.unique(entries, return_inverse=True)
    table_of = distinct >> digits.width
    # The group and the prefix of each table, which are in the order of the groups.
    owners, before = np.zeros(tables, "i8"), np.zeros(tables, "u8")
    has = digits.tables >= 0
    owners[digits.tables[has]] = np.nonzero(has)[1]
    before[digits.tables[has]] = digits.prefixes[has]
    groups = owners[table_of]
    slots = np.arange(len(groups)) - np.searchsorted(groups, groups)
    shape = (int(slots.max(initial=0)) + 1, digits.n)
    numbers, prefixes = np.full(shape, -1), np.zeros(shape, "u8")
    numbers[slots, groups] = np.arange(len(groups))
    digit = (distinct & ((1 << digits.width) - 1)).astype("u8")
    prefixes[slots, groups] = before[table_of] << np.uint64(digits.width) | digit
    width = _width(len(groups), digits.shift, digits.room, digits.rounds - 1)
    after = replace(
        digits,
        rounds=digits.rounds - 1,
        shift=digits.shift - width,
        width=width,
        prefixes=prefixes,
        tables=numbers,
        left=int(counts[distinct].sum()),
        at=at,
        ranks=ranks,
    )
    if digits.shift:
        return after
    return replace(after, keys=_of_each(at, prefixes[slots, groups], digits.dtype))


def settle(digits: GroupDigits, keys: Array, codes: Array) -> GroupDigits:
    """Return the digits with the wanted keys found, given all keys that are left and their groups.

    Keys come in any order.
    """
    assert digits.at is not None
    assert digits.ranks is not None
    of_key = find_tables(digits, keys, codes)
    order = np.lexsort((keys, of_key))
    keys, of_key = keys[order], of_key[order]
    wanted = digits.at >= 0
    places = np.searchsorted(of_key, digits.at[wanted]) + digits.ranks[wanted]
    of_each = np.full(digits.at.shape, _last(digits.dtype))
    of_each[wanted] = keys[places]
    return replace(digits, keys=of_each)


def find_tables(digits: GroupDigits, keys: Any, codes: Any, like: Any = np.asarray) -> Any:
    """Return the number of the table that counts each key; -1 for keys that none counts.

    `like` makes arrays that index those of `keys` and `codes`.
    """
    numbers = like(digits.tables)
    if digits.is_first:
        return numbers[0][codes]
    prefixes = like(digits.prefixes.astype(keys.dtype))
    before = keys >> keys.dtype.type(digits.shift) >> keys.dtype.type(digits.width)
    tables = np.where(before == prefixes[0][codes], numbers[0][codes], -1)
    for slot in range(1, len(digits.tables)):
        begins = (numbers[slot][codes] >= 0) & (before == prefixes[slot][codes])
        tables = np.where(begins, numbers[slot][codes], tables)
    return tables


def find_entries(digits: GroupDigits, keys: Any, tables: Any) -> Any:
    """Return the entry of all tables that counts each key, given the number of its table.

    NaN has an entry for each group behind all tables of a first digit.
    """
    word, last = keys.dtype, keys.dtype.type(_last(digits.dtype))
    digit = (keys >> word.type(digits.shift)).astype("i8") & ((1 << digits.width) - 1)
    entries = tables << digits.width | digit
    if digits.is_first and digits.dtype.kind in "fm":
        return np.where(keys == last, (digits.n << digits.width) + tables, entries)
    return entries


def finish(digits: GroupDigits) -> tuple[Array, Array, Any]:
    """Return the elements before and after each quantile, by groups, and the fractions between."""
    assert digits.keys is not None
    shape = (2, *digits.quantiles.shape, digits.n)
    low, high = elements_of(digits.keys, digits.dtype).reshape(shape)
    gamma = digits.quantiles.ranks(digits.sizes).gamma
    return low, high, None if gamma is None else np.moveaxis(gamma, 0, -1)


def _first_ranks(digits: GroupDigits, counts: Array, nan: Array) -> GroupDigits:
    """Return the digits with the ranks of all wanted elements in their groups."""
    valid = counts.reshape(digits.n, 1 << digits.width).sum(axis=1)
    sizes = valid if digits.quantiles.skipna else np.where(nan > 0, 0, valid)
    previous, following, _ = digits.quantiles.ranks(sizes)
    shape = digits.n, math.prod(digits.quantiles.shape)
    ranks = np.concatenate([r.reshape(shape) for r in (previous, following)], axis=1).T
    at = np.where(sizes > 0, np.arange(digits.n), -1)
    at = np.broadcast_to(at, ranks.shape)
    of_groups = {"lengths": valid + nan, "valid": valid, "sizes": sizes}
    return replace(digits, **of_groups, ranks=ranks.copy(), at=at)


def _of_each(at: Array, keys: Array, dtype: np.dtype[Any]) -> Array:
    """Return the key of each wanted element from the keys of all tables; NaN if it is missing."""
    return np.where(at >= 0, np.append(keys, np.uint64(0))[at], _last(dtype))


def _last(dtype: np.dtype[Any]) -> Any:
    """Return the largest key, which is NaN's."""
    return np.uint64((1 << key_bits(dtype)) - 1)
