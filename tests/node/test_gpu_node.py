"""Node on the GPUs of this machine."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, Task, TaskRef

import dask_coop as dc
from dask_coop.graph import transfer

# One process at a time has all GPUs for its launches.
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("node")]

#: Writes late, so that whoever does not wait reads zeros.
LATE = """extern "C" __global__ void late(long long* x, long long n, long long cycles) {
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
  for (long long i = 0; i < n; i++) x[i] = i;
}"""


@pytest.fixture
def node() -> Iterator[dc.Node]:
    with dc.Node() as node:
        yield node


@pytest.fixture
def several(node: dc.Node) -> int:
    """Return how many GPUs there are, if more than one."""
    if len(node.devices) < 2:
        pytest.skip("needs two GPUs")
    return len(node.devices)


def chunks_of(x: da.Array) -> list[Any]:
    """Return the chunks, each where it lies."""
    return list(dask.compute(*x.to_delayed().ravel()))


def on_gpus(host: Any, chunks: Any) -> da.Array:
    return da.from_array(host, chunks=chunks).to_backend("cupy").persist()


def equal(x: Any, host: Any) -> None:
    import cupy

    x = x.compute() if isinstance(x, da.Array) else x
    assert isinstance(x, cupy.ndarray)
    np.testing.assert_array_equal(cupy.asnumpy(x), host)


def plus_one(x: Any, _: Any) -> Any:
    return x + 1


@pytest.mark.parametrize("chunks", [37, 500])
def test_chunks_lie_in_contiguous_runs_and_stay_there(node: dc.Node, chunks: int) -> None:
    host = np.arange(1000)
    x = on_gpus(host, chunks)
    n, gpus = x.numblocks[0], len(node.devices)
    expected = [i * gpus // n for i in range(n)]
    assert [chunk.device.id for chunk in chunks_of(x)] == expected
    assert [chunk.device.id for chunk in chunks_of((x * 2 + x).persist())] == expected
    equal(x, host)


def test_dasks_functions_give_numpys_results(node: dc.Node) -> None:
    host = np.random.default_rng(0).integers(-99, 99, (300, 200))
    x = on_gpus(host, (70, 33))
    equal(x + 1, host + 1)
    equal(x.map_blocks(lambda block: block * 2, dtype=x.dtype), host * 2)
    equal(x.rechunk((41, 90)), host)
    equal(x.sum(axis=0), host.sum(0))
    equal(x + x[::-1], host + host[::-1])


def test_products_of_blocks_give_numpys_results(node: dc.Node) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.cublas", exc_type=ImportError)
    host = np.random.default_rng(0).integers(-99, 99, (300, 200))
    x = on_gpus(host, (70, 33))
    equal(da.tensordot(x, x.T, axes=1), host @ host.T)


def test_our_functions_give_numpys_results(node: dc.Node) -> None:
    host = np.random.default_rng(0).integers(-99, 99, 5000)
    x = on_gpus(host, 170)
    total, running, (counts, _) = dask.compute(
        dc.sum(x), dc.cumsum(x), dc.histogram(x, bins=50, range=(-99, 99))
    )
    assert int(total) == host.sum()
    equal(running, host.cumsum())
    equal(counts, np.histogram(host, 50, (-99, 99))[0])
    random = da.random.random(10_000, chunks=999).to_backend("cupy")
    assert float(dc.mean(random).compute()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_quantiles_are_found_by_counts_over_all_gpus(node: dc.Node, dtype: str) -> None:
    host = (np.random.default_rng(1).standard_normal(300_001) * 1000).astype(dtype)
    x = on_gpus(host, 9_000)
    for q in (0.5, [0.01, 0.3, 0.99]):
        equal(dc.quantile(x, q).compute(), np.quantile(host, q))
        assert "one launch over 34 chunks" in node.explain()


def test_copies_between_gpus_are_in_order(several: int) -> None:
    """Large chunks that change GPUs, while the memory they leave is used again."""
    n, chunk = 1 << 22, (1 << 22) // (4 * several)
    x = on_gpus(np.arange(n), chunk)
    host = np.arange(n)
    for i in range(1, 10):
        x = (x + x[::-1] * i).persist()
        host = host + host[::-1] * i
    equal(x, host)


def test_any_layout_moves(several: int) -> None:
    import cupy

    from dask_coop.cuda import peers

    with cupy.cuda.Device(0):
        base = cupy.arange(60).reshape(5, 12)
        arrays = [
            base,
            base.T,
            base[::-2, 1::3],
            base[0, 0],
            base[:0],
            cupy.broadcast_to(base[0], (3, 12)),
            base.astype("?"),
        ]
    hosts = [cupy.asnumpy(x) for x in arrays]
    for x, host in zip(peers.move(arrays, 1), hosts, strict=True):
        assert (x.device.id, x.dtype, x.shape) == (1, host.dtype, host.shape)
        with cupy.cuda.Device(1):
            np.testing.assert_array_equal(cupy.asnumpy(x), host)
    assert [peers.device_of(x) for x in (*arrays, hosts[0], None)] == [0] * 7 + [None, None]


def test_a_producer_on_another_stream_is_waited_for_and_waits(node: dc.Node) -> None:
    import cupy

    n = 1000
    late = cupy.RawKernel(LATE, "late")
    # More bytes than the source, so that each GPU has the source copied to it.
    there = chunks_of(on_gpus(np.zeros(2 * n * len(node.devices)), 2 * n))
    # No Dask array, because naming the source would bring it to the host.
    graph: dict[Any, Any] = {}
    for i, pad in enumerate(there):
        graph["pad", i] = DataNode(("pad", i), pad)
        graph["out", i] = Task(("out", i), plus_one, TaskRef("source"), TaskRef(("pad", i)))
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
        source = cupy.zeros(n, np.int64)
        graph["source"] = DataNode("source", source)
        outs = [("out", i) for i in range(len(there))]
        # Once to compile, so that the second time is over before the kernel is.
        late((1,), (1,), (source, np.int64(0), np.int64(0)))
        node.get(graph, outs)
        late((1,), (1,), (source, np.int64(n), np.int64(10**9)))
        results = node.get(graph, outs)
        assert not stream.done
        # Were this to overtake the node, it would change what the node reads.
        source[:] = -1
        assert [x.device.id for x in results] == list(node.devices)
        for x in results:
            np.testing.assert_array_equal(cupy.asnumpy(x), np.arange(n) + 1)


def test_a_stream_that_a_task_leaves_is_no_other_tasks(node: dc.Node) -> None:
    import cupy

    n, left = 1000, list[Any]()
    late = cupy.RawKernel(LATE, "late")

    def leave(x: Any) -> Any:
        left.append(cupy.cuda.Stream(non_blocking=True))
        left[-1].use()
        return x

    def write(x: Any) -> Any:
        late((1,), (1,), (x, np.int64(n), np.int64(10**9)))
        return x

    with cupy.cuda.Device(node.devices[0]):
        x = cupy.zeros(n, np.int64)
        # Once to compile, so that the second time is over before the kernel is.
        late((1,), (1,), (x, np.int64(0), np.int64(0)))
        graph = {
            "x": DataNode("x", x),
            "left": Task("left", leave, TaskRef("x")),
            "late": Task("late", write, TaskRef("left")),
        }
        # Which waits for the default stream only.
        np.testing.assert_array_equal(cupy.asnumpy(node.get(graph, "late")), np.arange(n))


def test_memory_goes_back(node: dc.Node) -> None:
    # What is kept for the next time, such as tables of kernels, is there before.
    dc.cumsum(on_gpus(np.zeros(1 << 22), 1 << 18)).persist()
    gc.collect()
    before = node.memory()
    x = on_gpus(np.zeros(1 << 22), 1 << 18)
    y = dc.cumsum(x).persist()
    during = node.memory()
    assert sum(m.used for m in during.values()) - sum(m.used for m in before.values()) >= 2 << 25
    for memory in during.values():
        assert 0 <= memory.used <= memory.pool <= memory.total - memory.free
    del x, y
    gc.collect()
    assert [m.used for m in node.memory().values()] == [m.used for m in before.values()]


def test_a_failure_names_its_gpu(several: int, node: dc.Node) -> None:
    import cupy

    def fails(x: Any) -> None:
        raise ZeroDivisionError

    with cupy.cuda.Device(1):
        x = cupy.zeros(3)
    graph = {"x": DataNode("x", x), "bad": Task("bad", fails, TaskRef("x"))}
    with pytest.raises(ZeroDivisionError) as caught:
        node.get(graph, "bad")
    assert caught.value.__notes__ == ["in task 'bad' on GPU 1"]


def test_a_node_tells_its_gpus() -> None:
    from cupy.cuda import runtime

    count = runtime.getDeviceCount()
    name = runtime.getDeviceProperties(0)["name"].decode()
    with dc.Node([0]) as node:
        assert repr(node).startswith(f"<Node: 1 x {name} (0), ")
        assert node.memory()[0].total == runtime.getDeviceProperties(0)["totalGlobalMem"]
    with dc.Node() as node:
        assert node.devices == tuple(range(count))
    with pytest.raises(ValueError, match=f"0 to {count - 1}, got {count}"):
        dc.Node([0, count])


def test_ones_own_monoids_of_vectors_and_ufuncs(node: dc.Node) -> None:
    host = np.random.default_rng(0).permutation(1000)
    x = on_gpus(host, 37)
    span = dc.Monoid(
        "span",
        np.minimum,
        np.iinfo("i8").max,
        ("i8", (2,)),
        lift=lambda x: np.stack([x, -x], -1),
        finalize=lambda v: (v[..., 0], -v[..., 1]),
        cuda={
            "lift": "{{x, -x}}",
            "combine": "for (int i = 0; i < 2; ++i) a.value[i] = min(a.value[i], b.value[i]);"
            " return a;",
        },
    )
    for found, expected in zip(dc.reduce(x, span), (host.min(), host.max()), strict=True):
        equal(found, expected)
    accumulated = np.minimum.accumulate(host), np.maximum.accumulate(host)
    for found, expected in zip(dc.scan(x, span), accumulated, strict=True):
        equal(found, expected)
    for ufunc in (np.add, np.maximum, np.bitwise_xor, np.logical_xor):
        equal(dc.reduce(x, ufunc), ufunc.reduce(host))
        equal(dc.scan(x, ufunc), ufunc.accumulate(host))


def test_the_pool_stays_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from dask_coop.cuda import peers

    # Other processes may use the same GPU.
    monkeypatch.setattr(peers, "outside", lambda ordinal: 0)
    limit, most, done = 16 << 20, 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not done.wait(0.0005):
            most = max(most, peers.held(0))

    put_into = transfer.chunks.put_into

    def put_slowly(*given: Any) -> None:
        time.sleep(0.02)
        put_into(*given)

    monkeypatch.setattr(transfer.chunks, "put_into", put_slowly)

    # Pieces of the pool that fit one chunk do not fit the next.
    sizes = [(1 << 17) - 4096 * (i % 9) for i in range(200)]
    host = np.random.default_rng(3).integers(-9, 9, sum(sizes)).astype("f8")
    out = np.empty_like(host)
    with cupy.cuda.Device(0):
        cupy.get_default_memory_pool().free_all_blocks()
    before, looking = peers.held(0), threading.Thread(target=look)
    looking.start()
    try:
        with dc.Node([0], memory_limit=before + limit) as node:
            there = dc.to_gpu(da.from_array(host, chunks=(tuple(sizes),)))
            da.store(dc.to_host(dc.cumsum(there, axis=0)), out, lock=False)
            assert "waited until less than" in node.explain()
    finally:
        done.set()
        looking.join()
    np.testing.assert_array_equal(out, host.cumsum())
    assert limit / 3 < most - before <= limit
