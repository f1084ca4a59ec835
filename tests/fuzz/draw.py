"""Random parts of cases, by NumPy's generators: shapes, chunks, values, layouts, axes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuzz.case import Array, Chunks, Operand

BOOL = ["?"]
INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]
COMPLEX = ["c8", "c16"]
REAL = BOOL + INTS + FLOATS
NUMBERS = REAL + COMPLEX

#: Sums of thousands of such float64 stay finite whatever their order, and so do their squares.
LARGE = 1e150

Generator = np.random.Generator


def pick(rng: Generator, choices: Sequence[Any]) -> Any:
    """Return one of some choices."""
    return choices[int(rng.integers(len(choices)))]


def chance(rng: Generator, probability: float) -> bool:
    """Return True with that probability."""
    return bool(rng.random() < probability)


def shape(rng: Generator, least: int = 0, most: int = 4) -> tuple[int, ...]:
    """Return a shape with odd sides and, now and then, empty ones; the more axes the smaller."""
    ndim = min(max(pick(rng, [0] + 8 * [1] + 7 * [2] + 3 * [3] + [4]), least), most)
    if ndim == 1 and chance(rng, 0.1):
        return (pick(rng, [128, 257, 1025, 3000]),)
    top = {1: 70, 2: 19}.get(ndim, 5)
    low = 0 if chance(rng, 0.15) else 1
    return tuple(int(n) for n in rng.integers(low, top + 1, ndim))


def large_shape(rng: Generator) -> tuple[int, ...]:
    """Return a shape of more elements than compiled loops, or several blocks of a GPU, wait for."""
    n = int(rng.integers(33_000, 90_000))
    return pick(rng, [(n,), (n,), (n // 3, 3), (3, n // 3), (n // 200, 200)])


def long_line(rng: Generator) -> Array:
    """Return many floats of one sign or of both, over which small errors add up."""
    array = rng.random(large_shape(rng))
    array = array if chance(rng, 0.7) else array - 0.5
    return array.astype(pick(rng, ["f4", "f8", "f8"]))


def cuts(rng: Generator, n: int, pieces: int) -> tuple[int, ...]:
    """Return at most `pieces` lengths, now and then one of zero, that add up to `n`."""
    count = int(rng.integers(0, pieces)) if chance(rng, 0.8) else 0
    low = 0 if chance(rng, 0.2) else 1
    at = np.unique(rng.integers(low, max(n, low + 1), count)) if n > 1 or not low else []
    if not low and count > 1 and chance(rng, 0.5):
        at = np.sort(rng.integers(0, n + 1, count))
    bounds = [0, *(int(place) for place in at), n]
    return tuple(b - a for a, b in itertools.pairwise(bounds))


def chunks(rng: Generator, sides: tuple[int, ...]) -> Chunks:
    """Return irregular chunks, in one dimension now and then enough for two levels of a spine."""
    most = {1: 40 if chance(rng, 0.15) else 6, 2: 4}.get(len(sides), 3)
    if sides and sides[0] > 30_000 and chance(rng, 0.2):
        most = 300
    return tuple(cuts(rng, n, most) for n in sides)


def layout(rng: Generator) -> str:
    """Return how blocks lie in memory, or that their dtype is another."""
    if chance(rng, 0.75):
        return "C"
    return pick(rng, ["F", "reversed", "strided", "read-only", ">", "undeclared", "undeclared"])


def operand(rng: Generator, array: Array, axes: str = "abcdefgh") -> Operand:
    """Return an array in random chunks and a random layout."""
    return Operand(array, chunks(rng, array.shape), axes[: array.ndim], layout(rng))


def axis(rng: Generator, ndim: int) -> Any:
    """Return None, one axis or a tuple of some, in any order, counted from either end."""
    if chance(rng, 0.4) or ndim == 0:
        return None if chance(rng, 0.8) or ndim else ()
    if chance(rng, 0.6):
        return int(rng.integers(-ndim, ndim))
    order = rng.permutation(ndim)[: int(rng.integers(0, ndim + 1))]
    return tuple(int(a) - ndim * chance(rng, 0.3) for a in order)


def one_axis(rng: Generator, ndim: int) -> int | None:
    """Return None or one axis."""
    return None if ndim == 0 or chance(rng, 0.3) else int(rng.integers(-ndim, ndim))


def split_every(rng: Generator) -> dict[str, Any]:
    """Return that keyword, or none."""
    return {"split_every": int(rng.integers(2, 8))} if chance(rng, 0.3) else {}


def keepdims(rng: Generator) -> dict[str, Any]:
    """Return that keyword, or none."""
    return {"keepdims": True} if chance(rng, 0.3) else {}


def values(rng: Generator, dtype: Any, sides: tuple[int, ...], special: bool = True) -> Array:
    """Return elements of one style; with `special`, now and then with NaN and infinities."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(sides) < pick(rng, [0.02, 0.5, 0.98])
    if dtype.kind in "iu":
        return _integers(rng, dtype, sides)
    if dtype.kind == "c":
        part = dtype.type(0).real.dtype
        result = np.empty(sides, dtype)
        result.real, result.imag = (values(rng, part, sides, special) for _ in range(2))
        return result
    return _floats(rng, dtype, sides, special)


def neighbours(rng: Generator, dtype: Any, sides: tuple[int, ...], special: bool = True) -> Array:
    """Return elements of a few values: of floats such as have none between them."""
    dtype = np.dtype(dtype)
    if dtype.kind != "f":
        return values(rng, dtype, (31,), special)[rng.integers(31, size=sides)]
    start = dtype.type(rng.standard_normal())
    palette = start + np.spacing(start) * np.arange(31).astype(dtype)
    return palette[rng.integers(31, size=sides)]


def _integers(rng: Generator, dtype: np.dtype[Any], sides: tuple[int, ...]) -> Array:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    match int(rng.integers(4)):
        case 0:
            low, high = max(low, -9), 9
        case 1:
            edge = [low, low + 1, max(low, -1), 0, 1, high - 1, high]
            edge += [v for k in (31, 53, 63) for v in (2**k - 1, 2**k, 2**k + 1) if v <= high]
            return np.array(edge, dtype)[rng.integers(len(edge), size=sides)]
        case 2:
            low, high = max(low, -100), 100
    return rng.integers(low, high, sides, dtype, endpoint=True)


def _floats(rng: Generator, dtype: np.dtype[Any], sides: tuple[int, ...], special: bool) -> Array:
    info = np.finfo(dtype)
    match int(rng.integers(6)):
        case 0:
            x = rng.integers(-9, 10, sides).astype(dtype)
        case 1:
            x = rng.uniform(0.1, 1, sides).astype(dtype)
        case 2:
            x = -rng.uniform(0.1, 1, sides).astype(dtype)
        case 3:
            x = rng.standard_normal(sides).astype(dtype)
        case 4:
            reach = 10 if dtype.itemsize == 2 else 30
            x = np.ldexp(rng.standard_normal(sides), rng.integers(-reach, reach, sides))
            x = np.clip(x, -float(info.max), float(info.max)).astype(dtype)
        case _:
            top = min(float(info.max), LARGE)
            palette = [0.0, -0.0, 1, -1, 0.1, top, -top, float(info.tiny)]
            palette += [float(info.smallest_subnormal), -float(info.smallest_subnormal)]
            x = np.array(palette, dtype)[rng.integers(len(palette), size=sides)]
    if special and chance(rng, 0.3):
        rate = pick(rng, [0.02, 0.2, 0.9])
        odd = pick(rng, [[np.nan], [np.inf], [-np.inf, np.nan], [np.inf, -np.inf, -0.0]])
        x = np.where(rng.random(sides) < rate, np.array(odd)[rng.integers(len(odd))], x)
    return np.asarray(x, dtype)


def representable(rng: Generator, dtype: Any, output: Any, sides: tuple[int, ...]) -> Array:
    """Return elements whose sums no dtype has to round, and that casts do not push out of range."""
    palette = [0, 1, 2, 3]
    palette += [0.5, 1.5] if np.dtype(dtype).kind in "fc" else []
    if np.dtype(dtype).kind not in "bu" and np.dtype(output).kind not in "bu":
        palette += [-v for v in palette]
    return np.array(palette).astype(dtype)[rng.integers(len(palette), size=sides)]
