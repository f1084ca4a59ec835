"""The laws of a user's monoid: those that keep them are taken, those that don't are shown why."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks

import dask_coop as dc
from dask_coop.api.monoids import laws
from dask_coop.chunks.cupy import programs_list


def affine(**changes: Any) -> dc.Monoid:
    parts: dict[str, Any] = {
        "combine": lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
        "identity": (1, 0),
        "dtype": "f8,f8",
        "lift": lambda x: (x.real, x.imag),
        "finalize": lambda f: f[1],
    }
    return dc.Monoid("affine", **(parts | changes))


def fields(
    name: str, combine: Any, identity: Any, dtype: Any, lift: Any, finalize: Any, **more: Any
) -> dc.Monoid:
    return dc.Monoid(name, combine, identity, dtype, lift=lift, finalize=finalize, **more)


def welford(a: Any, b: Any) -> Any:
    n = a[0] + b[0]
    share = b[0] / np.maximum(n, 1)
    d = b[1] - a[1]
    return n, a[1] + d * share, a[2] + b[2] + d * d * a[0] * share


def kahan(a: Any, b: Any) -> Any:
    total = a[0] + b[0]
    behind = total - a[0]
    lost = (a[0] - (total - behind)) + (b[0] - behind)
    return total, a[1] + b[1] + lost


def quaternion(p: Any, q: Any) -> Any:
    a, b = np.moveaxis(p, -1, 0), np.moveaxis(q, -1, 0)
    return np.stack(
        [
            a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
            a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
            a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
            a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
        ],
        -1,
    )


def rotation(x: Any) -> Any:
    # About an axis that differs from element to element, so that they do not commute.
    axis = np.stack([np.cos(x), np.sin(x) * np.cos(3 * x), np.sin(x) * np.sin(3 * x)], -1)
    return np.concatenate([np.cos(x)[..., None], np.sin(x)[..., None] * axis], -1)


def least(a: Any, b: Any) -> Any:
    take = b[0] < a[0]
    return np.where(take, b[0], a[0]), np.where(take, b[1], a[1])


def best_run(a: Any, b: Any) -> Any:
    """Join totals, best prefixes, best suffixes and best runs."""
    return (
        a[0] + b[0],
        np.maximum(a[1], a[0] + b[1]),
        np.maximum(b[2], b[0] + a[2]),
        np.maximum(np.maximum(a[3], b[3]), a[2] + b[1]),
    )


def log_of_sum(a: Any, b: Any) -> Any:
    high = np.maximum(a, b)
    safe = np.where(np.isfinite(high), high, 0)
    return np.log(np.exp(a - safe) + np.exp(b - safe)) + safe


def softmax(a: Any, b: Any) -> Any:
    """Join a maximum, and the sum of what exponentials are to its own."""
    high = np.maximum(a[0], b[0])
    safe = np.where(np.isfinite(high), high, 0)
    return high, a[1] * np.exp(a[0] - safe) + b[1] * np.exp(b[0] - safe)


def join(a: Any, b: Any) -> Any:
    """Count runs of true elements: what is first, what is last, how many, and whether any is."""
    first = np.where(a[3], a[0], b[0])
    last = np.where(b[3], b[1], a[1])
    return first, last, a[2] + b[2] - (a[3] & b[3] & a[1] & b[0]), a[3] | b[3]


def weighted(a: Any, b: Any) -> Any:
    total = a[1] + b[1]
    safe = np.where(total == 0, 1, total)
    return (a[0] * a[1] + b[0] * b[1]) / safe, total


def hashed(a: Any, b: Any) -> Any:
    return a[0] * b[1] + b[0], a[1] * b[1]


#: The dtypes of elements, and what makes a good monoid of them.
FLOATS, INTEGERS, COMPLEX, ALL = "efd", "bhilBHI", "FD", "?bhilBHILefd"
GOOD: list[tuple[str, Any]] = [
    *((ALL + COMPLEX, lambda d=d: dc.Monoid("sum", np.add, 0, d, commutative=True)) for d in "DF"),
    *((ALL, lambda d=d: dc.Monoid("sum", np.add, 0, d, commutative=True)) for d in "efd"),
    *((ALL, lambda d=d: dc.Monoid("prod", np.multiply, 1, d, commutative=True)) for d in "efd"),
    *((INTEGERS, lambda d=d: dc.Monoid("prod", lambda a, b: a * b, 1, d)) for d in "bl"),
    *((FLOATS, lambda d=d: dc.Monoid("max", np.maximum, -np.inf, d)) for d in "efd"),
    *((FLOATS, lambda d=d: dc.Monoid("log", np.logaddexp, -np.inf, d)) for d in "efd"),
    *((FLOATS, lambda d=d: dc.Monoid("log", log_of_sum, -np.inf, d)) for d in "efd"),
    (FLOATS, lambda: dc.Monoid("log2", np.logaddexp2, -np.inf, "f8", commutative=True)),
    ("bhil", lambda: dc.Monoid("min", np.minimum, np.iinfo("i8").max, "i8", commutative=True)),
    ("BHIL", lambda: dc.Monoid("max", np.maximum, 0, "u8", commutative=True)),
    ("BHIL", lambda: dc.Monoid("capped", lambda a, b: np.minimum(a + b, 9), 0, "u8")),
    (INTEGERS, lambda: dc.Monoid("gcd", np.gcd, 0, "i8", commutative=True)),
    ("BHIL", lambda: dc.Monoid("lcm", np.lcm, 1, "u8", commutative=True)),
    (FLOATS, lambda: dc.Monoid("hypot", np.hypot, 0, "f8", commutative=True)),
    (INTEGERS, lambda: dc.Monoid("modulo", lambda a, b: (a + b) % 7, 0, "i8", commutative=True)),
    (INTEGERS, lambda: dc.Monoid("times", lambda a, b: a * b % 97, 1, "i8", commutative=True)),
    (FLOATS, lambda: dc.Monoid("angle", lambda a, b: (a + b) % math.tau, 0, "f8")),
    (FLOATS, lambda: dc.Monoid("turn", lambda a, b: (a + b) % 360, 0, "f8")),
    (FLOATS, lambda: dc.Monoid("speeds", lambda a, b: (a + b) / (1 + a * b), 0, "f8")),
    (FLOATS, lambda: dc.Monoid("parallel", lambda a, b: 1 / (1 / a + 1 / b), np.inf, "f8")),
    (INTEGERS, lambda: dc.Monoid("or", np.bitwise_or, 0, "i8", commutative=True)),
    (INTEGERS, lambda: dc.Monoid("and", np.bitwise_and, -1, "i8", commutative=True)),
    (INTEGERS, lambda: dc.Monoid("xor", np.bitwise_xor, 0, "i8", commutative=True)),
    (ALL, lambda: dc.Monoid("any", np.logical_or, False, "?", lift=lambda x: x != 0)),
    ("?bhilBHI", lambda: dc.Monoid("parity", np.logical_xor, 0, "i4")),
    ("?", lambda: dc.Monoid("all", np.logical_and, True, "?", commutative=True)),
    (FLOATS, lambda: dc.Monoid("last", lambda a, b: np.where(np.isnan(b), a, b), np.nan, "f8")),
    (FLOATS, lambda: dc.Monoid("first", lambda a, b: np.where(np.isnan(a), b, a), np.nan, "f8")),
    (FLOATS, lambda: dc.Monoid("where", lambda a, b: np.where(a > b, a, b), -np.inf, "f8")),
    # Text of up to eight letters has the order of the number that its bytes are.
    ("L", lambda: dc.Monoid("text", np.maximum, 0, "u8", commutative=True)),
    (ALL, lambda: dc.Monoid("logs", np.maximum, -np.inf, "f8", lift=lambda x: np.log(x + 0.0))),
    (
        FLOATS,
        lambda: dc.Monoid("logs", lambda a, b: np.where(a > b, a, b), -np.inf, "f8", lift=np.log),
    ),
    (COMPLEX, affine),
    (ALL, lambda: affine(lift=lambda x: (0.5, x * 0.1))),
    (
        "fd",
        lambda: fields("var", welford, (0, 0, 0), "i8,f8,f8", lambda x: (1, x, 0),
                       lambda s: s[2] / (s[0] - 1), commutative=True),
    ),
    (
        FLOATS,
        lambda: fields("var", welford, (0, 0, 0), "f4,f4,f4", lambda x: (1, x, 0),
                       lambda s: s[2] / s[0], commutative=True),
    ),
    (
        FLOATS,
        lambda: fields("kahan", kahan, (0, 0), "f8,f8", lambda x: (x * 0.1, x * 1e-17),
                       lambda s: s[0] + s[1], commutative=True),
    ),
    (
        FLOATS,
        lambda: fields("rotations", quaternion, (1, 0, 0, 0), ("f8", (4,)), rotation,
                       lambda q: q[..., 0]),
    ),
    (
        FLOATS,
        lambda: fields("product", lambda a, b: a @ b, np.eye(2), ("f8", (2, 2)),
                       lambda x: np.stack([x, x + 1, x * 0, 2 - x], -1).reshape(-1, 2, 2),
                       lambda m: m[..., 0, 1]),
    ),
    (
        COMPLEX,
        lambda: fields("argmin", least, (np.inf, -1), "f8,i8",
                       lambda x: (x.real, x.imag.astype("i8")), lambda s: s[1]),
    ),
    (
        FLOATS,
        lambda: fields("runs", best_run, (0, -np.inf, -np.inf, -np.inf), "f8,f8,f8,f8",
                       lambda x: (x, x, x, x), lambda s: s[3]),
    ),
    (
        FLOATS,
        lambda: fields("softmax", softmax, (-np.inf, 0), "f8,f8", lambda x: (x, 1),
                       lambda s: s[0] + np.log(s[1]), commutative=True),
    ),
    (
        ALL,
        lambda: fields("groups", join, (False, False, 0, False), "?,?,i8,?",
                       lambda x: (x > 0, x > 0, x > 0, True), lambda s: s[2]),
    ),
    (
        COMPLEX,
        lambda: fields("weighted", weighted, (0, 0), "f8,f8", lambda x: (x.real, x.imag),
                       lambda s: s[0], commutative=True),
    ),
    (
        INTEGERS,
        lambda: fields("hash", hashed, (0, 1), "u8,u8",
                       lambda x: (x.astype("u8"), 1099511628211), lambda s: s[0]),
    ),
    (
        COMPLEX,
        lambda: fields("interval", lambda a, b: (np.minimum(a[0], b[0]), np.maximum(a[1], b[1])),
                       (np.inf, -np.inf), "f8,f8", lambda x: (x.real, x.imag),
                       lambda s: s[1] - s[0], commutative=True),
    ),
    (
        FLOATS,
        lambda: fields("mean", lambda a, b: (a[0] + b[0], a[1] + b[1]), (0, 0), "f8,i8",
                       lambda x: (x, 1), lambda s: s[0] / s[1], commutative=True),
    ),
    (
        FLOATS,
        lambda: fields("top", lambda a, b: np.sort(np.concatenate([a, b], -1), -1)[..., 3:],
                       -np.inf, ("f4", (3,)),
                       lambda x: np.stack([x * 0 - np.inf, x * 0 - np.inf, x], -1),
                       lambda v: (v[..., 2], v[..., 1], v[..., 0]), commutative=True),
    ),
    # Nobody sees the second field, nor what the first is beyond 7.
    (
        "BHIL",
        lambda: fields("upto", lambda a, b: (a[0] + b[0], a[1]), (0, 5), "i8,i8",
                       lambda x: (x, x), lambda s: np.minimum(s[0], 7), commutative=True),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("elements", "make"), GOOD)
def test_a_monoid_that_keeps_the_laws_is_taken(elements: str, make: Any) -> None:
    monoid = make()
    for dtype in elements:
        dc.reduce(da.empty(3, dtype=dtype), monoid)
        dc.scan(da.empty(3, dtype=dtype), monoid)


def test_functions_that_fail_on_samples_are_taken() -> None:
    def picky(x: Any) -> Any:
        if (x < 0).any():
            raise LookupError("negative")
        return x

    def fail(a: Any, b: Any) -> Any:
        if len(a) > 2:
            raise LookupError("long")
        return a + b

    dc.reduce(da.zeros(3), dc.Monoid("picky", np.maximum, 0, "f8", lift=picky))
    dc.Monoid("fail", fail, 0, "f8")


BAD = [
    (
        lambda: dc.Monoid("mx", np.maximum, 0.0, "f8", commutative=True),
        r"'mx' has the identity 0\.0, which is not neutral: with a = -1\.75, combine\(identity, "
        r"a\) is 0\.0, and a is -1\.75; check=False takes it",
    ),
    (
        lambda: dc.Monoid("middle", lambda a, b: (a + b) / 2, 0, "f8"),
        r"'middle' is not associative: with a = 0\.0, b = 0\.0, c = 1\.0, combine\(combine\(a, "
        r"b\), c\) is 0\.5, and combine\(a, combine\(b, c\)\) is 0\.25; check=False",
    ),
    (lambda: dc.Monoid("middle", lambda a, b: (a + b) / 2, 0, "f2"), "not associative"),
    (lambda: dc.Monoid("minus", np.subtract, 0, "i8"), "not associative"),
    (lambda: dc.Monoid("nand", lambda a, b: ~(a & b), False, "?", check=True), "not neutral"),
    (lambda: dc.Monoid("least", np.minimum, 0, "i4"), "not neutral.* a = 1, .* is 0, and a is 1;"),
    (lambda: dc.Monoid("first", lambda a, b: a, 0, "f4"), r"combine\(identity, a\) is 0.0, and a"),
    (lambda: dc.Monoid("second", lambda a, b: b, 0, "f4"), r"combine\(a, identity\) is 0.0, and a"),
    (lambda: dc.Monoid("product", np.multiply, 0, "f8"), "not neutral"),
    (lambda: dc.Monoid("total", np.add, np.inf, "f8"), "identity inf, which is not neutral"),
    (lambda: dc.Monoid("power", np.power, 1, "f8"), "not associative"),
    (lambda: dc.Monoid("turned", lambda a, b: a * b.conj(), 1, "c16"), "not associative"),
    (
        lambda: dc.Monoid("last", lambda a, b: np.where(b != 0, b, a), 0, "i8", commutative=True),
        r"'last' does not commute: with a = 1, b = 2, combine\(a, b\) is 2, and .* is 1;",
    ),
    (lambda: dc.reduce(da.zeros(3, dtype="c16"), affine(commutative=True)), "commute: with a = "),
    (
        lambda: dc.scan(da.zeros(3, dtype="c16"), affine(identity=(1, 1), check=True)),
        "not neutral",
    ),
    (
        lambda: dc.scan(
            da.zeros(3, dtype="c8"),
            affine(combine=lambda f, g: (f[0] * g[0], g[0] * f[1] - g[1])),
        ),
        r"not associative: with a = \(0\.0, 0\.0\) \(of 0j\), b = .*, c = \(0\.3125, 1\.0\) \(of ",
    ),
    (
        lambda: dc.reduce(
            da.zeros(3),
            dc.Monoid("hold", lambda a, b: np.maximum(a * 2, b) / 2, 0, ("f8", (2,)),
                      lift=lambda x: np.stack([x, x], -1), finalize=lambda v: v[..., 0]),
        ),
        "a = ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), BAD)
def test_a_monoid_that_breaks_a_law_is_refused_with_what_shows_it(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_law_may_hold_for_some_elements_only() -> None:
    high = dc.Monoid("high", np.maximum, 0, "f8", lift=lambda x: x * 1.0)
    x = da.arange(1, 7, chunks=2)
    assert dc.reduce(x.astype("u1"), high).compute() == 6
    for call in (dc.reduce, dc.scan):
        with pytest.raises(ValueError, match=r"not neutral: with a = -1\.0 \(of -1\)"):
            call(-x, high)


def test_what_is_not_checked_is_taken() -> None:
    mx = dc.Monoid("mx", np.maximum, 0.0, "f8", commutative=True, check=False)
    x = np.array([3, 1, 4, 1, 5.0])
    np.testing.assert_array_equal(
        dc.scan(da.from_array(x, chunks=2), mx).compute(), np.maximum.accumulate(x)
    )
    dc.Monoid("one", np.add, 1, "f8", check=False)
    later = affine(commutative=True, check=False)
    dc.reduce(da.zeros(3, dtype="c16"), later)


def test_laws_are_tried_once_for_a_monoid_and_a_dtype() -> None:
    calls: Counter[str] = Counter()

    def add(a: Any, b: Any) -> Any:
        calls["combine"] += 1
        return a + b

    monoid = dc.Monoid("counted", add, 0, "f8", lift=lambda x: x * 1.0)
    laws.check.cache_clear()
    before = calls["combine"]
    dc.reduce(da.zeros(3), monoid)
    tried = calls["combine"]
    assert tried > before
    for _ in range(3):
        dc.reduce(da.zeros((3, 3)), monoid, axis=0)
        dc.scan(da.zeros(5), monoid)
    assert calls["combine"] == tried
    dc.reduce(da.zeros(3, dtype="i4"), monoid)
    assert calls["combine"] > tried


def test_chunks_are_not_looked_at(xp: Any) -> None:
    x = to_chunks(xp, np.arange(6.0), 2).map_blocks(fail, dtype="f8", meta=xp.empty(0))
    monoid = dc.Monoid(
        "total", np.add, 0, "f8", lift=lambda x: x + 0, cuda={"lift": "x", "combine": "a + b"}
    )
    assert dc.reduce(x, monoid).dtype == np.float64
    with pytest.raises(LookupError, match="computed"):
        dc.reduce(x, monoid).compute(scheduler="synchronous")


def fail(block: Any) -> Any:
    raise LookupError("computed")


def test_catalogued_monoids_keep_the_laws() -> None:
    """The library's own rows would be taken: the tries are no stricter than they have to be."""
    for row in (
        programs_list.MAX,
        programs_list.MIN,
        programs_list.PROD,
        programs_list.SUM,
        programs_list.LOGADDEXP,
    ):
        for dtype in map(np.dtype, "efd"):
            (identity,), (kind,) = row.identity(dtype), row.dtypes(dtype)
            dc.Monoid(row.name, row.fields[0].ufunc, identity, kind, commutative=True)
