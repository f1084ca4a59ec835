"""Packed numbers are unpacked in one pass, to the bits that xarray's functions give."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_coop.files import unpacking
from dask_coop.files.unpacking import Unpacking, is_unpacking

variables = pytest.importorskip("xarray.coding.variables")
pytest.importorskip("numba")


def mask(fills: list[Any], dtype: str) -> partial[Any]:
    nan = np.dtype(dtype).type(np.nan)
    return partial(
        variables._apply_mask,
        encoded_fill_values=fills,
        decoded_fill_value=nan,
        dtype=np.dtype(dtype),
    )


def scaled(scale: Any, offset: Any, dtype: str) -> partial[Any]:
    return partial(
        variables._scale_offset_decoding,
        scale_factor=scale,
        add_offset=offset,
        dtype=np.dtype(dtype),
    )


FACTORS = [None, 0.01, 3, np.float32(0.1), np.float64(0.1), np.float64(1e-30)]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each array that the loop unpacks."""
    sizes: list[int] = []
    loop = unpacking._loop()
    assert loop is not None

    def counted(codes: Any, *rest: Any) -> None:
        sizes.append(codes.size)
        loop(codes, *rest)

    monkeypatch.setattr(unpacking, "_loop", lambda: counted)
    monkeypatch.setattr(unpacking, "_FEWEST", 1)
    return sizes


@pytest.mark.parametrize("offset", FACTORS)
@pytest.mark.parametrize("scale", FACTORS)
@pytest.mark.parametrize(
    ("codes", "dtype"), [("i2", "f4"), ("u2", "f8"), ("i1", "f4"), ("i4", "f8")]
)
def test_bits_are_xarrays(codes: str, dtype: str, scale: Any, offset: Any, runs: list[int]) -> None:
    limits = np.iinfo(codes)
    x = np.random.default_rng(1).integers(limits.min, limits.max, (30, 41), codes, endpoint=True)
    x[3] = limits.min
    for fills in ([x.dtype.type(limits.min)], [float(limits.min)], None):
        steps = [scaled(scale, offset, dtype)]
        if fills is not None:
            steps.insert(0, mask(fills, dtype))
        expected = x
        for step in steps:
            expected = step(expected)
        got = pickle.loads(pickle.dumps(Unpacking(tuple(steps))))(x)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
        assert runs.pop() == x.size
    assert not runs


@given(st.floats(allow_nan=False, width=32), st.floats(allow_nan=False, width=32))
def test_any_factor_gives_the_bits_of_numpy(scale: float, offset: float) -> None:
    x = np.arange(-128, 128, dtype="i1").repeat(256)
    steps = mask([np.int8(-1)], "f4"), scaled(scale, offset, "f4")
    with np.errstate(all="ignore"):
        expected = steps[1](steps[0](x))
    np.testing.assert_array_equal(Unpacking(steps)(x), expected)


@pytest.mark.parametrize(
    ("x", "steps"),
    [
        (np.arange(9, dtype="f4"), (mask([3.0], "f4"), scaled(2.0, None, "f4"))),
        (np.arange(9, dtype="i4"), (mask([3], "f4"),)),
        (np.arange(9, dtype=">i2"), (mask([3], "f4"),)),
        (np.arange(18, dtype="i2")[::2], (mask([4], "f4"),)),
        (np.arange(9, dtype="i2"), (mask([3, 4], "f4"),)),
        (np.arange(9, dtype="i2"), (mask([3.5], "f4"),)),
        (np.arange(9, dtype="i2"), (mask([1e20], "f4"),)),
        (np.arange(9, dtype="i2"), (mask([3], "f4"), scaled(2.0, 1.0, "f8"))),
        (np.arange(9, dtype="i2"), (mask([3], "f4"), scaled(np.longdouble(2), 1.0, "f4"))),
        (np.arange(9, dtype="i2"), (scaled(2.0, 1.0, "f4"), scaled(2.0, 1.0, "f4"))),
    ],
    ids=["floats", "wide", "bytes", "stride", "fills", "half", "far", "dtypes", "long", "twice"],
)
def test_other_steps_are_xarrays(x: Any, steps: tuple[Any, ...], runs: list[int]) -> None:
    expected = x
    for step in steps:
        expected = step(expected)
    got = Unpacking(steps)(x)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    assert not runs


def test_steps_are_recognised_by_their_functions() -> None:
    assert is_unpacking(mask([1], "f4"))
    assert is_unpacking(scaled(1.0, None, "f4"))
    assert not is_unpacking(np.sqrt)
    assert not is_unpacking(partial(np.add, 1))
    assert not is_unpacking(None)
