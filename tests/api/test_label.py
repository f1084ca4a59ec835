"""label against SciPy's, in any chunks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from support.strategies import chunkings

import dask_coop as dc
from dask_coop.graph.pictures import regions


def check(xp: Any, array: Any, sizes: Any, structure: Any = None) -> None:
    x = to_chunks(xp, array, sizes)
    labels, count = dc.label(x, structure)
    expected, number = ndimage.label(array != 0, structure)
    assert labels.chunks == x.chunks
    assert labels.dtype == "i4"
    np.testing.assert_array_equal(to_numpy(xp, labels), expected)
    assert to_numpy(xp, count) == number


@st.composite
def pictures(draw: Any) -> tuple[Any, Any, Any]:
    """Draw a picture of up to four dimensions, its chunks, and a symmetric structure or none."""
    sides = tuple(draw(st.lists(st.integers(1, 7), min_size=0, max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    array = np.asarray(rng.random(sides) < draw(st.sampled_from([0.2, 0.5, 0.8])))
    near = np.asarray(rng.random((3,) * len(sides)) < draw(st.sampled_from([0.3, 0.6, 1])))
    structure = draw(st.sampled_from([None, near | np.flip(near)]))
    return array, draw(chunkings(sides)), structure


@given(pictures())
def test_labels_are_scipys_to_the_last_number(xp: Any, picture: tuple[Any, Any, Any]) -> None:
    check(xp, *picture)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8"])
def test_what_is_not_zero_is_labelled(xp: Any, dtype: str) -> None:
    array = np.array([[0, 1, 1, 0], [1, 0, 0, 1]]).astype(dtype)
    if dtype[0] == "f":
        array[0, 1:3] = np.nan, 1e-7
    check(xp, array, 1)


def test_a_region_that_winds_through_all_chunks_is_one(xp: Any) -> None:
    array = np.zeros((41, 60), "?")
    array[::2] = True
    array[1::4, -1] = array[3::4, 0] = True
    labels, count = dc.label(to_chunks(xp, array, (7, 8)))
    assert to_numpy(xp, count) == 1
    np.testing.assert_array_equal(to_numpy(xp, labels), array)


def test_corners_connect_only_where_the_structure_says_so(xp: Any) -> None:
    array = np.eye(6, dtype="?")[:, ::-1]
    for structure, number in ((None, 6), (np.ones((3, 3)), 1), (np.eye(3), 6)):
        check(xp, array, 2, structure)
        assert to_numpy(xp, dc.label(to_chunks(xp, array, 2), structure)[1]) == number


def test_empty_chunks_part_no_region(xp: Any) -> None:
    check(xp, np.ones((4, 6), "?"), ((2, 0, 2), (0, 3, 0, 3, 0)))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_nothing_has_no_regions(xp: Any, shape: tuple[int, ...]) -> None:
    check(xp, np.zeros(shape), -1)


def test_numbers_fit_the_array() -> None:
    # SciPy's rule, of as many elements as there may be regions.
    assert dc.label(da.zeros((2**31 - 3,), chunks=2**30))[0].dtype == "i4"
    assert dc.label(da.zeros((2**31 - 2,), chunks=2**30))[0].dtype == "i8"


def test_only_faces_travel() -> None:
    x = da.ones((600, 600), chunks=100)
    labels, _ = dc.label(x)
    faces = [key for key in labels.dask if "label-faces" in str(key[0])]
    results = dask.get(labels.dask, faces)
    assert len(results) == 36
    assert all(sum(plane.size for plane in found.values()) == 400 for found in results)


def test_what_cannot_be_labelled_is_refused() -> None:
    x = da.ones((3, 4), chunks=2)
    with pytest.raises(TypeError, match="got dtype complex128"):
        dc.label(x * 1j)
    with pytest.raises(dc.Refused, match="MaskedArray"):
        dc.label(da.ma.masked_equal(x, 2))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        dc.label(x[x > 0])
    with pytest.raises(ValueError, match=r"shape \(3, 3\), got \(3,\)"):
        dc.label(x, np.ones(3))
    with pytest.raises(ValueError, match="symmetric"):
        dc.label(x, [[1, 0, 0], [0, 1, 0], [0, 0, 0]])


def test_chunks_that_turn_out_to_be_masked_are_refused() -> None:
    x = da.ones(4, chunks=2).map_blocks(np.ma.masked_equal, 1, meta=np.ones(0))
    with pytest.raises(dc.Refused, match="label does not take"):
        dc.label(x)[1].compute()


def test_numpy_chunks_without_scipy_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[cpu\]"):
        dc.label(da.ones(4, chunks=2))[0].compute(scheduler="synchronous")


def test_groups_find_the_same_first_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the last of several assignments need not be the one that stays."""
    array = np.random.default_rng(0).random((40, 50)) < 0.5
    labels, place = ndimage.label(array)[0], ((3, 90), (7, 80))
    expected = regions.firsts_of(labels, place)
    monkeypatch.setattr(regions.chunks, "kind", lambda x: "cupy")
    np.testing.assert_array_equal(regions.firsts_of(labels, place), expected)
