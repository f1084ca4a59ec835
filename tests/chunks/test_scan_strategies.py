"""Every strategy of the scan of CuPy chunks gives NumPy's result, in every direction and dtype."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from conftest import missing_for_gpu

from dask_coop.algebra.monoids import COMPENSATED_SUM, LOGADDEXP, SUM
from dask_coop.algebra.operation import bind
from dask_coop.algebra.strategies import AUTO, MULTICHUNK, SCAN
from dask_coop.cuda.programs import scan as programs
from dask_coop.cuda.programs.base import Functor

ROWS = (
    (1, 1),
    (1, 31),
    (1, 4097),
    (1, 300_001),
    (1, 1 << 21),
    (3, 70_004),
    (700, 4_352),
    (900, 33),
)
COLUMNS = ((1, 5, 3), (2, 1000, 37), (1, 3001, 4224), (40, 129, 256))
STRATEGIES = tuple(name for name in SCAN if name != MULTICHUNK)
DTYPES = ("i4>i4", "i4>i8", "f4>f4", "f8>f8", "u1>u8", "f2>f2", "c16>c16", "i8>i2", "?>i8")


def test_a_wave_fits_shared_memory() -> None:
    for names in DTYPES:
        element, output = map(np.dtype, names.split(">"))
        op = bind(SUM, element, output, "scan")
        state = op.monoid.dtypes(element)[0]
        scan = programs.of(Functor("Sum<T>"), element, output, state)
        for shared in (True, False):
            for n in (5000, 16384, 1 << 30):
                tuning = programs.tune(scan, n, 132, 232_448, shared)
                assert tuning.items % 2 == 1
                assert tuning.stages > tuning.ahead > 0
                assert programs.waves_shared_bytes(scan, tuning) <= 232_448


@pytest.fixture(name="cuda")
def _cuda() -> Any:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    return importlib.import_module("dask_coop.chunks.cupy.scan")


def applies(cuda: Any, op: Any, shape: Any, strategy: str) -> bool:
    """Tell whether a strategy is for such lines."""
    if strategy == AUTO:
        return True
    lines = cuda._Lines(cuda.programs_list.scanned(op), 0, 0, 0, shape)
    return not cuda._objection(cuda.device(0), op, lines, strategy)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("names", ["f8>f8", "f4>f8", "c16>c16"])
@pytest.mark.parametrize("strategy", [AUTO, *STRATEGIES])
def test_float64_keeps_what_is_rounded_off(cuda: Any, strategy: str, names: str) -> None:
    import cupy

    element, output = names.split(">")
    op = bind(COMPENSATED_SUM, np.dtype(element), np.dtype(output), "scan")
    rng = np.random.default_rng(1)
    shapes = [(1, 300_001, 1), (3, 70_004, 1), (700, 4352, 1), (900, 33, 1), (5, 250, 1)]
    if strategy in (AUTO, "lines", "two-level"):
        shapes += [(2, 3000, 37), (2, 7, 3), (3, 129, 256), (1, 3001, 8)]
    for shape in shapes:
        if not applies(cuda, op, shape, strategy):
            continue
        host = rng.random(shape).astype(element)
        host[0, shape[1] // 2, 0] = np.inf
        base = np.zeros(shape[::2], [("total", output), ("excess", output)])
        base["total"], base["excess"] = rng.random(shape[::2]) * 99, rng.random(shape[::2]) * 2e-15
        wide = np.cumsum(host, 1, dtype="G" if output == "c16" else "g")
        wide += (base["total"] - base["excess"].astype(wide.dtype))[:, np.newaxis]
        for exclusive in (False, True):
            y = cupy.empty(shape, output)
            start = cupy.asarray(base.view("u1"))
            cuda.scan_lines(
                op.by(strategy), cupy.asarray(host), y, start, shape, exclusive=exclusive
            )
            found, expected = cupy.asnumpy(y), wide
            if exclusive:
                np.testing.assert_array_equal(found[:, 0], (base["total"] - base["excess"]))
                found, expected = found[:, 1:], wide[:, :-1]
            expected = expected.astype(output).real
            np.testing.assert_array_max_ulp(found.real, expected, 16)
            assert np.isinf(expected[0, -1, 0])


def logarithms(rng: Any, shape: tuple[int, ...], kind: str) -> Any:
    """Return elements whose maximum is found early, again and again, or is not finite."""
    x = rng.normal(0, 3, shape)
    match kind:
        case "rising":
            x += np.arange(shape[1])[:, None] * 1.5
        case "far apart":
            x *= 10.0 ** rng.integers(0, 3, shape)
        case "late":
            x[:, : shape[1] // 2] = -np.inf
            x[0, -3:] = np.inf
        case "none":
            x[:, shape[1] // 3] = np.nan
    return x


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("kind", ["near", "rising", "far apart", "late", "none"])
@pytest.mark.parametrize("strategy", [AUTO, *STRATEGIES])
def test_logarithms_of_sums(cuda: Any, strategy: str, kind: str, dtype: str) -> None:
    import cupy

    op = bind(LOGADDEXP, np.dtype(dtype), np.dtype(dtype), "scan")
    rng = np.random.default_rng(3)
    shapes = [(1, 1, 1), (1, 40, 1), (1, 300_001, 1), (3, 20_004, 1), (600, 4352, 1), (900, 33, 1)]
    if strategy in (AUTO, "lines", "two-level"):
        shapes += [(2, 700, 37), (2, 7, 3)]
    for number, shape in enumerate(shapes):
        if not applies(cuda, op, shape, strategy):
            continue
        with np.errstate(all="ignore"):
            x = logarithms(rng, shape, kind).astype(dtype)
            start = rng.normal(0, 3, shape[::2]) if number % 2 else None
            wide = x.astype("g")
            if start is not None:
                wide = np.concatenate([start[:, None], wide], 1)
            expected = np.logaddexp.accumulate(wide, 1)
            total = np.spacing(np.abs(expected).astype(dtype)).astype("g")
        backwards = number % 3 == 2 and start is None
        y = cupy.empty(shape, dtype)
        host = np.ascontiguousarray(x[:, ::-1] if backwards else x)
        base = None if start is None else cupy.asarray(start)
        options = {"reverse": backwards, "exclusive": start is not None}
        cuda.scan_lines(op.by(strategy), cupy.asarray(host), y, base, shape, **options)
        found = cupy.asnumpy(y)[:, ::-1] if backwards else cupy.asnumpy(y)
        # An exclusive result leaves out its own element.
        expected, total = expected[:, : shape[1]], total[:, : shape[1]]
        finite = np.isfinite(expected.astype(dtype))
        np.testing.assert_array_equal(found[~finite], expected.astype(dtype)[~finite])
        bound = total + 4 * shape[1] * np.finfo("f8").eps * (1 + np.abs(expected))
        if strategy == "scan-then-fan":
            # What a tile comes to is rounded to the dtype before what is in front is added.
            bound += np.finfo(dtype).eps
        error = np.abs(np.where(finite, found, 0) - np.where(finite, expected, 0))
        assert (error <= bound)[finite].all(), f"{shape} {options}"


@pytest.mark.gpu
def test_floats_come_out_the_same_on_every_run(cuda: Any) -> None:
    import cupy

    x = cupy.asarray(np.random.default_rng(0).normal(size=10_000_019).astype("f4"))
    op = bind(SUM, x.dtype, x.dtype, "scan")
    wide = np.cumsum(cupy.asnumpy(x), dtype="f8")
    for strategy in STRATEGIES:
        if not applies(cuda, op, (1, x.size, 1), strategy):
            continue
        results = []
        for _ in range(3):
            y = cupy.empty_like(x)
            cuda.scan_lines(op.by(strategy), x, y, None, (1, x.size, 1))
            results.append(cupy.asnumpy(y))
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])
        rounding = 4 if strategy == "scan-then-fan" else 1
        error = np.abs(results[0] - wide)
        assert (error <= rounding * np.spacing(np.abs(wide).max().astype("f4"))).all()


def restart(x: Any, heads: Any, base: Any, exclusive: bool, reverse: bool) -> Any:
    """Return the scan along axis 1 of integers that restarts where marked."""
    if reverse:
        return restart(x[:, ::-1], heads[:, ::-1], base, exclusive, False)[:, ::-1]
    total = np.cumsum(x, 1, dtype="i8")
    before = np.zeros_like(total) if base is None else np.zeros_like(total) + base[:, None]
    # What the last restart has left behind, the negative of the base where there was none.
    at = np.maximum.accumulate(np.where(heads, np.arange(x.shape[1])[:, None], -1), 1)
    left = np.take_along_axis(total - x, np.maximum(at, 0), 1)
    result = total - np.where(at >= 0, left, -before)
    return np.where(heads, 0, result - x) if exclusive else result


@pytest.mark.gpu
@pytest.mark.parametrize("names", ["f4>f4", "i4>i4", "u1>u8", "f8>f8", "c16>c16", "?>i8"])
@pytest.mark.parametrize("density", [0, 1e-5, 0.1, 1])
def test_scans_restart_where_segments_begin(cuda: Any, names: str, density: float) -> None:
    import cupy

    element, output = names.split(">")
    op = bind(SUM, np.dtype(element), np.dtype(output), "scan")
    state = op.monoid.dtypes(op.element)[0]
    rng = np.random.default_rng(0)
    for number, shape in enumerate((*((*row, 1) for row in ROWS), *COLUMNS, (1, 9_000_000, 1))):
        host = rng.integers(0, 2, shape).astype(element)
        heads = rng.random(shape) < density
        base = rng.integers(0, 9, shape[::2]) if number % 2 else None
        start = cupy.asarray(base.astype(state)) if base is not None else None
        for exclusive, reverse in ((False, False), (True, number % 3 > 0), (number % 3 > 1, True)):
            x, y = cupy.asarray(host), cupy.full(shape, 77, output)
            options = {"exclusive": exclusive, "reverse": reverse}
            cuda.scan_lines(op, x, y, start, shape, segments=cupy.asarray(heads), **options)
            expected = restart(host.real.astype("i8"), heads, base, exclusive, reverse)
            np.testing.assert_array_equal(cupy.asnumpy(y), expected, f"{shape} {options}")


@pytest.mark.gpu
def test_the_tags_of_a_board_run_out(cuda: Any) -> None:
    import cupy

    if not cuda.device(0).hopper:
        pytest.skip("one pass needs compute capability 9.0")
    host = np.random.default_rng(0).integers(0, 9, 3_000_000).astype("i4")
    x, op = cupy.asarray(host), bind(SUM, host.dtype, host.dtype, "scan")
    key = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    for left in (100, 2, 1, 0):
        boards = cuda._local.__dict__.setdefault("boards", {})
        if key in boards:
            boards[key] = boards[key][0], (1 << 32) - left
        for _ in range(2):
            y = cupy.full(x.shape, 7, "i4")
            cuda.scan_lines(op.by("single-pass"), x, y, None, (1, x.size, 1))
            np.testing.assert_array_equal(cupy.asnumpy(y), np.cumsum(host, dtype="i4"))


@pytest.mark.gpu
def test_a_captured_scan_replays(cuda: Any) -> None:
    import cupy

    host = np.random.default_rng(0).integers(0, 9, 1_000_000).astype("i4")
    x, op = cupy.asarray(host), bind(SUM, host.dtype, host.dtype, "scan")
    y = cupy.empty_like(x)
    cuda.scan_lines(op, x, y, None, (1, x.size, 1))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        cuda.scan_lines(op, x, y, None, (1, x.size, 1))
        graph = stream.end_capture()
    for _ in range(3):
        y.fill(7)
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(cupy.asnumpy(y), np.cumsum(host, dtype="i4"))


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [1, 4])
def test_lines_that_begin_anywhere(cuda: Any, offset: int) -> None:
    import cupy

    host = np.random.default_rng(0).integers(0, 9, (1, 300_000 + offset, 1)).astype("i4")
    op = bind(SUM, host.dtype, host.dtype, "scan")
    x = cupy.asarray(host)[:, offset:]
    for strategy in STRATEGIES:
        y = cupy.empty(x.shape, "i4")
        cuda.scan_lines(op.by(strategy), x, y, None, (1, 300_000, 1))
        np.testing.assert_array_equal(cupy.asnumpy(y), np.cumsum(host[:, offset:], 1))


@pytest.mark.gpu
def test_a_strategy_that_cannot_be_had_says_why(cuda: Any) -> None:
    import cupy

    x = cupy.ones((4, 4), "f4")
    op = bind(SUM, x.dtype, x.dtype, "scan")
    for strategy, shape, message in (
        ("cooperative", (1, 4, 4), "'cooperative' is for the last axis of a chunk; set coop.strat"),
        (MULTICHUNK, (1, 16, 1), "takes the chunks of a Node or a collective together"),
    ):
        with pytest.raises(ValueError, match=message):
            cuda.scan_lines(op.by(strategy), x, x, None, shape)
    heads = cupy.zeros(16, "?")
    for strategy, shape in (("cooperative", (1, 16, 1)), ("two-level", (1, 4, 4))):
        with pytest.raises(ValueError, match="does not take segments"):
            cuda.scan_lines(op.by(strategy), x, x, None, shape, segments=heads)
