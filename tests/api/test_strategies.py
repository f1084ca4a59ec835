"""Every strategy of every family by the public call, and what the configuration makes of names."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu
from dask.tokenize import tokenize
from test_architecture import PACKAGE

import dask_coop as dc
from dask_coop.algebra.bins import find_bins
from dask_coop.algebra.monoids import SUM
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.strategies import (
    AUTO,
    HISTOGRAM,
    MATMUL,
    MULTICHUNK,
    SCAN,
    TRANSPOSE,
    Family,
)
from dask_coop.chunks.cupy.eligibility import objection_to_counting, objection_to_scan
from dask_coop.graph import joined

FAMILIES = {"scan": SCAN, "histogram": HISTOGRAM, "transpose": TRANSPOSE, "matmul": MATMUL}

#: Calls that read the key of a family.
CALLS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda x: dc.cumsum(x, 1),
    "histogram": lambda x: dc.histogram(x, 7, (0, 50))[0],
    "transpose": lambda x: dc.transpose(x, contiguous=True),
    "matmul": lambda x: dc.matmul(x, x),
}

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


def named(family: str, strategy: str) -> dask.config.set:
    return dask.config.set({f"coop.strategy.{family}": strategy, "scheduler": "sync"})


def array() -> da.Array:
    return da.arange(49, chunks=49).reshape(7, 7).rechunk(4)


def operation() -> Operation:
    return bind(SUM, np.dtype("f4"), np.dtype("f4"), "cumsum")


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_names_are_refused_with_the_list(family: str) -> None:
    *names, last = map(repr, (AUTO, *FAMILIES[family]))
    message = f"coop.strategy.{family} must be {', '.join(names)} or {last}, got 'fast'"
    with named(family, "fast"), pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CALLS[family](array())


@pytest.mark.parametrize("family", FAMILIES)
def test_each_name_has_keys_of_its_own_and_auto_those_of_none(family: str) -> None:
    call, x = CALLS[family], array()
    plain = call(x)
    keys = {plain.name}
    assert b"strategy" not in pickle.dumps(dict(plain.__dask_graph__()))
    for name in FAMILIES[family]:
        with named(family, name):
            lazy = call(x)
            assert lazy.name == call(x).name
        assert name.encode() in pickle.dumps(dict(lazy.__dask_graph__()))
        keys.add(lazy.name)
        # NumPy chunks heed none, and what is built does not read the configuration again.
        np.testing.assert_array_equal(lazy.compute(), plain.compute())
    assert len(keys) == len(FAMILIES[family]) + 1
    with named(family, AUTO):
        assert call(x).name == plain.name


def test_an_operation_keeps_its_strategy() -> None:
    op = operation()
    assert op.by(AUTO) == op
    assert tokenize(op.by(AUTO)) == tokenize(op)
    assert pickle.dumps(op.by("lines").by(AUTO)) == pickle.dumps(op)
    by_lines = op.by("lines")
    again = pickle.loads(pickle.dumps(by_lines))
    assert again == by_lines != op
    assert (again.strategy, op.strategy) == ("lines", AUTO)
    assert tokenize(by_lines) == tokenize(again) != tokenize(op)


@pytest.mark.parametrize(
    ("family", "module"), [("scan", "scan"), ("histogram", "histogram_strategies")]
)
def test_each_row_has_a_function(family: str, module: str) -> None:
    tree = ast.parse((PACKAGE / "chunks" / "cupy" / f"{module}.py").read_text())
    tables = {
        ast.unparse(node.targets[0]): node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    keys = [ast.literal_eval(key) for key in tables["_STRATEGIES"].keys]  # type: ignore[attr-defined]
    assert [*keys, MULTICHUNK] == [*FAMILIES[family]]


def test_a_name_takes_chunks_one_by_one() -> None:
    op, spec = operation(), ScanSpec(0)
    for each in (op, op.by(MULTICHUNK)):
        assert objection_to_scan(each, spec) is None
        assert objection_to_counting(each) is None
    for objection in (
        objection_to_scan(op.by("lines"), spec),
        objection_to_counting(op.by("lines")),
    ):
        assert str(objection) == "strategy 'lines' takes chunks one by one"


# On a GPU.


@pytest.fixture(name="cupy")
def _cupy() -> Any:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    import cupy

    return cupy


def hopper() -> bool:
    from dask_coop.cuda.devices import device

    return device(0).hopper


def outcome(
    family: str, strategy: str, function: Callable[..., Any], *arguments: Any, **options: Any
) -> Any:
    """Return a result on the host, or None if the strategy does not apply, as the task says."""
    with named(family, strategy):
        lazy = function(*arguments, **options)
    try:
        result = lazy.compute(scheduler="sync")
    except ValueError as error:
        if f"set coop.strategy.{family} to 'auto'" in str(error):
            return None
        raise
    return result if isinstance(result, np.ndarray) else result.get()


def on_gpu(cupy: Any, host: Any, chunks: Any = -1) -> da.Array:
    return da.from_array(cupy.asarray(host), chunks=chunks, asarray=False)


def counts(*arguments: Any, **options: Any) -> Any:
    return dc.histogram(*arguments, **options)[0]


def alone(family: Family) -> list[str]:
    """Return the names of strategies that take a chunk alone."""
    return [AUTO, *(name for name in family if name != MULTICHUNK)]


def scanned(x: Any, exclusive: bool, reverse: bool, output: str) -> Any:
    """Return the scan along axis 1 of integers, all of which float64 holds exactly."""
    x = x[:, ::-1] if reverse else x
    result = np.cumsum(x, 1, dtype="i8") - (x if exclusive else 0)
    return (result[:, ::-1] if reverse else result).astype(output)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "names", ["i4>i4", "i4>i8", "f4>f4", "f8>f8", "u1>u8", "f2>f2", "c16>c16", "i8>i2", "?>i8"]
)
@pytest.mark.parametrize("strategy", alone(SCAN))
def test_scans(cupy: Any, strategy: str, names: str) -> None:
    element, output = names.split(">")
    rng = np.random.default_rng(0)
    shapes = [*((outer, n, 1) for outer, n in ROWS), *COLUMNS]
    if names == "f2>f2":
        shapes = [shape for shape in shapes if shape[1] < 2000]
    for number, shape in enumerate(shapes):
        host = rng.integers(0, 2, shape).astype(element)
        # The second of two chunks starts from a base.
        length = -(-shape[1] // (1 + number % 2))
        x, exact = on_gpu(cupy, host, (-1, length, -1)), host.real.astype("i8")
        applies = shape[2] == 1 or strategy in (AUTO, "lines", "two-level")
        applies &= strategy != "single-pass" or hopper()
        for exclusive, reverse in ((False, number % 4 > 1), (True, number % 4 < 2)):
            options = {"exclusive": exclusive, "reverse": reverse}
            result = outcome("scan", strategy, dc.cumsum, x, 1, output, **options)
            assert (result is not None) == applies
            if applies:
                expected = scanned(exact, exclusive, reverse, output)
                np.testing.assert_array_equal(result, expected, f"{shape} {exclusive} {reverse}")


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", alone(SCAN))
def test_scans_with_segments(cupy: Any, strategy: str) -> None:
    x, heads = np.arange(100_000) % 7, np.arange(100_000) % 1000 == 0
    lazy, restarts = (on_gpu(cupy, a, 60_000) for a in (x, heads))
    result = outcome("scan", strategy, dc.cumsum, lazy, segments=restarts)
    assert (result is not None) == (strategy in (AUTO, "lines", "two-level"))
    if result is not None:
        np.testing.assert_array_equal(result, np.cumsum(x.reshape(100, -1), 1).ravel())


def samples(dtype: str, size: int) -> Any:
    """Return samples of which some lie on edges, some outside, some are not numbers."""
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind != "f":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -1000), min(info.max, 1000), size).astype(dtype)
    x = rng.normal(0.5, 0.4, size).astype(dtype)
    x[::7] = np.round(x[::7] * 64) / 64
    x[::1001] = np.nan
    x[1::1001] = np.inf
    x[2::1001] = -np.inf
    return x


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("strategy", alone(HISTOGRAM))
def test_histograms(cupy: Any, strategy: str, dtype: str) -> None:
    x = samples(dtype, 300_007)
    kind = np.dtype(dtype).kind
    limits = (0, 1) if kind == "f" else (-100, 101) if kind == "i" else (3, 101)
    ns = [1, 10, 1000, 20_000, 58_000, 70_001, 131_072, 1_000_003]
    counted = []
    for n in ns[:3] if dtype == "f2" else ns:
        bins = find_bins(n, limits, x.dtype)
        for chunk in (x, x[3:], x[:5]):
            result = outcome("histogram", strategy, counts, on_gpu(cupy, chunk), n, limits)
            if result is None:
                continue
            counted.append(n)
            expected, _ = np.histogram(chunk, **bins.numpy_arguments())
            np.testing.assert_array_equal(result, expected, f"{n} {chunk.size}")
    if strategy in (AUTO, "packed", "global"):
        assert {*counted} == {*(ns[:3] if dtype == "f2" else ns)}
    elif strategy == "bytes":
        assert bool(counted) == (np.dtype(dtype).itemsize == 1)
    elif strategy == "distributed":
        assert (1000 in counted) == hopper()
    elif strategy != "partition":
        assert 1000 in counted


@pytest.mark.gpu
@pytest.mark.parametrize("weight", ["i4", "f4", "f8", "c8"])
@pytest.mark.parametrize("strategy", alone(HISTOGRAM))
def test_weights(cupy: Any, strategy: str, weight: str) -> None:
    x = np.random.default_rng(0).random(50_000, "f4")
    weights = (np.arange(50_000) % 9).astype(weight)
    lazy, heavy = (on_gpu(cupy, a) for a in (x, weights))
    result = outcome("histogram", strategy, counts, lazy, 64, (0, 1), weights=heavy)
    assert (result is not None) == (strategy in (AUTO, "shared", "split", "global"))
    if result is not None:
        np.testing.assert_array_equal(result, np.histogram(x, 64, (0, 1), weights=weights)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "f2", "f4", "i8", "f8", "c16"])
@pytest.mark.parametrize("strategy", alone(TRANSPOSE))
def test_transposes(cupy: Any, strategy: str, dtype: str) -> None:
    copied = 0
    for shape, axes in (
        ((150, 160), (1, 0)),
        ((33, 7, 65), (2, 0, 1)),
        ((33, 7, 65), (1, 0, 2)),
        ((3, 20_000), (1, 0)),
        ((2, 99_999), (0, 1)),
    ):
        host = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
        options = {"axes": axes, "contiguous": True}
        result = outcome("transpose", strategy, dc.transpose, on_gpu(cupy, host), **options)
        if result is not None:
            copied += 1
            np.testing.assert_array_equal(result, host.transpose(axes))
        else:
            assert (strategy, axes) in (("tiles", (1, 0, 2)), ("tiles", (0, 1)), ("boxes", (0, 1)))
    assert copied >= 3


@pytest.mark.gpu
@pytest.mark.parametrize("ring", ["plus_times", "min_plus", "max_plus", "max_min", "or_and"])
@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("strategy", alone(MATMUL))
def test_products(cupy: Any, strategy: str, dtype: str, ring: str) -> None:
    kind, itemsize = np.dtype(dtype).kind, np.dtype(dtype).itemsize
    if kind == "c" and ring != "plus_times":
        pytest.skip("complex numbers have plus_times only")
    if ring == "plus_times" and (strategy == "library" or (strategy == AUTO and kind in "fc")):
        pytest.importorskip("cupy_backends.cuda.libs.cublas", exc_type=ImportError)
    rng = np.random.default_rng(0)
    hosts = [rng.integers(0, 3, shape).astype(dtype) for shape in ((70, 130), (130, 65))]
    a, b = (on_gpu(cupy, host) for host in hosts)
    result = outcome("matmul", strategy, dc.matmul, a, b, semiring=ring)
    integers = kind in "iu" and itemsize <= 4
    assert (result is not None) == {
        AUTO: True,
        "library": ring == "plus_times",
        "bytes": ring == "plus_times" and integers,
        "tiles": kind != "c",
    }[strategy]
    if result is not None:
        expected = dc.matmul(*map(da.from_array, hosts), semiring=ring).compute()
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("small", [False, True])
def test_chunks_of_a_node_go_together_or_one_by_one(
    cupy: Any, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        # None is joined with its neighbours.
        monkeypatch.setattr(joined, "LARGE_BYTES", 0)
    host = np.random.default_rng(0).integers(0, 9, 1_000_000)
    with dc.Node() as node:
        x = on_gpu(cupy, host, 300_000).persist()
        for family, call, expected in (
            ("scan", dc.cumsum, np.cumsum(host)),
            ("histogram", lambda x: counts(x, 9, (0, 9)), np.bincount(host)),
        ):
            for strategy in (AUTO, MULTICHUNK, "lines" if family == "scan" else "packed"):
                with dask.config.set({f"coop.strategy.{family}": strategy}):
                    result = call(x).compute()
                np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(result)), expected)
                alone = f"strategy {strategy!r} takes chunks one by one"
                # A scan whose chunks were joined into one gives no reason.
                says = strategy == "packed" or (strategy == "lines" and not small)
                assert (alone in str(node.explain())) == says
    with named("scan", MULTICHUNK), pytest.raises(ValueError, match="of a Node or a collective"):
        dc.cumsum(x).compute()
