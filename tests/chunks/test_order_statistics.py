"""Order statistics of one chunk's lines, on both kinds of chunk, against NumPy's sort."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_coop.chunks.backend import backend_of
from dask_coop.chunks.cupy import program_sets
from dask_coop.cuda.programs import order_statistics as programs

FLOATS = ("f2", "f4", "f8")
DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", *FLOATS)
LISTED = frozenset(program_sets.everything())
#: About every border between strategies.
LENGTHS = (1, 2, 3, 7, 31, 32, 33, 64, 65, 127, 128, 365, 1023, 1024, 1025, 5000)


def medians(n: int) -> Any:
    """Return the table of ranks of a median: the middle one, or the two about the middle."""
    counts = np.arange(n + 1)
    table = np.stack([counts - 1, counts], 1) // 2
    return np.clip(table, 0, np.maximum(counts - 1, 0)[:, None])


def many(n: int, m: int) -> Any:
    """Return a table of ranks in no order."""
    drawn = np.random.default_rng(n * m).random((n + 1, m))
    return (drawn * np.arange(n + 1)[:, None]).astype("i8")


def lines_of(x: Any, axes: tuple[int, ...]) -> Any:
    kept = [d for d in range(x.ndim) if d not in axes]
    return x.transpose(*kept, *axes).reshape([x.shape[d] for d in kept] + [-1])


def expected(x: Any, axes: tuple[int, ...], ranks: Any) -> tuple[Any, Any]:
    lines = lines_of(x, axes)
    counts = np.asarray((~np.isnan(lines) if x.dtype.kind in "fmM" else lines == lines).sum(-1))
    own = np.minimum(ranks[counts], np.maximum(counts - 1, 0)[..., None])
    return np.moveaxis(np.take_along_axis(np.sort(lines), own, -1), -1, 0), counts


def assert_selects(xp: ModuleType, x: Any, axes: tuple[int, ...], ranks: Any) -> None:
    """Compare with NumPy's; `x` is NumPy's, and the chunk has its strides."""
    chunk = x
    if xp is not np:
        base = x if x.base is None else x.base
        moved = xp.asarray(base)
        offset = x.ctypes.data - base.ctypes.data
        assert moved.strides == base.strides
        chunk = xp.ndarray(x.shape, x.dtype, moved.data + offset, x.strides)
    before = x.copy()
    values, counts = backend_of(chunk).order_statistics(chunk, axes, ranks)
    assert isinstance(values, xp.ndarray)
    assert isinstance(counts, xp.ndarray)
    if xp is not np:
        np.testing.assert_array_equal(chunk.get(), before)
        values, counts = values.get(), counts.get()
    np.testing.assert_array_equal(x, before)
    wanted, left = expected(x, axes, ranks)
    assert (values.dtype, counts.dtype) == (x.dtype, np.dtype("i8"))
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(counts, left)


def numbers(dtype: str, size: int, nans: float = 0) -> Any:
    """Return elements of all magnitudes, with infinities and zeros of both signs among floats."""
    rng = np.random.default_rng(size)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(size) < 0.5
    if kind in "iu":
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, size, dtype, endpoint=True)
        x[rng.random(size) < 0.1] = limits.max
        x[rng.random(size) < 0.1] = limits.min
        return x
    with np.errstate(over="ignore"):
        x = (rng.standard_normal(size) * 10.0 ** rng.integers(-30, 30, size)).astype(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf], dtype)
    some = rng.random(size) < 0.2
    x[some] = rng.choice(special, some.sum())
    x[rng.random(size) < nans] = np.nan
    x[rng.random(size) < nans / 2] = -np.nan
    return x


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_of_every_length_and_dtype(xp: ModuleType, dtype: str, n: int) -> None:
    for nans in (0.0, 0.02, 0.6) if dtype in FLOATS else (0.0,):
        x = numbers(dtype, n * 70, nans)
        for ranks in (medians(n), many(n, 9)):
            assert_selects(xp, x.reshape(70, n), (1,), ranks)
            assert_selects(xp, x.reshape(n, 70), (0,), ranks)
            assert_selects(xp, x.reshape(2, n, 35), (1,), ranks)


@pytest.mark.parametrize("dtype", ["u1", "i4", "f2", "f4", "f8"])
@pytest.mark.parametrize("n", [29_000, 60_000, 200_001])
def test_long_lines(xp: ModuleType, dtype: str, n: int) -> None:
    for nans in (0.0, 0.3) if dtype in FLOATS else (0.0,):
        x = numbers(dtype, n * 3, nans)
        assert_selects(xp, x.reshape(3, n), (1,), medians(n))
        assert_selects(xp, x.reshape(n, 3), (0,), many(n, 9))


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ns]"])
@pytest.mark.parametrize("n", [3, 200, 40_000])
def test_dates(dtype: str, n: int) -> None:
    limits, rng = np.iinfo("i8"), np.random.default_rng(0)
    x = rng.integers(limits.min, limits.max, (6, n), endpoint=True)
    x[1, 1], x[2, :2], x[3], x[4, ::3] = limits.max, limits.min, limits.min, limits.min
    for ranks in (medians(n), many(n, 40)):
        assert_selects(np, x.view(dtype), (1,), ranks)
        assert_selects(np, x.view(dtype).T.copy(), (0,), ranks)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", ">u2", ">M8[s]"])
def test_other_byte_orders(dtype: str) -> None:
    x = np.random.default_rng(0).integers(-50, 50, (7, 60)).astype("i8").astype(dtype)
    if x.dtype.kind in "fM":
        x[2, :3] = x.dtype.type("nan" if x.dtype.kind == "f" else "NaT")
    for ranks in (medians(60), many(60, 4)):
        assert_selects(np, x, (1,), ranks)


SHAPE = (3, 4, 5, 6)


@pytest.mark.parametrize(
    "axes", [(), (0,), (1,), (3,), (0, 1), (1, 2), (0, 3), (1, 3), (0, 1, 2, 3)]
)
def test_any_axes_of_any_layout(xp: ModuleType, axes: tuple[int, ...]) -> None:
    x = numbers("f4", 16 * 360, 0.1).reshape([2 * n for n in SHAPE])
    n = int(np.prod([SHAPE[d] for d in axes]))
    halves = tuple(slice(k) for k in SHAPE)
    for view in (
        x[halves].copy(),
        x[halves].copy().T.copy().T,
        x[halves].copy().transpose(2, 0, 3, 1).copy().transpose(1, 3, 0, 2),
        x[halves],
        x[::2, ::-2, 1::2, ::-2],
        np.broadcast_to(x[:1, :4, :5, :1].copy(), SHAPE) if xp is np else x[halves].copy(),
    ):
        assert view.shape == SHAPE
        for ranks in (medians(n), many(n, 5)):
            assert_selects(xp, view, axes, ranks)


def assert_selects_indexed(xp: ModuleType, x: Any, index: Any) -> None:
    """Compare with lines that NumPy gathers; `x` is NumPy's, and the chunk has its strides."""
    chunk = x
    if xp is not np:
        base = x if x.base is None else x.base
        moved = xp.asarray(base)
        offset = x.ctypes.data - base.ctypes.data
        chunk = xp.ndarray(x.shape, x.dtype, moved.data + offset, x.strides)
    lines, n = x[..., index], index.shape[1]
    for ranks in (medians(n), np.broadcast_to([0, n // 2, n - 1], (n + 1, 3))):
        wanted, left = expected(lines, (x.ndim,), ranks)
        for at in (index,) if xp is np else (index, xp.asarray(index)):
            values, counts = backend_of(chunk).order_statistics(chunk, (x.ndim,), ranks, at)
            assert isinstance(values, xp.ndarray)
            if xp is not np:
                values, counts = values.get(), counts.get()
            assert (values.dtype, counts.dtype) == (x.dtype, np.dtype("i8"))
            np.testing.assert_array_equal(values, wanted)
            np.testing.assert_array_equal(counts, left)


@pytest.mark.parametrize("length", [1, 2, 5, 31, 32, 33, 64, 100, 365, 1024, 1025, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_of_rows_that_lie_apart(xp: ModuleType, dtype: str, length: int) -> None:
    rng = np.random.default_rng(length)
    n = 2 * length + 3
    x = numbers(dtype, n * 40, 0.1 if dtype in FLOATS else 0.0)
    some = np.stack([rng.permutation(n)[:length] for _ in range(2)])
    for lines in (
        x.reshape(n, 40).T,
        x.reshape(40, n),
        x.reshape(2, n, 20).transpose(0, 2, 1),
        x.reshape(20, n, 2).transpose(2, 0, 1),
        x.reshape(n, 40)[:, 37:1:-2].T,
    ):
        assert_selects_indexed(xp, lines, some)
    consecutive = np.arange(2 * length).reshape(2, length) + 1
    for lines in (x.reshape(n, 40).T, x.reshape(40, n)):
        for index in (consecutive, consecutive[:, ::-1]):
            assert_selects_indexed(xp, lines, index)


def test_rows_are_gathered_in_slabs(xp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    if xp is not np:
        from dask_coop.chunks.cupy import order_statistics as module

        monkeypatch.setattr(module, "_SLAB", 12_000)
    rng = np.random.default_rng(0)
    x = numbers("f4", 500 * 700, 0.05)
    for shape, axes in (
        ((500, 700), (1, 0)),
        ((5, 100, 700), (0, 2, 1)),
        ((7, 500, 100), (0, 2, 1)),
    ):
        lines = x.reshape(shape).transpose(axes)
        for groups, length in ((1, 90), (4, 25), (20, 3)):
            index = rng.integers(0, lines.shape[-1], (groups, length))
            assert_selects_indexed(xp, lines, index)


def test_lines_apart_in_memory_are_taken_in_slabs(
    xp: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers("f4", 60 * 50 * 40, 0.01)
    if xp is np:
        from dask_coop.chunks.numpy import order_statistics as module

        monkeypatch.setattr(module, "_BLOCK", 3000)
    else:
        from dask_coop.chunks.cupy import order_statistics as module

        monkeypatch.setattr(module, "_SLAB", 12_000)
        monkeypatch.setattr(module, "_TALLIES", 1)
    for axes in ((1,), (0, 2)):
        for shape in ((60, 50, 40), (3, 2000, 20)):
            n = int(np.prod([shape[d] for d in axes]))
            assert_selects(xp, x.reshape(shape), axes, medians(n))
    assert_selects(xp, numbers("f4", 240_000, 0.1).reshape(4, 60_000), (1,), many(60_000, 3))


@pytest.mark.parametrize("n", [5, 40, 365, 3000, 70_000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_lines_that_are_not_random(xp: ModuleType, dtype: str, n: int) -> None:
    x = np.empty((12, n), dtype)
    x[0], x[1], x[2], x[3], x[4], x[5] = 1.5, 0.0, -0.0, np.inf, -np.inf, np.nan
    x[6], x[7] = np.arange(n) % 2000, -(np.arange(n) % 2000)
    x[8], x[8, 3] = 7, -np.inf
    x[9], x[9, 2] = np.nan, 3
    x[10] = np.where(np.arange(n) % 2, 5, -5)
    x[11], x[11, :2] = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    for ranks in (medians(n), many(n, 20)):
        assert_selects(xp, x, (1,), ranks)
        assert_selects(xp, x.T.copy(), (0,), ranks)


def test_zeros_of_both_signs_are_in_order_on_gpus(xp: ModuleType) -> None:
    for n in (6, 200, 2000, 100_000):
        x = xp.zeros((2, n), "f4")
        x[:, ::2] = -0.0
        ranks = np.broadcast_to(np.array([0, n // 2 - 1, n // 2, n - 1]), (n + 1, 4))
        values, _ = backend_of(x).order_statistics(x, (1,), ranks)
        assert not values.any()
        if xp is not np:
            assert np.signbit(values.get()).T.tolist() == [[True, True, False, False]] * 2


@pytest.mark.parametrize("n", [1, 8, 100, 3000, 80_000])
def test_one_row_of_ranks_serves_all_counts(xp: ModuleType, n: int) -> None:
    x = numbers("f4", 4 * n, 0.2).reshape(4, n)
    x[2] = np.nan
    row = np.array([n - 1, 0, n // 2])
    assert_selects(xp, x, (1,), np.broadcast_to(row, (n + 1, 3)))


@pytest.mark.parametrize("n", [4, 100, 3000, 80_000])
def test_no_ranks_leave_the_counts(xp: ModuleType, n: int) -> None:
    x = numbers("f8", 4 * n, 0.2).reshape(4, n)
    assert_selects(xp, x, (1,), np.zeros((n + 1, 0), "i8"))


@pytest.mark.parametrize("dtype", ["f4", "i4", "f8"])
def test_what_has_no_elements(xp: ModuleType, dtype: str) -> None:
    backend = backend_of(xp.zeros(0))
    for shape, axes, kept in (
        ((0, 5), (1,), (0,)),
        ((3, 0, 2), (0, 2), (0,)),
        ((0, 5), (0,), (5,)),
    ):
        ranks = np.zeros((1 + int(np.prod([shape[d] for d in axes])), 2), "i8")
        values, counts = backend.order_statistics(xp.zeros(shape, dtype), axes, ranks)
        assert (values.shape, counts.shape) == ((2, *kept), kept)
        assert not counts.any()
        assert dtype == "i4" or bool(xp.isnan(values).all())
    dates = np.zeros((0, 3), "M8[s]")
    values, _ = backend_of(dates).order_statistics(dates, (0,), np.zeros((1, 2), "i8"))
    assert np.isnat(values).all()


@given(data=st.data())
def test_random_chunks(xp: ModuleType, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    dtype = data.draw(st.sampled_from(DTYPES))
    order = data.draw(st.permutations(range(len(shape))))
    x = numbers(dtype, int(np.prod(shape)), data.draw(st.sampled_from([0.0, 0.5])))
    x = x.reshape([shape[d] for d in order]).transpose(np.argsort(order))
    n = int(np.prod([shape[d] for d in axes]))
    assert_selects(xp, x, tuple(sorted(axes)), many(n, data.draw(st.integers(1, 6))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_length_has_programs_that_are_listed(dtype: str) -> None:
    of = np.dtype(dtype)
    assert set(programs.all_of(of)) <= LISTED
    for n in range(1, 60_000, 7):
        if vt := programs.thread_keys(of, n):
            assert n <= vt
            assert programs.by_threads(of, vt) in LISTED
        elif vt := programs.lane_keys(n):
            assert n <= 32 * vt
            assert programs.by_warps(of, vt) in LISTED
        else:
            assert programs.by_blocks(of, programs.block_threads(n)) in LISTED
    starts, widths = zip(*programs.digits(of), strict=True)
    assert sum(widths) == 8 * of.itemsize
    assert [*starts] == [8 * of.itemsize - done for done in np.cumsum(widths)]
    assert max(widths) <= programs.BINS.bit_length() - 1


def test_masked_chunks_are_refused() -> None:
    x = np.ma.array([1.0, 2.0], mask=[True, False])
    with pytest.raises(TypeError, match="quantile does not take chunks"):
        backend_of(x).order_statistics(x, (0,), medians(2))
