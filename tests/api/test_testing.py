"""`dask_coop.testing` draws arrays in chunks and checks monoids."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_coop as dc
from dask_coop.testing import Chunked, arrays, check_monoid, chunkings, elements, shapes

LINES = st.tuples(st.integers(0, 40))


@given(arrays())
def test_arrays_are_cut_into_their_chunks(case: Chunked) -> None:
    x = case.lazy()
    assert isinstance(x, da.Array)
    assert x.chunks == case.chunks
    np.testing.assert_array_equal(x.compute(scheduler="synchronous"), case.array)


@given(shapes(2, 3).flatmap(lambda shape: st.tuples(st.just(shape), chunkings(shape))))
def test_chunks_add_up_to_the_shape(
    drawn: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]],
) -> None:
    shape, chunks = drawn
    assert tuple(map(sum, chunks)) == shape


@given(elements("f4", special=False))
def test_elements_are_finite_if_they_have_to_be(value: float) -> None:
    assert np.isfinite(value)
    assert np.float32(value) == value


def test_a_right_monoid_passes() -> None:
    check_monoid(dc.Monoid("xor", np.bitwise_xor, 0, "i8"), arrays(["i8"]), np.bitwise_xor.reduce)


def affine(f: Any, g: Any) -> Any:
    return f[0] * g[0], g[0] * f[1] + g[1]


def test_a_monoid_of_several_fields_passes() -> None:
    monoid = dc.Monoid(
        "affine",
        affine,
        (1, 0),
        "f8,f8",
        lift=lambda x: (x.real, x.imag),
        finalize=lambda f: f,
    )
    small = st.integers(-2, 2).map(lambda n: complex(n, 1 - n))
    check_monoid(monoid, arrays(["c16"], shape=LINES, values=small), examples=40)


def test_a_wrong_result_is_told() -> None:
    total = dc.Monoid("total", np.add, 0, "i8")
    with pytest.raises(AssertionError, match="differs from `expected`"):
        check_monoid(total, arrays(["i4"], shape=LINES), lambda x: x.sum() + 1)


def test_a_law_that_breaks_only_on_ones_own_elements_is_told() -> None:
    """Saturating sums with a sign are associative on the few small numbers that `Monoid` tries."""

    def add(a: Any, b: Any) -> Any:
        return np.clip(a + b, -100, 100)

    saturating = dc.Monoid("saturating", add, 0, "i8", commutative=True)
    with pytest.raises(AssertionError, match=r"differs|is not the result of reduce"):
        check_monoid(
            saturating, arrays(["i1"], shape=st.just((12,)), values=st.sampled_from([60, -60]))
        )
