"""Distinct elements of CuPy chunks by hash tables: kernel_distinct.cuh beside NumPy's unique."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from dask_coop.chunks.distinct import distinct as monoid_of

pytestmark = pytest.mark.gpu

DTYPES = ("i4", "u4", "f4", "i8", "u8", "f8")

#: Around tiles of elements of 4 and of 8 bytes.
SIZES = (40_001, 40_959, 40_960, 40_961, 45_056, 49_153, (1 << 20) + 3)

#: Distinct elements that all tables have room for.
FEW = 4_000

COUNTS, VALUES = monoid_of(False, True, True), monoid_of(False, False, True)


@pytest.fixture(name="unique")
def _unique(cp: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module("dask_coop.chunks.cupy.unique")
    monkeypatch.setattr(module, "LEAST", 1)
    # Other integers of so small a range are counted by bins.
    monkeypatch.setattr(module, "_counted", lambda monoid, x: None)
    return module


@pytest.fixture(name="tables", params=[(1, 8_000), (256, 64), (512, 16_000), (7, 2_000)])
def _tables(request: pytest.FixtureRequest, unique: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tables of some size count the keys of some buckets."""
    monkeypatch.setattr(unique, "_tune", lambda *given: request.param)


def elements(dtype: str, size: int, few: int = FEW) -> Any:
    """Return elements far apart, with those among them that a kernel may take for something."""
    rng = np.random.default_rng(size)
    kind, bits = dtype[0], 8 * int(dtype[1])
    pool = rng.integers(0, 2**bits, few, dtype=f"u{dtype[1]}").view(dtype)
    if kind == "f":
        pool = rng.standard_normal(few).astype(dtype)
        pool[:6] = np.nan, -np.nan, 0.0, -0.0, np.inf, np.finfo(dtype).smallest_subnormal
        pool[6:8] = np.array([-1, -3], f"i{dtype[1]}").view(dtype)
    else:
        pool[:4] = np.array([0, -1, 1, -2], f"i{dtype[1]}").view(dtype)
    return pool[rng.integers(0, few, size)]


def assert_counted(unique: Any, x: Any, host: Any, *, by_hash: bool = True) -> None:
    values, counts = np.unique(host, return_counts=True)
    for monoid, expected in ((COUNTS, (values, counts)), (VALUES, (values,))):
        assert (unique._hashed(monoid, x.reshape(-1)) is not None) is by_hash
        found = unique.distinct(None, monoid, x)
        assert len(found) == len(expected)
        for mine, numpys in zip(found, expected, strict=True):
            assert mine.dtype == numpys.dtype
            np.testing.assert_array_equal(mine.get(), numpys)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_few_of_any_dtype_and_size(cp: Any, unique: Any, dtype: str, size: int) -> None:
    host = elements(dtype, size)
    assert_counted(unique, cp.asarray(host), host)
    # From an address that is no multiple of 16 bytes.
    assert_counted(unique, cp.asarray(host)[1:], host[1:])


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("dtype", ["i4", "f8"])
@pytest.mark.parametrize("share", [0.5, 0.99, 1])
def test_one_element_may_be_most(cp: Any, unique: Any, dtype: str, share: float) -> None:
    host = elements(dtype, 500_000)
    host[np.random.default_rng(1).random(host.size) < share] = 77
    assert_counted(unique, cp.asarray(host), host)
    assert_counted(unique, cp.asarray(np.sort(host)), host)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("dtype", ["u4", "f4", "i8"])
@pytest.mark.parametrize("tables", [(1, 64), (256, 64)], indirect=True)
def test_more_than_tables_hold_are_sorted(
    cp: Any, unique: Any, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    host = np.arange(100_000, dtype=dtype)
    assert_counted(unique, cp.asarray(host), host, by_hash=False)
    # Where the sample says that they are few.
    monkeypatch.setattr(unique, "estimate", lambda x: 10.0)
    host = np.random.default_rng(2).integers(0, 2**30, 1 << 20).astype(dtype)
    assert_counted(unique, cp.asarray(host), host, by_hash=False)


@pytest.mark.usefixtures("tables")
def test_large_chunks_are_counted_by_slabs(
    cp: Any, unique: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique, "_SLAB", 1 << 17)
    host = elements("i8", (1 << 19) + 5)
    assert_counted(unique, cp.asarray(host), host)


@pytest.mark.usefixtures("tables")
def test_every_run_gives_the_same(cp: Any, unique: Any) -> None:
    x = cp.asarray(elements("f4", 300_000))
    first = unique.distinct(None, COUNTS, x)
    for _ in range(5):
        for one, other in zip(first, unique.distinct(None, COUNTS, x), strict=True):
            assert (one.view("u1") == other.view("u1")).all()


@pytest.mark.usefixtures("tables")
def test_nan_that_are_not_equal_are_kept_apart(cp: Any, unique: Any) -> None:
    host = elements("f4", 100_000)
    found = unique.distinct(None, monoid_of(False, True, False), cp.asarray(host))
    expected = np.unique(host, return_counts=True, equal_nan=False)
    for mine, numpys in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.get(), numpys)


def test_halves_are_counted_by_bins(cp: Any) -> None:
    unique = importlib.import_module("dask_coop.chunks.cupy.unique")
    host = np.arange(1 << 16, dtype="u2").repeat(3).view("f2")
    for part in (host, host[50_000:60_000]):
        found = unique._counted(COUNTS, cp.asarray(part))
        for mine, numpys in zip(found, np.unique(part, return_counts=True), strict=True):
            assert mine.dtype == numpys.dtype
            np.testing.assert_array_equal(mine.get(), numpys)
    assert unique._counted(monoid_of(False, True, False), cp.asarray(host)) is None


def test_estimates_are_near_and_choose_tables(cp: Any, unique: Any) -> None:
    from dask_coop.cuda.devices import usual
    from dask_coop.cuda.programs import select as programs

    rng = np.random.default_rng(3)
    for few in (1, 2, 1_000, 50_000, 1_000_000):
        x = cp.asarray(rng.integers(0, few, 1 << 22))
        for elements in (x, cp.where(x % 2 == 0, x, 0), cp.sort(x)):
            there = int(cp.unique(elements).size)
            assert 0.8 * there <= unique.estimate(elements) <= 1.25 * there + 1
    gpu = usual("sm_90")
    for dtype in map(np.dtype, DTYPES):
        for about in (1.0, 4_000.0, 20_000.0, 1e6, 2e6, 4e6):
            buckets, slots = unique._tune(gpu, dtype, about)
            assert about < 0.6 * buckets * slots
            assert programs.table_bytes(dtype, slots) <= gpu.shared_bytes
            assert buckets <= programs.DEAL_THREADS
        assert unique._tune(gpu, dtype, 1e8) is None
