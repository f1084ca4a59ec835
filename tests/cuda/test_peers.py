"""Which GPUs reach one another's memory, and on which streams tasks work, without a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dask._task_spec import DataNode, Task, TaskRef
from support.host_cupy.gpus import Device
from support.host_cupy.modules import CupyArray, Stream, get_current_stream, peers_without_gpus

import dask_coop as dc
from dask_coop.node import node as module

ALL = "CUDA_SUCCESS"


def on_gpu(ordinal: int) -> CupyArray:
    with Device(ordinal):
        return np.zeros(1).view(CupyArray)


def pairs(n: int) -> set[tuple[int, int]]:
    return {(a, b) for a in range(n) for b in range(n) if a != b}


def test_all_that_are_connected_are_told() -> None:
    with peers_without_gpus(4) as peers:
        assert peers.connect(range(4)) == pairs(4)
        # What was connected before is still.
        assert peers.connect([2, 0]) == {(0, 2), (2, 0)}
        assert peers.connect([1]) == set()


def test_more_peers_than_a_gpu_may_have_are_not_connected() -> None:
    """As on hosts without NVSwitch, where it may have eight."""
    had = Counter[int]()

    def connects(gpu: int, peer: int) -> str:
        had[gpu] += 1
        return ALL if had[gpu] <= 8 else "CUDA_ERROR_TOO_MANY_PEERS"

    with peers_without_gpus(10, connects) as peers:
        connected = peers.connect(range(10))
    assert pairs(10) - connected == {(gpu, 9 if gpu < 9 else 8) for gpu in range(10)}


@pytest.mark.parametrize(
    "error", ["CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "CUDA_ERROR_INVALID_CONTEXT"]
)
def test_a_pair_that_the_driver_refuses(error: str) -> None:
    with peers_without_gpus(3, lambda *pair: error if pair == (1, 2) else ALL) as peers:
        if error.endswith("UNSUPPORTED"):
            assert peers.connect(range(3)) == pairs(3) - {(1, 2)}
            return
        with pytest.raises(
            RuntimeError, match="GPU 1 does not reach GPU 2: CUDA_ERROR_INVALID_CONTEXT"
        ):
            peers.connect(range(3))


def test_what_cannot_access_another_is_not_connected() -> None:
    with peers_without_gpus(3, can_access=lambda *pair: 2 not in pair) as peers:
        assert peers.connect(range(3)) == pairs(2)


def test_a_gpu_is_used_by_its_default_stream() -> None:
    with peers_without_gpus(2) as peers:
        peers.use(1)
        Stream().use()
        peers.use(0)
        assert get_current_stream() is Stream.null
        peers.use(1)
        assert get_current_stream() is Stream.null


@pytest.fixture
def _streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Nodes work on GPUs that have streams."""
    with peers_without_gpus(2) as peers:
        monkeypatch.setattr(module, "_peers", lambda: peers)
        monkeypatch.setattr(module, "take_over", lambda _: lambda: True)
        yield


def leave_stream(_: Any) -> CupyArray:
    """Be a task that does not go back to the stream that it found."""
    assert get_current_stream() is Stream.null
    Stream().use()
    return on_gpu(1)


@pytest.mark.usefixtures("_streams")
def test_no_task_works_on_the_stream_of_another() -> None:
    keys = [("x", i) for i in range(9)]
    graph: dict[Any, Any] = {"gpu": DataNode("gpu", on_gpu(1))}
    graph |= {key: Task(key, leave_stream, TaskRef("gpu")) for key in keys}
    with dc.Node() as node:
        assert len(node.get(graph, keys)) == 9


@pytest.mark.usefixtures("_streams")
def test_a_task_computes_in_the_order_of_its_stream_and_keeps_it() -> None:
    seen: list[Any] = []

    def computes(_: Any) -> None:
        own = Stream()
        own.use()
        Stream.null.waited.clear()
        node.get({"x": Task("x", leave_stream, 0)}, "x")
        seen.extend([get_current_stream() is own, own in Stream.null.waited, own.waited])

    with dc.Node() as node:
        node.get({"x": Task("x", computes, on_gpu(1))}, "x")
    assert seen == [True, True, [Stream.null]]
