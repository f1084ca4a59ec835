"""The monoid of the registers of HyperLogLog, which count distinct elements approximately.

Every element has a hash of 64 bits. The leading ones choose a register, and the register keeps the
largest number of zeros that the others of any element began with, plus one. Elements that occur
again change nothing, and registers of two arrays combine by their maxima::

    hash 0b10 00001...    register 2: at least 5        about 2**5 distinct elements came there

P. Flajolet et al., "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm",
AofA 2007; the estimate is that of O. Ertl, "New cardinality estimation algorithms for HyperLogLog
sketches", arXiv:1702.01284, section 2.3, which has no bias that a table would have to correct.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dask_coop.algebra.digits import keys_of
from dask_coop.algebra.monoids import Field, MonoidRow, zero

Array = Any

#: The least and the most bits that choose a register.
FEWEST_BITS, MOST_BITS = 4, 18

#: The standard error, relative to the number of elements, of one register.
_ERROR = math.sqrt(3 * math.log(2) - 1)

#: The constants of SplitMix64: G. L. Steele et al., "Fast splittable pseudorandom number
#: generators", OOPSLA 2014.
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, eq=False)
class Registers(MonoidRow):
    """The monoid of ``2**bits`` registers; it has no functor."""

    bits: int = FEWEST_BITS

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the call that makes it, so that tasks stay small and `is` holds."""
        return registers, (self.bits,)

    def __dask_tokenize__(self) -> Any:
        """Return the call that makes it, for Dask's keys."""
        return "Registers", self.bits

    @property
    def entries(self) -> int:
        """The number of registers of a line."""
        return 1 << self.bits


@lru_cache
def registers(bits: int) -> Registers:
    """Return the monoid of ``2**bits`` registers."""
    field = Field("registers", np.dtype("u1"), zero, np.maximum)
    return Registers(f"registers_{bits}", (field,), "biuf", "", bits=bits)


def bits_for(error: float) -> int:
    """Return the fewest bits of a register's number for a relative standard error."""
    return max(FEWEST_BITS, math.ceil(2 * math.log2(_ERROR / error)))


def keys(x: Array) -> Array:
    """Return unsigned integers that are equal where elements are: -0.0 and 0.0, and all NaN."""
    result = keys_of(x.view("u1") if x.dtype.kind == "b" else x)
    if x.dtype.kind == "f":
        # The keys of -0.0 and 0.0 are neighbours.
        result = result + (result == (1 << 8 * x.itemsize - 1) - 1).astype(result.dtype)
    return result


def places(x: Array, bits: int) -> tuple[Array, Array]:
    """Return the register of each element, int64, and the number to keep there, int32."""
    hashed = keys(x).astype("u8") + np.uint64(STEP)
    hashed = (hashed ^ hashed >> np.uint64(30)) * np.uint64(FIRST)
    hashed = (hashed ^ hashed >> np.uint64(27)) * np.uint64(SECOND)
    hashed = hashed ^ hashed >> np.uint64(31)
    others = hashed << np.uint64(bits) | np.uint64(1 << bits - 1)
    # Without the second bit, the conversion to float does not round up to the next power of two.
    others = others & ~(others >> np.uint64(1))
    _, exponents = np.frexp(others.astype("f8"))
    return (hashed >> np.uint64(64 - bits)).astype("i8"), 65 - exponents


def estimate(kept: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers of distinct elements, float64, of registers along the last axis."""
    m = kept.shape[-1]
    most = 65 - m.bit_length()
    total = m * _tau(1 - np.mean(kept == most + 1, -1))
    for k in range(most, 0, -1):
        total = (total + np.count_nonzero(kept == k, -1)) / 2
    total = total + m * _sigma(np.mean(kept == 0, -1))
    return np.asarray(m * m / (2 * math.log(2) * total))


def _sigma(x: Any) -> Any:
    """Return Ertl's sigma, x plus the sum of ``x**(2**k) * 2**(k - 1)``; infinity for 1."""
    total, power, factor = x, x, 1.0
    while True:
        power = power * power
        more = total + power * factor
        factor *= 2
        # Where x is 1 the sum does not end.
        if np.all((more == total) | (x == 1)):
            return np.where(x == 1, np.inf, total)
        total = more


def _tau(x: Any) -> Any:
    """Return Ertl's tau; 0 for 0 and 1."""
    total, root, factor = 1 - x, x, 1.0
    while True:
        root = np.sqrt(root)
        factor /= 2
        less = total - (1 - root) ** 2 * factor
        if np.all((less == total) | (x == 0)):
            return np.where((x == 0) | (x == 1), 0, total / 3)
        total = less
