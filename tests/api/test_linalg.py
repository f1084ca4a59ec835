"""Transposition and matrix products over semirings, against NumPy."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu, to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.compiled import THOROUGH, spills
from support.strategies import BOOL, FLOATS, INTS, NUMBERS, arrays, chunkings

from dask_coop.algebra.semirings import PLUS_TIMES, SEMIRINGS
from dask_coop.algebra.strategies import AUTO, TRANSPOSE
from dask_coop.api.linalg import matmul, transpose
from dask_coop.chunks import backend_of
from dask_coop.chunks.cupy import programs_list
from dask_coop.cuda.programs import matmul as matmul_programs
from dask_coop.cuda.programs import transpose as transpose_programs

KERNEL_DTYPES = BOOL + INTS + ["f4", "f8"]
OTHERS = [name for name in SEMIRINGS if name != "plus_times"]


def expected(a: Any, b: Any, semiring: str) -> Any:
    """Return the product by NumPy: its own, or all of m * n * k steps at a time."""
    ring = SEMIRINGS[semiring]
    if ring is PLUS_TIMES:
        return np.matmul(a, b)
    dtype = ring.dtype(a.dtype, b.dtype)
    left = (a[np.newaxis] if a.ndim == 1 else a)[..., :, :, np.newaxis]
    right = (b[:, np.newaxis] if b.ndim == 1 else b)[..., np.newaxis, :, :]
    with np.errstate(all="ignore"):
        steps = ring.times(left.astype(dtype), right.astype(dtype))
        result = ring.plus.reduce(steps, -2, initial=ring.zero(dtype)).astype(dtype)
    result = result[..., 0, :] if a.ndim == 1 else result
    return result[..., 0] if b.ndim == 1 else result


def spread(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Return numbers of that dtype, extreme ones among them, and in floats NaN and infinities."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.2
    if kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    x = rng.integers(-50, 50, shape).astype(dtype)
    for value in (np.nan, np.inf, -np.inf):
        x[rng.random(shape) < 0.01] = value
    return x


def assert_product(xp: ModuleType, a: Any, b: Any, semiring: str, *args: Any) -> None:
    """Hold the product of lazy arrays to NumPy's of the arrays that they are made of."""
    chunks_of_a, chunks_of_b = args
    lazy = matmul(to_chunks(xp, a, chunks_of_a), to_chunks(xp, b, chunks_of_b), semiring=semiring)
    want = expected(a, b, semiring)
    assert lazy.dtype == want.dtype
    np.testing.assert_array_equal(to_numpy(xp, lazy), want)


@given(data=st.data(), contiguous=st.booleans())
def test_transposition_is_numpy_s(xp: ModuleType, data: st.DataObject, contiguous: bool) -> None:
    case = data.draw(arrays(NUMBERS))
    axes = data.draw(st.none() | st.permutations(range(case.array.ndim)))
    lazy = transpose(to_chunks(xp, case.array, case.chunks), axes, contiguous=contiguous)
    np.testing.assert_array_equal(to_numpy(xp, lazy), np.transpose(case.array, axes))


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(131, 140), (256, 128), (2000, 3), (3, 2000), (2, 64, 65)])
def test_chunks_are_copied_to_c_order(xp: ModuleType, dtype: str, shape: tuple[int, ...]) -> None:
    x = xp.arange(math.prod(shape)).reshape(shape).astype(dtype)
    for axes in itertools.permutations(range(len(shape))):
        lazy = transpose(da.from_array(x, chunks=-1, asarray=False), axes, contiguous=True)
        (chunk,) = lazy.to_delayed().ravel()
        copy = chunk.compute(scheduler="synchronous")
        assert copy.flags.c_contiguous
        assert bool((copy == x.transpose(axes)).all())


@pytest.mark.parametrize("strategy", TRANSPOSE)
def test_strided_chunks_are_copied(xp: ModuleType, strategy: str) -> None:
    for dtype in ("u1", "u2", "f4", "f8", "c16"):
        x = xp.arange(150 * 160 * 3).reshape(150, 160, 3).astype(dtype)
        views = [x[1:, 1:], x[::2, ::-3], x[:, 4:, 1], x[:0], x[::-1, :64, ::2]]
        views += [xp.broadcast_to(x[:1], (9, 160, 3)), xp.broadcast_to(x[:, :1], (150, 40, 3))]
        for view in views:
            for axes in itertools.permutations(range(view.ndim)):
                try:
                    copy = backend_of(x).transpose(view, axes, strategy)
                except ValueError:
                    continue
                assert copy.flags.c_contiguous
                assert bool((copy == view.transpose(axes)).all())


def test_a_view_costs_nothing() -> None:
    (view,) = transpose(da.from_array(np.zeros((4, 6)))).to_delayed().ravel()
    assert view.compute(scheduler="synchronous").flags.f_contiguous


@pytest.mark.parametrize(
    ("axes", "error", "words"),
    [
        ((0,), ValueError, "permutation of the array's 2 axes"),
        ((0, 0), ValueError, r"got \(0, 0\)"),
        ((0, 2), ValueError, r"got \(0, 2\)"),
        ((0, 1.0), TypeError, "must be integers"),
    ],
)
def test_axes_that_are_none(axes: Any, error: type[Exception], words: str) -> None:
    for contiguous in (False, True):
        with pytest.raises(error, match=words):
            transpose(da.zeros((2, 3)), axes, contiguous=contiguous)


def run_plan(launch: transpose_programs.Launch, x: Any, y: Any, base: int) -> None:
    """Do to bytes what a launch does to memory; `x` begins `base` bytes before the array."""
    found = re.search(r"(transpose_tiles|transpose_boxes|copy_rows)<(\d+)", launch.source)
    assert found
    kernel, size = found.groups()
    arguments = [int(argument) for argument in launch.arguments]
    heads = {"transpose_tiles": 4, "transpose_boxes": 22, "copy_rows": 2}
    head, tail = arguments[: heads[kernel]], arguments[heads[kernel] :]
    axes = [tuple(tail[i : i + 3]) for i in range(0, len(tail), 3)]
    if kernel == "transpose_tiles":
        m, n, source, target = head
        axes += [(m, source, 1), (n, 1, target)]
        tile = transpose_programs.TILES[int(size)].side
        blocks = -(-m // tile) * -(-n // tile)
    elif kernel == "transpose_boxes":
        inward, outward, order, group = head[:9], head[9:18], head[18:21], head[21]
        at_target = {d: outward[3 * i + 1] for i, d in enumerate(order)}
        for i, d in enumerate(order):
            assert outward[3 * i] == inward[3 * d]
            assert outward[3 * i + 2] == inward[3 * d + 2]
        axes += [(inward[3 * d], inward[3 * d + 1], at_target[d]) for d in range(3)]
        axes.append((group, 1, 1))
        sides = [inward[3 * d + 2] for d in range(3)]
        assert math.prod(sides) * group <= 8192
        blocks = math.prod(-(-inward[3 * d] // sides[d]) for d in range(3))
    else:
        length, count = head
        assert count == math.prod(size for size, _, _ in axes)
        axes.append((length, 1, 1))
        blocks = 0
    batch = math.prod(axis[0] for axis in axes[: len(tail) // 3])
    assert launch.blocks == blocks * batch or (blocks == 0 and launch.blocks > 0)
    places = [np.zeros(1, "i8")] * 2
    for count, *strides in axes:
        steps = np.arange(count)
        places = [
            (place[:, np.newaxis] + steps * stride).ravel()
            for place, stride in zip(places, strides, strict=True)
        ]
    words = np.arange(int(size))
    source, target = (
        (place[:, np.newaxis] * int(size) + words + offset).ravel()
        for place, offset in zip(places, launch.offsets, strict=True)
    )
    assert len(np.unique(target)) == len(target)
    y[target] = x[base + source]


@given(data=st.data())
def test_a_plan_copies_every_byte(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(0, 5) | st.just(11))
    shape = tuple(
        data.draw(st.integers(0, 40 if ndim < 3 else 6 if ndim < 6 else 2)) for _ in range(ndim)
    )
    itemsize = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    memory = np.arange(math.prod(shape) * itemsize * 8, dtype="u4").view("u1")
    x = memory[: math.prod(shape) * itemsize].view(f"V{itemsize}").reshape(shape)
    steps = [data.draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in range(ndim)]
    view = x[(..., *(slice(None, None, step) for step in steps))]
    view = view.transpose(data.draw(st.permutations(range(ndim))))
    base = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    start = data.draw(st.sampled_from([0, itemsize, 64]))
    strategy = data.draw(st.none() | st.sampled_from([*TRANSPOSE]))
    copy = np.zeros(view.size * itemsize, "u1")
    try:
        plan = [
            *transpose_programs.plan(
                view.shape, view.strides, itemsize, (start + base, 256), strategy
            )
        ]
    except ValueError:
        assert strategy in ("tiles", "boxes")
        return
    for launch in plan:
        run_plan(launch, memory, copy, base)
    want = np.array(view, order="C").ravel().view("u1") if view.size else copy
    np.testing.assert_array_equal(copy, want)


@st.composite
def operands(draw: st.DrawFn) -> tuple[Any, ...]:
    """Two operands that fit, of dtypes that semirings take, and their chunks."""
    m, n, k = (draw(st.integers(0, 40)) for _ in "mnk")
    batch = tuple(draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2))))
    found: list[Any] = []
    dtype = draw(st.sampled_from(BOOL + INTS + FLOATS))
    for sides in ((m, k), (k, n)):
        kept = draw(st.integers(0, len(batch)))
        lead = tuple(draw(st.sampled_from([side, 1])) for side in batch[kept:])
        shape = lead + sides
        if not lead and draw(st.booleans()):
            shape = (k,)
        found.append(spread(shape, dtype, draw(st.integers(0, 99))))
        found.append(draw(chunkings(shape)))
    return tuple(found)


@given(case=operands(), semiring=st.sampled_from(OTHERS))
def test_semirings_are_ufuncs(xp: ModuleType, case: tuple[Any, ...], semiring: str) -> None:
    a, chunks_of_a, b, chunks_of_b = case
    assert_product(xp, a, b, semiring, chunks_of_a, chunks_of_b)


@given(case=operands())
def test_plain_products_are_numpy_s(xp: ModuleType, case: tuple[Any, ...]) -> None:
    a, chunks_of_a, b, chunks_of_b = case
    if a.dtype.kind == "f":
        # Sums of few small integers are exact in any order.
        a, b = (np.nan_to_num(x, nan=1, posinf=2, neginf=-2) % 4 for x in (a, b))
        a, b = (x.astype(np.promote_types(x.dtype, "f4")) for x in (a, b))
    if xp is not np and a.dtype.kind == "f":
        pytest.importorskip("cupy_backends.cuda.libs.cublas", exc_type=ImportError)
    assert_product(xp, a, b, "plus_times", chunks_of_a, chunks_of_b)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("semiring", SEMIRINGS)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(127, 33, 129), (128, 16, 256), (130, 257, 4), (1, 5000, 1), (20, 2000, 33)]
)
def test_chunks_of_odd_sides_are_multiplied(
    xp: ModuleType, dtype: str, semiring: str, m: int, k: int, n: int
) -> None:
    if semiring == "plus_times" and dtype in FLOATS:
        pytest.skip("the library's business")
    a, b = spread((m, k), dtype, 1), spread((k, n), dtype, 2)
    got = backend_of(xp.asarray(a)).matmul(xp.asarray(a), xp.asarray(b), semiring)
    want = expected(a, b, semiring)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got if xp is np else xp.asnumpy(got), want)


@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_transposed_and_misaligned_chunks_are_multiplied(xp: ModuleType, semiring: str) -> None:
    for dtype in ("?", "i1", "i2", "i4", "i8", "u1"):
        a, b = spread((64, 40), dtype, 1), spread((60, 64), dtype, 2)
        x, y = xp.asarray(a).T[3:], xp.asarray(b).T[:, 1:]
        got = backend_of(x).matmul(x, y, semiring)
        want = expected(a.T[3:], b.T[:, 1:], semiring)
        np.testing.assert_array_equal(got if xp is np else xp.asnumpy(got), want)
        flat = xp.asarray(spread((64 * 8 + 1,), dtype, 3))[1:].reshape(64, 8)
        got = backend_of(x).matmul(x, flat, semiring)
        flat = flat if xp is np else xp.asnumpy(flat)
        want = expected(a.T[3:], flat, semiring)
        np.testing.assert_array_equal(got if xp is np else xp.asnumpy(got), want)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1"])
def test_bytes_may_begin_anywhere(xp: ModuleType, dtype: str) -> None:
    x, y = xp.ones((1, 40), dtype), xp.ones((32, 3), dtype)
    for start in range(1, 8):
        for k in (4, 32):
            got = backend_of(x).matmul(x[:, start : start + k], y[:k], "plus_times")
            assert got.tolist() == [[k if dtype != "?" else True] * 3]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_kernel_adds_and_multiplies_floats(dtype: str) -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    import cupy

    a, b = (np.random.default_rng(s).integers(-9, 9, (300, 300)).astype(dtype) for s in (1, 2))
    got = backend_of(cupy.asarray(a)).matmul(
        cupy.asarray(a), cupy.asarray(b), "plus_times", strategy="tiles"
    )
    np.testing.assert_array_equal(cupy.asnumpy(got), a @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["bytes", "tiles", AUTO])
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4"])
def test_integers_of_few_bytes_wrap(dtype: str, strategy: str) -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    import cupy

    cuda = importlib.import_module("dask_coop.chunks.cupy.matmul")
    if strategy == "bytes" and not cuda._has_tensor_cores():
        pytest.skip("needs compute capability 8.0")
    rng, limits = np.random.default_rng(1), np.iinfo(dtype)
    for left, right in (
        ((127, 33), (33, 129)),
        ((300, 1000), (1000, 513)),
        ((256, 256), (256, 256)),
        ((1, 5000), (5000, 1)),
        ((130, 1), (1, 3)),
        ((2, 1, 65, 70), (3, 70, 20)),
        ((70,), (5, 70, 31)),
    ):
        a, b = (rng.integers(limits.min, limits.max, s, dtype, True) for s in (left, right))
        got = cuda.matmul(cupy.asarray(a), cupy.asarray(b), strategy=strategy)
        assert got.dtype == dtype
        np.testing.assert_array_equal(cupy.asnumpy(got), np.matmul(a, b), f"{left} {right}")


@pytest.mark.gpu
def test_products_that_a_strategy_does_not_make_are_refused() -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    import cupy

    x = cupy.ones((3, 3), "i8")
    with pytest.raises(ValueError, match="not plus_times of int64 here"):
        backend_of(x).matmul(x, x, strategy="bytes")
    with pytest.raises(ValueError, match="not min_plus of int8"):
        backend_of(x).matmul(x.astype("i1"), x.astype("i1"), "min_plus", strategy="bytes")
    with pytest.raises(ValueError, match=r"has no min_plus; set coop\.strategy\.matmul to 'auto'"):
        backend_of(x).matmul(x, x, "min_plus", strategy="library")
    with pytest.raises(ValueError, match="does not take complex128"):
        backend_of(x).matmul(x.astype("c16"), x, strategy="tiles")


@pytest.mark.parametrize("semiring", OTHERS)
def test_nan_and_infinities_go_through(xp: ModuleType, semiring: str) -> None:
    values = np.array([0, -0.0, 1, -1, np.nan, np.inf, -np.inf])
    for dtype in ("f4", "f8"):
        pairs = np.array([*itertools.product(values, repeat=2)], dtype)
        a, b = pairs[:, :1], pairs[:, 1:].T
        assert_product(xp, a, b, semiring, 9, 9)
        assert_product(xp, pairs, pairs.T, semiring, 9, 9)


@pytest.mark.parametrize("dtype", [*KERNEL_DTYPES, "f2"])
@pytest.mark.parametrize("semiring", OTHERS)
def test_without_inner_length_there_is_the_sum_of_nothing(
    xp: ModuleType, dtype: str, semiring: str
) -> None:
    a, b = np.empty((3, 0), dtype), np.empty((0, 4), dtype)
    got = to_numpy(xp, matmul(to_chunks(xp, a, 2), to_chunks(xp, b, 2), semiring=semiring))
    ring = SEMIRINGS[semiring]
    np.testing.assert_array_equal(got, np.full((3, 4), ring.zero(got.dtype)))
    some = np.array([[1]], got.dtype)
    np.testing.assert_array_equal(ring.plus(got[:1, :1], some), some)


@pytest.mark.parametrize("dtypes", [("i1", "u1"), ("u8", "i8"), ("f4", "i4"), ("?", "i2")])
@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_dtypes_are_promoted_as_by_numpy(
    xp: ModuleType, dtypes: tuple[str, str], semiring: str
) -> None:
    a, b = (
        np.arange(12).reshape(shape).astype(d)
        for shape, d in zip([(3, 4), (4, 3)], dtypes, strict=True)
    )
    if xp is not np and semiring == "plus_times" and np.result_type(a, b).kind == "f":
        pytest.skip("the library's business")
    assert_product(xp, a, b, semiring, 2, 2)


def test_large_semiring_products_need_little_memory() -> None:
    import tracemalloc

    a, b = spread((600, 50), "f4", 1), spread((50, 700), "f4", 2)
    tracemalloc.start()
    got = backend_of(a).matmul(a, b, "min_plus")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < got.nbytes + (1 << 20)
    np.testing.assert_array_equal(got, expected(a, b, "min_plus"))


def test_a_product_has_a_task_for_every_pair_of_blocks_and_a_tree() -> None:
    x, y = da.ones((6, 40), chunks=(3, 2)), da.ones((40, 4), chunks=(2, 4))
    lazy = matmul(x, y)
    added = {name: len(layer) for name, layer in lazy.dask.layers.items() if "matmul" in name}
    # For each of two results 20 products, 5 sums of 4 and 2 of those.
    assert sorted(added.values()) == [2, 2 * (20 + 5 + 2)]
    assert lazy.chunks == ((3, 3), (4,))


def test_a_tree_adds_in_a_fixed_order() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((8, 64)), rng.random((64, 8))
    lazy = matmul(da.from_array(x, chunks=(4, 4)), da.from_array(y, chunks=(4, 4)))
    np.testing.assert_array_equal(lazy.compute(), lazy.compute(scheduler="synchronous"))
    np.testing.assert_allclose(lazy.compute(), x @ y)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: matmul(x, x), ValueError, r"shapes \(2, 3\) and \(2, 3\)"),
        (lambda x: matmul(x, 3), ValueError, "b must have at least one axis"),
        (lambda x: matmul(3, x), ValueError, "a must have at least one axis"),
        (lambda x: matmul(x, x.T, semiring="max_times"), ValueError, "'max_times'"),
        (lambda x: matmul(x, x.T, split_every=1), ValueError, "got 1"),
        (
            lambda x: matmul(da.ones((2, 4, 3)), da.ones((3, 3, 4))),
            ValueError,
            "do not broadcast",
        ),
        (
            lambda x: matmul(x.astype("c8"), x.T, semiring="min_plus"),
            TypeError,
            "min_plus is not defined for dtype complex128",
        ),
        (lambda x: matmul(x.astype("M8[s]"), x.T), TypeError, "promoted"),
        (lambda x: matmul(x[:, x[0] > 0], x.T), ValueError, "compute_chunk_sizes"),
    ],
)
def test_what_cannot_be_multiplied(
    call: Callable[[da.Array], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(da.ones((2, 3)))


def test_kinds_of_chunks_are_not_mixed() -> None:
    masked = da.ma.masked_array(np.ones((3, 3)), mask=False)
    with pytest.raises(TypeError, match="MaskedArray"):
        matmul(masked, masked, semiring="min_plus")
    with pytest.raises(TypeError, match="MaskedArray"):
        transpose(masked, contiguous=True)
    assert transpose(masked).compute().shape == (3, 3)


def test_strategies_that_do_not_apply_are_refused() -> None:
    def plan(shape: tuple[int, ...], strategy: str) -> list[Any]:
        strides = np.empty(shape, "f4").strides
        return [*transpose_programs.plan(shape, strides, 4, (0, 0), strategy)]

    with pytest.raises(ValueError, match="needs two axes that are exchanged"):
        plan((4, 5), "tiles")
    with pytest.raises(ValueError, match="needs rows of at most"):
        plan((4, 99_999), "boxes")


# Optimised in full, as they are when they run.
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"] if THOROUGH else ["sm_90"])
def test_the_main_kernels_do_not_spill(arch: str) -> None:
    sources = [
        transpose_programs.tiles(size, tile.vectors[0], 1)
        for size, tile in transpose_programs.TILES.items()
    ]
    sources += [transpose_programs.boxes(4, 1), transpose_programs.rows(16, 1)]
    for name in ("i4", "i8", "f4", "f8") if THOROUGH else ("i8", "f4"):
        sources += programs_list.matmuls(np.dtype(name))
    assert not spills(sources, arch)


def test_the_ring_fits_into_the_shared_memory_of_every_gpu() -> None:
    assert max(map(matmul_programs.shared_bytes, matmul_programs.DEPTHS)) <= 64 << 10
    # Of those with the tensor cores of sm_80 the smallest have 99 KiB.
    assert matmul_programs.int8_shared_bytes(matmul_programs.INT8_LEAST_STAGES) <= 99 << 10
    assert matmul_programs.int8_shared_bytes(matmul_programs.INT8_STAGES) <= 227 << 10
