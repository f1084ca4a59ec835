"""Codes of labels of CuPy chunks, by one kernel, against those by NumPy's functions."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.algebra.bins import find_steps
from dask_coop.chunks.labels import Coder, Intervals, Values

pytestmark = pytest.mark.gpu

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")

#: Groups that follow one another from 0 or from elsewhere, close to one another or far apart, and
#: some that not every dtype of labels can have.
GROUPS: dict[str, Any] = {
    "from 0": np.arange(5),
    "from 0, as labels are": np.arange(5, dtype="i4"),
    "from 1": np.arange(1, 13),
    "from below 0": np.arange(-3, 6),
    "with gaps": np.array([0, 2, 7, 11]),
    "one": np.array([5]),
    "far apart": np.array([-(10**7), 3, 10**8]),
    "very far apart": np.array([-(2**62), -5, 4, 2**62]),
    "beyond int64": np.array([0, 3, 2**63 + 5], "u8"),
    "all of int8": np.arange(-128, 128).astype("i2"),
    "the ends of int8": np.array([-128, 3, 127], "i1"),
    "bool": np.array([False, True]),
    "many": np.arange(300),
    "floats": np.array([0.5, 1, 1.5, 3]),
    "float16": np.array([0.5, 1, 2], "f2"),
    "infinities": np.array([-np.inf, -3, 0.0, 2, np.inf]),
    "with NaN": np.array([1, 3, np.nan], "f4"),
    "none": np.array([]),
}


def labels_of(name: str, size: int = 4099) -> Any:
    """Return labels from -20 to 20, among them the dtype's ends."""
    dtype, rng = np.dtype(name), np.random.default_rng(size)
    if dtype.kind == "b":
        return rng.integers(0, 2, size).astype(dtype)
    if dtype.kind == "f":
        labels = rng.integers(-40, 40, size).astype(dtype) / dtype.type(2)
        labels[::7] = np.nan
        labels[3:8] = np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).tiny
        return labels
    info = np.iinfo(dtype)
    labels = rng.integers(max(-20, info.min), 20, size).astype(dtype)
    labels[3:5] = info.min, info.max
    return labels


def cleaned(codes: Any, n: int) -> Any:
    """Return codes with -1 for all that are of no group."""
    codes = np.asarray(codes).astype("i8")
    return np.where((codes >= 0) & (codes < n), codes, -1)


def assert_codes(cp: Any, coder: Coder, labels: list[Any], chunks: list[Any]) -> Any:
    from dask_coop.chunks.cupy import backend

    n = int(np.prod(coder.shape))
    found, first = backend.codes(coder, chunks)
    assert found.dtype == np.int32
    assert found.shape == np.broadcast_shapes(*(x.shape for x in labels))
    assert 0 <= first <= max(4, n // 8)
    ours = cleaned(cp.asnumpy(found).astype("i8") - first, n)
    np.testing.assert_array_equal(ours, cleaned(coder.codes(labels), n), strict=True)
    return found


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("name", DTYPES)
def test_codes_of_every_dtype(cp: Any, name: str, groups: str) -> None:
    values = GROUPS[groups]
    shuffled = np.random.default_rng(1).permutation(values)
    order = np.argsort(shuffled, kind="stable")
    for labels in (labels_of(name), labels_of(name)[:1], labels_of(name)[:0]):
        for of in (Values(values), Values(shuffled[order], order)):
            assert_codes(cp, Coder((of,), (len(values),)), [labels], [cp.asarray(labels)])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_codes_of_bins(cp: Any, name: str, right: bool) -> None:
    labels = labels_of(name)
    for edges in ([0, 1, 5], [-3.5, 0, 2, 2.5, 9], [5, 2, 0], [-np.inf, 0, np.inf], [0]):
        n = len(edges) - 1
        of = Intervals(find_steps(np.array(edges), right, labels.dtype), n)
        assert_codes(cp, Coder((of,), (n,)), [labels], [cp.asarray(labels)])


def test_more_groups_than_shared_memory_holds(cp: Any) -> None:
    rng = np.random.default_rng(2)
    values = np.sort(rng.choice(10**9, 50_000, replace=False))
    labels = np.concatenate([values, rng.integers(0, 10**9, 5000)])
    for name in ("i4", "i8", "f8"):
        coder = Coder((Values(values),), (len(values),))
        assert_codes(cp, coder, [labels.astype(name)], [cp.asarray(labels.astype(name))])


@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("name", ["i4", "u4"])
def test_labels_that_are_codes_are_not_copied(cp: Any, name: str, first: int) -> None:
    labels = np.random.default_rng(3).integers(-2, 9, (30, 40)).astype(name)
    chunk = cp.asarray(labels)
    coder = Coder((Values(np.arange(first, first + 7)),), (7,))
    found = assert_codes(cp, coder, [labels], [chunk])
    assert found.data.ptr == chunk.data.ptr


def test_any_strides(cp: Any) -> None:
    labels = np.random.default_rng(4).integers(-2, 9, (40, 50)).astype("i2")
    coder = Coder((Values(np.arange(1, 8)),), (7,))
    chunk = cp.asarray(labels)
    for view in (np.s_[::2, ::-1], np.s_[1:, 3:], np.s_[:, 5]):
        assert_codes(cp, coder, [labels[view]], [chunk[view]])
    assert_codes(cp, coder, [labels.T], [chunk.T])


def test_several_labels_some_of_them_broadcast_or_on_the_host(cp: Any) -> None:
    rng, shape = np.random.default_rng(5), (6, 50)
    labels = [
        rng.integers(-1, 5, shape).astype("i2"),
        np.broadcast_to(rng.integers(0, 9, 50) / 2, shape),
        np.broadcast_to(rng.integers(0, 3, (6, 1)), shape),
    ]
    values = Values(np.arange(4)), Values(np.array([0.5, 1, 3])), Values(np.array([0, 2]))
    coder = Coder(values, (4, 3, 2))
    chunks = [
        cp.asarray(labels[0]),
        cp.broadcast_to(cp.asarray(labels[1][0]), shape),
        cp.broadcast_to(cp.asarray(labels[2][:, :1]), shape),
    ]
    assert_codes(cp, coder, labels, chunks)
    assert_codes(cp, coder, labels, [chunks[0], labels[1], chunks[2]])
    known = Coder((values[0], None, values[2]), (4, 3, 2))
    codes = coder.groups[1].codes(labels[1])
    assert_codes(
        cp, known, [labels[0], codes, labels[2]], [chunks[0], cp.asarray(codes), chunks[2]]
    )


def lazy(cp: Any, array: Any, chunks: Any, on_gpu: bool = True) -> da.Array:
    x = da.from_array(array, chunks=chunks)
    if not on_gpu:
        return x
    return x.map_blocks(cp.asarray, dtype=x.dtype, meta=cp.zeros((0,) * x.ndim, x.dtype))


@pytest.mark.parametrize("name", DTYPES)
def test_groups_of_lazy_labels_of_every_dtype(cp: Any, name: str) -> None:
    labels = labels_of(name, 60_000)
    x = np.random.default_rng(6).standard_normal(labels.size).astype("f4")
    for expected in (
        np.arange(12),
        np.arange(3, 15),
        np.array([3, 1, 0, 7]),
        np.arange(1, 900),
        None,
    ):
        results = []
        for on_gpu in (False, True):
            operands = [lazy(cp, array, 40_000, on_gpu) for array in (x, labels)]
            funcs = ["sum", "mean", "max", "var", "nanvar", "count"]
            groups = {} if expected is None else {"expected_groups": expected}
            found, _ = dc.groupby_reduce(*operands, func=funcs, fill_value=-1, **groups)
            results.append([cp.asnumpy(part.compute()) for part in found])
        for ours, numpys in zip(results[1], results[0], strict=True):
            assert ours.dtype == numpys.dtype
            np.testing.assert_allclose(ours, numpys, 1e-5, 1e-6)


def test_groups_of_several_lazy_labels(cp: Any) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((300, 200)).astype("f4")
    land, month = rng.integers(-1, 40, (300, 200)).astype("i4"), rng.integers(0, 13, (300, 1))
    for axis in (None, 1):
        results = []
        for on_gpu in (False, True):
            y, by, of = (
                lazy(cp, a, (150, 200 if a.shape[1] > 1 else 1), on_gpu) for a in (x, land, month)
            )
            expected = np.arange(40), np.arange(1, 13)
            found, *_ = dc.groupby_reduce(
                y, by, of, func=["sum", "nanvar"], expected_groups=expected, axis=axis, fill_value=0
            )
            results.append([cp.asnumpy(part.compute()) for part in found])
        for ours, numpys in zip(results[1], results[0], strict=True):
            np.testing.assert_allclose(ours, numpys, 1e-5, 1e-6)


def test_labels_on_the_host_of_elements_on_the_gpu(cp: Any) -> None:
    rng = np.random.default_rng(8)
    x, labels = rng.standard_normal(5000), rng.integers(0, 9, 5000)
    for by in (labels, np.array(list("abcdefghi"))[labels]):
        ours, _ = dc.groupby_reduce(
            lazy(cp, x, 3000), da.from_array(by, 3000), func="sum", expected_groups=np.unique(by)
        )
        np.testing.assert_allclose(cp.asnumpy(ours.compute()), np.bincount(labels, x), 1e-12)
