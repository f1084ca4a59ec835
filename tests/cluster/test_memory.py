"""What collectives take of the memory of workers: no more than a graph would."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of
from support.clusters import cluster, evict_all, spread, values

import dask_coop as dc
from dask_coop.cluster.memory import Memory
from dask_coop.errors import Absent

pytestmark = pytest.mark.xdist_group("collective_memory")

MIB = 1 << 20
#: Of a chunk.
SIZE = 8 * MIB
CHUNKS = 16
LABELS = np.arange(CHUNKS * SIZE // 8) % 7


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client of one worker, which spills what it is told to."""
    config = {
        "distributed.worker.memory.target": 0.95,
        "distributed.worker.memory.spill": 0.95,
        "distributed.worker.memory.pause": 0.95,
    }
    with cluster(1, 1, config, memory_limit="2GB") as client:
        yield client


def peak(dask_worker: Any) -> int:
    """Return the most that the process has had, which falls when asked for."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    ("function", "beside"),
    [
        (dc.sum, 0),
        (dc.describe, 0),
        (lambda x, **how: dc.histogram(x, 100, (0, x.size), **how)[0], 0),
        # Their codes are data beside the chunks.
        (lambda x, **how: dc.groupby_reduce(x, LABELS[: x.size], func="max", **how)[0], 0.5),
        (dc.cumsum, 1),
    ],
    ids=["sum", "describe", "histogram", "groups", "cumsum"],
)
def test_spilled_chunks_are_read_one_by_one(
    client: Client, fallbacks: Any, function: Any, beside: float
) -> None:
    # What is compiled and imported counts for neither.
    function(spread(client, 1, SIZE // 8), engine="collective")
    x = spread(client, CHUNKS, SIZE // 8)
    evict_all(client)
    (before,) = client.run(peak).values()
    (before,) = client.run(peak).values()
    found = function(x, engine="collective")
    (after,) = client.run(peak).values()
    assert fallbacks() == []
    assert after - before < (beside * CHUNKS + 5) * SIZE
    (spilled,) = client.run(lambda dask_worker: [*dask_worker.data.slow]).values()
    assert {future.key for future in futures_of(x)} <= {*spilled}
    expected = function(da.from_array(np.arange(x.size), chunks=x.chunks))
    for mine, other in zip(_all(found), _all(expected), strict=True):
        np.testing.assert_array_equal(values(client, mine), dask.compute(other)[0])


def _all(found: Any) -> list[Any]:
    return [*found] if isinstance(found, tuple) else [found]


class Process:
    """A worker that has taken so many MiB, of 100, and spills chunks of 10, which frees some."""

    def __init__(self, taken: int, chunks: int, freed: int, **fractions: Any) -> None:
        self.address = "tcp://here:1"
        self.taken, self.fast, self._freed = taken, [10] * chunks, freed
        self.data = self
        self.monitor = SimpleNamespace(get_process_memory=lambda: self.taken * MIB)
        shares = {"memory_spill_fraction": 0.7, "memory_pause_fraction": 0.8} | fractions
        self.memory_manager = SimpleNamespace(memory_limit=100 * MIB, **shares)

    def evict(self) -> int:
        self.taken -= self._freed
        return self.fast.pop() * MIB


@pytest.mark.parametrize(
    ("fractions", "left"),
    [
        ({}, 15),
        ({"memory_spill_fraction": False}, 20),
        ({"memory_pause_fraction": False}, 15),
        ({"memory_spill_fraction": False, "memory_pause_fraction": False}, 20),
        ({"memory_spill_fraction": 0.9, "memory_pause_fraction": 0.7}, 10),
    ],
)
def test_what_is_left_ends_before_a_worker_pauses(fractions: dict[str, Any], left: int) -> None:
    worker: Any = Process(60, 0, 0, **fractions)
    assert Memory(worker).left() == pytest.approx(left * MIB)
    worker.memory_manager.memory_limit = None
    assert Memory(worker).left() == float("inf")


def test_room_is_made_by_spilling_no_more_than_needed() -> None:
    worker: Any = Process(60, 4, 10)
    Memory(worker).make(15 * MIB)
    assert len(worker.fast) == 4
    Memory(worker).make(33 * MIB)
    assert len(worker.fast) == 2
    with pytest.raises(Absent, match=r"tcp://here:1 has no room for 90.00 MiB: .* take 55.00 MiB"):
        Memory(worker).make(90 * MIB)
    # What is small is not worth it.
    Memory(worker).make(MIB)


def test_chunks_that_are_held_elsewhere_are_not_spilled_in_vain() -> None:
    worker: Any = Process(60, 100, 0)
    with pytest.raises(Absent, match=r"has no room for 25\.00 MiB"):
        Memory(worker).make(25 * MIB)
    assert len(worker.fast) == 98


def test_what_runs_out_of_memory_is_a_graph(client: Client, fallbacks: Any) -> None:
    def lift(x: Any) -> Any:
        if x.size > 2 and "Dask-Coop" in __import__("threading").current_thread().name:
            raise MemoryError("Unable to allocate 9 PiB")
        return x

    greedy = dc.Monoid("greedy", np.add, 0, "i8", lift=lift, commutative=True)
    x = spread(client, 2, SIZE // 8)
    total = dc.reduce(x, greedy, engine="collective")
    assert values(client, total) == x.size * (x.size - 1) // 2
    (said,) = fallbacks()
    assert "ran out of memory: MemoryError('Unable to allocate 9 PiB')" in said


def test_labels_have_room_on_a_worker_or_are_in_a_graph(
    client: Client, fallbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = spread(client, 2, 300_000)
    labels = np.arange(x.size) % 5
    expected = np.bincount(labels, np.arange(x.size)).astype("i8")
    for share, declines in ((0.7, False), (0.01, True)):
        monkeypatch.setattr("dask_coop.cluster.client.FULL", share)
        sums, _ = dc.groupby_reduce(x, labels, func="sum", engine="collective")
        np.testing.assert_array_equal(values(client, sums), expected)
        said = fallbacks()
        assert len(said) == declines
        assert all("has no room for labels of 2400000 bytes" in reason for reason in said)
