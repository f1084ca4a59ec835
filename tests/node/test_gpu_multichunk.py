"""Launches on all GPUs, of which there may be one: every monoid, chunks of any sizes anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from support.at_once import at_once
from support.explained import launches

import dask_coop as dc
from dask_coop.graph import joined

# One process at a time has all GPUs for its launches.
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("node")]


#: Holds a GPU.
SPIN = """extern "C" __global__ void spin(long long cycles) {
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
}"""


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave chunks apart, which would be joined to one if they lie on one GPU."""
    monkeypatch.setattr(joined, "LARGE_BYTES", 0)


@pytest.fixture(scope="module")
def node() -> Iterator[dc.Node]:
    with dc.Node() as node:
        yield node


def spread(host: Any, cuts: Any, devices: Any, name: str = "x", shift: int = 0) -> da.Array:
    """Return an array with chunks between `cuts` on `devices`, `shift` elements off alignment."""
    import cupy

    edges = [0, *cuts, len(host)]
    graph: dict[Any, Any] = {}
    for i, device in enumerate(devices):
        with cupy.cuda.Device(device):
            room = cupy.empty(edges[i + 1] - edges[i] + shift, host.dtype)
            graph[name, i] = room[shift:]
            graph[name, i].set(host[edges[i] : edges[i + 1]])
    sizes = tuple(int(n) for n in np.diff(edges))
    return da.Array(graph, name, (sizes,), meta=cupy.empty(0, host.dtype))


def alternating(node: dc.Node, host: Any, chunks: int = 7) -> da.Array:
    cuts = np.linspace(0, len(host), chunks + 1).astype(int)[1:-1]
    return spread(host, cuts, [node.devices[i % len(node.devices)] for i in range(chunks)])


def on_host(x: Any) -> Any:
    import cupy

    if isinstance(x, cupy.ndarray):
        with x.device:
            return cupy.asnumpy(x)
    return np.asarray(x)


def launched(node: dc.Node, lazy: Any) -> Any:
    """Return a result on the host, made by one launch and no plain tasks."""
    result = on_host(lazy.compute(scheduler=node.get))
    told = node.explain()
    assert "one launch over" in told
    assert "plain tasks" not in told
    return result


def test_the_callers_gpu_and_stream_stay_as_they_are(node: dc.Node) -> None:
    """Although launches are made in its thread, on default streams."""
    import cupy

    host = np.arange(200_003, dtype="i8")
    x, last = alternating(node, host), node.devices[-1]
    there = [x.dask[x.name, i] for i in range(x.npartitions)]
    parts = np.split(host, np.cumsum(x.chunks[0])[:-1])
    doubled = np.concatenate(
        [part * (1 + (chunk.device.id == last)) for part, chunk in zip(parts, there, strict=True)]
    )
    spin = cupy.RawKernel(SPIN, "spin")
    with cupy.cuda.Device(last), cupy.cuda.Stream(non_blocking=True) as stream:
        # Once to compile, so that the second time is not over before the launch.
        for cycles in (0, 10**8):
            spin((1,), (1,), (np.int64(cycles),))
            for chunk in there:
                if chunk.device.id == last:
                    cupy.multiply(chunk, 1 + (cycles > 0), out=chunk)
        total = launched(node, dc.sum(x))
        running = dc.cumsum(x).persist(scheduler=node.get)
        counts = launched(node, dc.histogram(x, 9, (0, 400_006))[0])
        assert cupy.cuda.Device().id == last
        assert cupy.cuda.get_current_stream() == stream
    assert total == doubled.sum()
    np.testing.assert_array_equal(on_host(running.compute(scheduler=node.get)), doubled.cumsum())
    np.testing.assert_array_equal(counts, np.histogram(doubled, 9, (0, 400_006))[0])


def values(dtype: str, n: int = 200_003) -> Any:
    rng = np.random.default_rng(11)
    kind = np.dtype(dtype).kind
    if kind == "c":
        return (rng.integers(-9, 9, n) + 1j * rng.integers(-9, 9, n)).astype(dtype)
    if dtype == "f2":
        # Sums stay in its range.
        return rng.choice([-2, -1, 0, 1, 2], n).astype(dtype)
    low, high = (-9, 9) if kind == "f" else (0, 2) if kind == "b" else (0, 50)
    return rng.integers(low, high, n).astype(dtype)


REAL = ["?", "i1", "u1", "i2", "u4", "i4", "i8", "u8", "f2", "f4", "f8"]
REDUCTIONS = {
    "sum": [*REAL, "c8", "c16"],
    "prod": ["i4", "f8", "c8"],
    "min": REAL,
    "max": REAL,
    "ptp": ["i4", "f4"],
    "argmin": REAL,
    "argmax": REAL,
    "any": ["?", "f4"],
    "all": ["?", "i8"],
    "mean": [*REAL, "c8"],
    "var": [*REAL, "c16"],
    "std": ["f4"],
    "norm": ["f4", "c8"],
    "count_nonzero": ["i4", "f4"],
    "nansum": ["f4", "f8"],
    "nanprod": ["f8"],
    "nanmin": ["f4"],
    "nanmax": ["f8"],
    "nanmean": ["f2", "f4"],
    "nanvar": ["f8"],
    "nanargmax": ["f4"],
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, dtypes in REDUCTIONS.items() for dtype in dtypes]
)
def test_every_reduction_is_numpys_in_one_launch(node: dc.Node, name: str, dtype: str) -> None:
    host = values(dtype)
    if name in ("prod", "nanprod"):
        host = (
            np.where(host == 0, 1, np.sign(host)).astype(dtype)
            if host.dtype.kind != "c"
            else (np.exp(1j * np.arange(host.size)).astype(dtype))
        )
    if name.startswith("nan"):
        host[::5] = np.nan
    if name == "any":
        host[:] = 0
        host[150_000] = 1
    got = launched(node, getattr(dc, name)(alternating(node, host)))
    if name == "norm":
        expected: Any = np.linalg.norm(host.astype("c16"))
    else:
        wide = {"dtype": "f8"} if name in ("mean", "var", "std") and dtype in ("f2", "f4") else {}
        expected = getattr(np, name)(host, **wide)
    if host.dtype.kind in "biu" or name in ("argmin", "argmax", "min", "max"):
        tolerance = 0.0 if name not in ("mean", "var", "std") else 1e-12
    else:
        tolerance = 2e-3 if dtype == "f2" else 1e-5 if dtype in ("f4", "c8") else 1e-12
    np.testing.assert_allclose(got, expected, rtol=tolerance)


def test_describe_and_arrays_of_several_axes(node: dc.Node) -> None:
    host = values("f4", 400 * 300).reshape(400, 300)
    x = da.from_array(host, chunks=(90, 70)).to_backend("cupy").persist(scheduler=node.get)
    told = dc.describe(x)
    np.testing.assert_allclose(launched(node, told.var), host.var(dtype="f8"), rtol=1e-6)
    assert launched(node, dc.argmax(x)) == host.argmax()
    assert launched(node, dc.sum(x)) == host.sum(dtype="f8")
    # A view of each chunk is made on the way.
    assert on_host(dc.sum(x.T).compute(scheduler=node.get)) == host.sum(dtype="f8")
    assert "made on the way" in node.explain()


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
def test_reproducible_sums_have_the_bits_of_one_chunk(node: dc.Node, dtype: str) -> None:
    rng = np.random.default_rng(5)
    host = (rng.standard_normal(100_000) * 10.0 ** rng.integers(-9, 9, 100_000)).astype(dtype)
    one = on_host(dc.sum(da.from_array(host, chunks=-1), reproducible=True).compute())
    for chunks in (3, 8):
        got = launched(node, dc.sum(alternating(node, host, chunks), reproducible=True))
        assert got.tobytes() == one.tobytes()


SCANS = {
    "cumsum": [*REAL, "c8", "c16"],
    "cumprod": ["i4", "f8"],
    "cummax": REAL,
    "cummin": ["i2", "f4"],
    "nancumsum": ["f4"],
    "logcumsumexp": ["f4"],
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, dtypes in SCANS.items() for dtype in dtypes]
)
def test_every_scan_is_numpys_in_one_launch(node: dc.Node, name: str, dtype: str) -> None:
    host = values(dtype)
    if name == "cumprod":
        host = np.where(host % 2 == 0, 1, -1).astype(dtype)
    if name == "nancumsum":
        host[::5] = np.nan
    x = alternating(node, host)
    got = launched(node, getattr(dc, name)(x))
    functions: dict[str, Any] = {
        "cummax": np.maximum.accumulate,
        "cummin": np.minimum.accumulate,
        "logcumsumexp": np.logaddexp.accumulate,
    }
    if name == "logcumsumexp":
        np.testing.assert_allclose(got, functions[name](host.astype("f8")), rtol=1e-6)
        return
    wide = host.astype("f8") if dtype in ("f2", "f4") and name.endswith("sum") else host
    expected = functions.get(name, getattr(np, name, None))(wide)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, expected.astype(got.dtype))


def test_scans_stay_on_the_gpus_of_their_chunks(node: dc.Node) -> None:
    x = alternating(node, values("f4"), 9)
    y = dc.cumsum(x).persist(scheduler=node.get)
    chunks = dask.compute(*y.to_delayed().ravel(), scheduler=node.get)
    count = len(node.devices)
    assert [chunk.device.id for chunk in chunks] == [node.devices[i % count] for i in range(9)]
    assert [chunk.size for chunk in chunks] == list(x.chunks[0])


@pytest.mark.parametrize("bins", [1, 10, 256, 16_384, 57_344, 100_000])
@pytest.mark.parametrize("dtype", ["f4", "i4", "u1", "?"])
def test_histograms_are_numpys_in_one_launch(node: dc.Node, bins: int, dtype: str) -> None:
    host = values(dtype)
    lazy, edges = dc.histogram(alternating(node, host), bins, (-9, 40))
    expected = np.histogram(host.astype("u1") if dtype == "?" else host, bins, (-9, 40))
    np.testing.assert_array_equal(launched(node, lazy), expected[0])
    np.testing.assert_array_equal(edges, expected[1])


def test_a_histogram_finds_its_range_and_takes_edges(node: dc.Node) -> None:
    host = values("f4")
    x = alternating(node, host)
    counts, edges = dc.histogram(x, 13)
    expected, expected_edges = np.histogram(host, 13)
    np.testing.assert_array_equal(launched(node, counts), expected)
    np.testing.assert_array_equal(on_host(edges.compute(scheduler=node.get)), expected_edges)
    given = np.array([-8, -2.5, 0, 1, 7])
    np.testing.assert_array_equal(
        launched(node, dc.histogram(x, given)[0]), np.histogram(host, given)[0]
    )


def test_what_is_too_large_for_a_block_is_counted_by_plain_tasks(node: dc.Node) -> None:
    host = values("f4")
    lazy, _ = dc.histogram(alternating(node, host), 1_000_000, (-9, 9))
    got = on_host(lazy.compute(scheduler=node.get))
    np.testing.assert_array_equal(got, np.histogram(host, 1_000_000, (-9, 9))[0])
    assert launches(node).endswith("does not fit the memory of a block")


def test_a_thousand_random_cases(node: dc.Node) -> None:
    rng = np.random.default_rng(2026)
    sizes = [0, 1, 7, 1000, 1024, 4097, 100_003]
    for case in range(1000):
        count = int(rng.integers(2, 12))
        lengths = rng.choice(sizes, count)
        dtype = str(rng.choice(["i4", "f4", "i8", "f8", "u1"]))
        host = rng.integers(0, 9, int(lengths.sum())).astype(dtype)
        some = rng.permutation(node.devices)[: int(rng.integers(1, len(node.devices) + 1))]
        devices = rng.choice(some, count).tolist()
        x = spread(host, np.cumsum(lengths)[:-1], devices, f"x{case}")
        says = f"case {case}: {dtype}, {lengths}, {devices}"
        options = {"exclusive": bool(rng.integers(2)), "reverse": bool(rng.integers(2))}
        total, running, counts = dask.compute(
            dc.sum(x),
            dc.cumsum(x, **options),
            dc.histogram(x, 9, (0, 9))[0],
            scheduler=node.get,
        )
        assert on_host(total) == host.sum(), says
        step = -1 if options["reverse"] else 1
        expected = np.cumsum(host[::step])
        if options["exclusive"]:
            expected = expected - host[::step]
        np.testing.assert_array_equal(on_host(running), expected[::step], says)
        np.testing.assert_array_equal(on_host(counts), np.bincount(host.astype(int), minlength=9))
        assert "one launch" in node.explain(), says


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", ["i8", "f4", "u1"])
def test_blocks_scan_many_tiles(node: dc.Node, dtype: str, shift: int) -> None:
    """Chunks of odd sizes that lie anywhere, of many times what a block holds at a time."""
    lengths = [30_000_001, 17_000_003, 24_000_000, 5, 12_345_678]
    host = np.random.default_rng(1).integers(0, 4, sum(lengths)).astype(dtype)
    devices = [node.devices[i % len(node.devices)] for i in range(len(lengths))]
    x = spread(host, np.cumsum(lengths)[:-1], devices, shift=shift)
    out = "f8" if dtype == "f4" else dtype if dtype == "i8" else "u8"
    total = np.cumsum(host, dtype=out)
    for reverse in (False, True):
        expected = total[-1] - total + host if reverse else total
        for exclusive in (False, True):
            got = launched(node, dc.cumsum(x, reverse=reverse, exclusive=exclusive))
            wanted = (expected - host if exclusive else expected).astype(got.dtype)
            np.testing.assert_array_equal(got, wanted)
    assert launched(node, dc.sum(x)) == host.sum(dtype=out).astype(x.dtype if out == "f8" else out)
    counts = launched(node, dc.histogram(x, 4, (0, 4))[0])
    np.testing.assert_array_equal(counts, np.bincount(host.astype("u1")))


def test_what_a_stream_has_yet_to_make_is_waited_for_by_another(node: dc.Node) -> None:
    import cupy

    host = np.arange(1 << 20)
    x = alternating(node, host, 4)
    spin = cupy.RawKernel(SPIN, "spin")
    for number in range(3):
        for chunk in x.dask.values():
            with chunk.device:
                # The node's own work on that GPU is late.
                spin((1,), (1,), (np.int64(number and 10**8),))
                chunk += 1
        with cupy.cuda.Device(node.devices[0]), cupy.cuda.Stream(non_blocking=True):
            total = int(dc.sum(x).compute(scheduler=node.get))
        assert total == host.sum() + (number + 1) * host.size


def test_other_allocators_serve_too(node: dc.Node) -> None:
    import cupy

    host = values("f4")
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    try:
        x = alternating(node, host)
        assert launched(node, dc.sum(x)) == host.sum(dtype="f8")
        chunks = dc.cumsum(x).persist(scheduler=node.get).to_delayed().ravel()
        assert "one launch over" in node.explain()
        got = [on_host(chunk) for chunk in dask.compute(*chunks, scheduler=node.get)]
        expected = np.cumsum(host, dtype="f8").astype("f4")
        np.testing.assert_array_equal(np.concatenate(got), expected)
        counts = launched(node, dc.histogram(x, 50_000, (-9, 9))[0])
        np.testing.assert_array_equal(counts, np.histogram(host, 50_000, (-9, 9))[0])
    finally:
        cupy.cuda.set_allocator(before)


def test_chunks_of_another_dtype_become_what_is_declared_in_plain_tasks(node: dc.Node) -> None:
    import cupy

    host = values("f4")
    x = alternating(node, host)
    graph = dict(x.dask)
    with cupy.cuda.Device(node.devices[0]):
        graph[x.name, 0] = graph[x.name, 0].astype("f8") * (1 + 1e-12)
    x = da.Array(graph, x.name, x.chunks, meta=x._meta)
    for lazy, expected in (
        (dc.histogram(x, 9, (-9, 9))[0], np.histogram(host, 9, (-9, 9))[0]),
        (dc.max(x), host.max()),
        (dc.median(x), np.median(host)),
        (dc.cummax(x), np.maximum.accumulate(host)),
    ):
        found = on_host(lazy.compute(scheduler=node.get))
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
        assert "a chunk has dtype float64, and its array declares float32" in node.explain()


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_sums_of_float64_keep_what_additions_round_off(node: dc.Node, dtype: str) -> None:
    host = np.random.default_rng(9).random(200_003).astype(dtype)
    x, real = alternating(node, host), host.real
    sums = [math.fsum(real[: i + 1]) for i in range(0, len(real), 997)]
    total = launched(node, dc.sum(x))
    assert abs(total - math.fsum(real)) <= np.spacing(math.fsum(real))
    running = launched(node, dc.cumsum(x)).real[::997]
    assert (abs(running - sums) / np.spacing(sums)).max() <= 16


def test_two_threads_at_once(node: dc.Node) -> None:
    host = values("i8")
    x = alternating(node, host)

    def work(_: int) -> None:
        for _ in range(30):
            total, running = dask.compute(dc.sum(x), dc.cumsum(x), scheduler=node.get)
            assert on_host(total) == host.sum()
            np.testing.assert_array_equal(on_host(running), host.cumsum())

    at_once(work, range(2))


def test_a_producer_on_another_stream_is_waited_for(node: dc.Node) -> None:
    import cupy

    n = 1 << 20
    spin = cupy.RawKernel(SPIN, "spin")
    x = alternating(node, np.zeros(n, "i8"), 4)
    first = x.dask[x.name, 0]
    # Once to compile, so that the second time is over before the kernel is.
    spin((1,), (1,), (np.int64(0),))
    first[...] = 2
    first[...] = 0
    dc.sum(x).compute(scheduler=node.get)
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
        spin((1,), (1,), (np.int64(5 * 10**8),))
        first[...] = 1
        assert not stream.done
        total = dc.sum(x).compute(scheduler=node.get)
        assert int(total) == first.size


def test_inputs_may_go_while_they_are_in_use(node: dc.Node) -> None:
    host = np.ones(1 << 22, "f4")
    for i in range(20):
        y = dc.cumsum(alternating(node, host * (i + 1), 8) * 1).persist(scheduler=node.get)
        # What is made next takes the memory of what is gone.
        spare = alternating(node, np.full(1 << 22, -1.0, "f4"), 8)
        expected = np.cumsum(host, dtype="f8") * (i + 1)
        np.testing.assert_array_equal(on_host(y.compute(scheduler=node.get)), expected.astype("f4"))
        del y, spare


def test_a_gpu_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from dask_coop.cuda import team as teams
    from dask_coop.cuda.programs.multichunk import MOST

    with dask.config.set({"coop.barrier-timeout": "200 ms"}):
        node = dc.Node()
    if len(node.devices) < 2:
        pytest.skip("needs two GPUs")
    x = alternating(node, values("i8"))
    original = teams.Team._peers
    with cupy.cuda.Device(node.devices[1]):
        nowhere = cupy.zeros(MOST + 1, "u4")

    def lost(self: Any, rank: int, ordinals: Any) -> Any:
        """Let one GPU speak where nobody listens."""
        peers = original(self, rank, ordinals)
        if rank == 1:
            peers["flags"] = nowhere.data.ptr
        return peers

    monkeypatch.setattr(teams.Team, "_peers", lost)
    first, second = node.devices[:2]
    waited = f"after 0.2 s at the barrier: GPU {first} for GPU {second}, GPU {second} for GPU"
    for lazy in (dc.sum(x), dc.cumsum(x), dc.histogram(x, 9, (0, 50))[0]):
        with pytest.raises(dc.CooperativeTimeout, match=waited):
            lazy.compute(scheduler=node.get)
    monkeypatch.undo()
    assert launched(node, dc.sum(x)) == values("i8").sum()
    node.close()


def test_launches_that_block_keep_gpus_from_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    host = values("i8")
    with dc.Node() as node:
        assert int(dc.sum(alternating(node, host)).compute()) == host.sum()
        several = len(node.devices) > 1
        assert ("because CUDA_LAUNCH_BLOCKING" in node.explain()) == several
    with dc.Node([node.devices[-1]]) as one:
        assert launched(one, dc.sum(alternating(one, host))) == host.sum()
