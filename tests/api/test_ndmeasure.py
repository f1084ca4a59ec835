"""Measurements of regions against SciPy's, in any chunks."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from support.calls import refuse
from support.strategies import chunkings

from dask_coop import label, ndmeasure

STATISTICS = ("sum_labels", "mean", "variance", "standard_deviation", "median")
INDICES: dict[str, Any] = {"none": None, "one": 3, "several": [1, 2, 5], "table": [[3, 1], [4, 4]]}


def picture() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    # Distinct elements, of which SciPy chooses the same extrema.
    return rng.permutation(13 * 17).reshape(13, 17) / 7, rng.integers(0, 6, (13, 17))


def scipys(name: str, *args: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return getattr(ndimage, name)(*args)


@pytest.mark.parametrize("lazy", [False, True], ids=["known", "lazy"])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("name", [*STATISTICS, "minimum", "maximum"])
def test_statistics_are_scipys(xp: Any, name: str, index: Any, lazy: bool) -> None:
    array, labels = picture()
    of = to_chunks(xp, labels, (7, 5)) if lazy else labels
    result = getattr(ndmeasure, name)(to_chunks(xp, array, (5, 6)), of, index)
    expected = scipys(name, array, labels, index)
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=1e-13)
    whole = getattr(ndmeasure, name)(to_chunks(xp, array, (5, 6)))
    np.testing.assert_allclose(to_numpy(xp, whole), scipys(name, array), rtol=1e-13)


@pytest.mark.parametrize("index", [None, 3, [1, 2, 5]])
def test_places_are_scipys(xp: Any, index: Any) -> None:
    array, labels = picture()
    x, of = to_chunks(xp, array, (5, 6)), to_chunks(xp, labels, 8)
    low, high, first, last = (to_numpy(xp, part) for part in ndmeasure.extrema(x, of, index))
    for mine, theirs in zip(
        (low, high, first, last), scipys("extrema", array, labels, index), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    for name in ("minimum_position", "maximum_position", "center_of_mass"):
        found = to_numpy(xp, getattr(ndmeasure, name)(x, of, index))
        np.testing.assert_allclose(found, scipys(name, array, labels, index), rtol=1e-12)
        found = to_numpy(xp, getattr(ndmeasure, name)(x))
        np.testing.assert_allclose(found, scipys(name, array), rtol=1e-12)


@pytest.mark.parametrize("index", [None, 3, [1, 2, 5]])
def test_histograms_and_areas_are_scipys(xp: Any, index: Any) -> None:
    array, labels = picture()
    x, of = to_chunks(xp, array, (5, 6)), to_chunks(xp, labels, 8)
    counts = to_numpy(xp, ndmeasure.histogram(x, 3, 20, 6, of, index))
    expected = scipys("histogram", array, 3, 20, 6, labels, index)
    np.testing.assert_array_equal(counts, [*expected])
    found = to_numpy(xp, ndmeasure.area(x, of, index))
    np.testing.assert_array_equal(found, scipys("sum_labels", np.ones_like(array), labels, index))
    whole = to_numpy(xp, ndmeasure.histogram(x, 3, 20, 6))
    np.testing.assert_array_equal(whole, scipys("histogram", array, 3, 20, 6))


def test_labels_that_do_not_occur() -> None:
    array, labels = picture()
    for of in (labels, da.from_array(labels, chunks=6)):
        x = da.from_array(array.astype("i4"), chunks=6)
        for name, nothing in (("sum_labels", 0), ("mean", np.nan), ("minimum", 0), ("area", 0)):
            result = getattr(ndmeasure, name)(x, of, [9, 1, 7]).compute()
            np.testing.assert_array_equal(result[[0, 2]], nothing)
        assert ndmeasure.minimum(x, of, [9, 1]).dtype == "i4"
        assert not ndmeasure.maximum_position(x, of, 9).compute().any()
        assert not ndmeasure.histogram(x, 0, 9, 3, of, [9, 8]).compute().any()
        assert ndmeasure.mean(x, of, []).shape == (0,)


@given(st.data())
def test_boxes_are_scipys(data: Any) -> None:
    sides = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    array = rng.integers(0, 9, sides) * (rng.random(sides) < 0.5)
    for most in (0, 4):
        lazy = ndmeasure.find_objects(
            da.from_array(array, chunks=data.draw(chunkings(sides))), most
        )
        assert lazy.compute(scheduler="synchronous") == ndimage.find_objects(array, most)


def test_labels_of_regions_are_measured_without_computing_them() -> None:
    array, _ = picture()
    x = da.from_array(array, chunks=6)
    with dask.config.set(scheduler=refuse):
        labels, _ = label(x > 15)
        lazy = ndmeasure.center_of_mass(x, labels, [1, 2])
        boxes = ndmeasure.find_objects(labels)
    expected = ndimage.label(array > 15)[0]
    np.testing.assert_allclose(lazy.compute(), ndimage.center_of_mass(array, expected, [1, 2]))
    assert boxes.compute() == ndimage.find_objects(expected)


def test_what_cannot_be_measured_is_refused() -> None:
    x = da.ones((3, 4), chunks=2)
    with pytest.raises(TypeError, match="got dtype complex128"):
        ndmeasure.mean(x * 1j)
    with pytest.raises(ValueError, match=r"the shape of the picture, \(3, 4\), got \(4,\)"):
        ndmeasure.mean(x, np.ones(4), 1)
    with pytest.raises(TypeError, match="compute it first"):
        ndmeasure.mean(x, x, da.arange(3, chunks=2))
    with pytest.raises(TypeError, match="labels that are integers, got dtype float64"):
        ndmeasure.find_objects(x)


#: The functions that measure regions, and whose further arguments precede labels.
MEASURES: dict[str, tuple[int, ...]] = {
    name: (0, 5, 2) if name == "histogram" else ()
    for name in ndmeasure.__all__
    if name not in ("label", "find_objects")
}


@pytest.mark.parametrize("name", MEASURES)
def test_pictures_of_unknown_lengths_are_refused(name: str) -> None:
    x = da.arange(6, chunks=3)
    unknown, function = x[x > 0], getattr(ndmeasure, name)
    words = f"{name} needs to know the lengths of chunks of %s; x.compute_chunk_sizes"
    for index in (None, [1, 2]):
        with pytest.raises(ValueError, match=words % "input"):
            function(unknown, *MEASURES[name], unknown, index)
        with pytest.raises(ValueError, match=words % "labels"):
            function(x, *MEASURES[name], unknown, index)
    if name != "histogram":
        with pytest.raises(ValueError, match=words % "input"):
            function(unknown)
    with pytest.raises(ValueError, match=r"find_objects needs .* of labels; x.compute_chunk_sizes"):
        ndmeasure.find_objects(unknown)


@pytest.mark.parametrize("name", [name for name in MEASURES if name != "histogram"])
def test_pictures_without_axes_are_refused(name: str) -> None:
    x, function = da.from_array(np.array(3)), getattr(ndmeasure, name)
    words = rf"{name} takes input of one axis or more, got shape \(\); x.reshape\(1\) has one"
    for labels in (None, np.array(1)):
        with pytest.raises(ValueError, match=words):
            function(x, labels)
    with pytest.raises(ValueError, match="find_objects takes labels of one axis or more"):
        ndmeasure.find_objects(x)
