"""Where states of a scan meet: in shares of their lines, in one piece each, for all or for none."""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from distributed.protocol import Serialize, dumps, loads

from dask_coop.cluster.jobs import Stacked, merged
from dask_coop.cluster.meeting import Meetings, joined, split
from dask_coop.cluster.worker import opened

RNG = np.random.default_rng(1)


def states(numbers: list[int], *shapes: tuple[int, ...]) -> Stacked:
    """Return states with a field for each of some shapes."""
    return Stacked(np.array(numbers), tuple(RNG.normal(size=(len(numbers), *s)) for s in shapes))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "parts",
    [
        [states([0, 2], (5, 3), (5, 3)), states([1], (5, 3), (5, 3))],
        # Of another shape, with a number for all lines, without lines, and fewer than places.
        [states([4], (2, 9), (1, 1)), states([1, 3], (0, 9), (0, 9))],
        [states([0, 1], (2,), (1,))],
        [states([0], (1,), (1,))],
    ],
)
def test_shares_of_lines_join_to_the_whole(parts: list[Stacked], n: int) -> None:
    of_places = split(parts, n)
    assert len(of_places) == n
    for share in of_places:
        assert all(field.flags.c_contiguous for part in share for field in part.fields)
    longest = max(max(field.nbytes for field in part.fields) for part in parts)
    most = max(max(field.nbytes for field in part.fields) for each in of_places for part in each)
    assert most <= -(-longest // n) + 9 * 9 * 8
    # A base has no more fields than a state, and the first chunk has none.
    bases = [[take(p, slice(1, None)) for p in merged(share)] for share in of_places]
    bases = [[Stacked(p.numbers, p.fields[:1]) for p in share] for share in bases]
    found = joined(parts, bases)
    first = {int(p.numbers[0]) for p in merged(parts)}
    for numbers, fields in parts:
        for i, number in enumerate(numbers.tolist()):
            if number in first:
                assert number not in found
            else:
                np.testing.assert_array_equal(found[number][0], fields[0][i])


def test_states_are_put_in_order_whatever_parts_they_come_in() -> None:
    whole = states([*range(9)], (4,), (1,))
    order = RNG.permutation(9)
    shuffled = Stacked(order, tuple(field[order] for field in whole.fields))
    (found,) = merged([shuffled.of(np.array([])), *(take(shuffled, i) for i in ((3, 1), (0,)))])
    expected = take(whole, sorted(order[[3, 1, 0]]))
    np.testing.assert_array_equal(found.numbers, expected.numbers)
    for pair in zip(found.fields, expected.fields, strict=True):
        np.testing.assert_array_equal(*pair)
    (same,) = merged([whole])
    assert same is whole


def take(part: Stacked, rows: Any) -> Stacked:
    rows = rows if isinstance(rows, slice) else np.array(rows)
    return Stacked(part.numbers[rows], tuple(field[rows] for field in part.fields))


def test_states_travel_without_a_copy() -> None:
    part = states([0, 1], (1000,))
    frames = dumps({"states": Serialize([part])})
    (field,) = part.fields
    beside = [frame for frame in frames if memoryview(frame).nbytes == field.nbytes]
    assert any(np.shares_memory(np.frombuffer(frame), field) for frame in beside)
    copies = [bytearray(frame) for frame in frames]
    # A scheduler has what it passes on as it came, and opens what it needs itself.
    passed = loads(copies, deserialize=False)["states"]
    for ((numbers, fields),) in (
        loads(copies)["states"],
        opened(passed),
        opened(Serialize([part])),
    ):
        np.testing.assert_array_equal(numbers, [0, 1])
        np.testing.assert_array_equal(fields[0], field)
    assert opened([part]) == [part]
    ((_, fields),) = loads(copies)["states"]
    assert any(np.shares_memory(np.frombuffer(c, "u1"), fields[0]) for c in copies if len(c))
    assert len(pickle.dumps(passed.header)) < 1000


def test_a_place_waits_for_all_and_answers_each() -> None:
    async def run() -> None:
        meetings = Meetings()

        async def make(given: Any) -> Any:
            return {"status": "OK", "bases": [f"base of {each}" for each in given]}

        met = [asyncio.create_task(meetings.meet("a", s, 3, make)) for s in ("x", "y")]
        other = asyncio.create_task(meetings.meet("b", "u", 2, make))
        await asyncio.sleep(0)
        assert not any(task.done() for task in (*met, other))
        met.append(asyncio.create_task(meetings.meet("a", "z", 3, make)))
        for task, share in zip(met, "xyz", strict=True):
            answer, mine = await task
            assert answer["bases"][mine] == f"base of {share}"
        meetings.end("b")
        answer, _ = await other
        assert answer["status"] == "declined"
        # Who comes late is not left waiting.
        answer, _ = await meetings.meet("b", "v", 2, make)
        assert answer["status"] == "declined"
        assert not meetings._waiting

    asyncio.run(run())


def test_of_answers_that_are_not_waited_for_nothing_is_said() -> None:
    said: list[dict[str, Any]] = []

    async def never() -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(told))
        meetings = Meetings()
        waits = asyncio.create_task(meetings.answers("a", [never(), never()]))
        await asyncio.sleep(0)
        meetings.end("a")
        (answer,) = await waits
        assert answer["status"] == "declined"
        del waits
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(run())
    assert said == []


@pytest.mark.parametrize("who", ["who makes", "who waits"])
def test_nobody_waits_for_what_was_cancelled(who: str) -> None:
    async def run() -> None:
        meetings = Meetings()

        async def never(given: Any) -> Any:
            await asyncio.Event().wait()

        async def soon(given: Any) -> Any:
            await asyncio.sleep(0.01)
            return {"status": "OK", "bases": given}

        make = never if who == "who makes" else soon
        waits = asyncio.create_task(meetings.meet("a", "x", 2, make))
        await asyncio.sleep(0)
        makes = asyncio.create_task(meetings.meet("a", "y", 2, make))
        await asyncio.sleep(0)
        (makes if who == "who makes" else waits).cancel()
        left = waits if who == "who makes" else makes
        answer, _ = await asyncio.wait_for(left, 5)
        assert answer["status"] == ("declined" if who == "who makes" else "OK")
        assert not meetings._waiting

    asyncio.run(run())


def test_a_call_that_ends_while_base_sums_are_made_is_answered_at_once() -> None:
    async def run() -> None:
        meetings, goes_on = Meetings(), asyncio.Event()

        async def make(given: Any) -> Any:
            await goes_on.wait()
            return {"status": "OK", "bases": given}

        met = [asyncio.create_task(meetings.meet("a", s, 2, make)) for s in ("x", "y")]
        await asyncio.sleep(0.01)
        meetings.end("a")
        answer, _ = await asyncio.wait_for(met[0], 5)
        assert answer["status"] == "declined"
        goes_on.set()
        answer, _ = await asyncio.wait_for(met[1], 5)
        assert answer["status"] == "declined"

    asyncio.run(run())


def test_of_a_wait_for_answers_that_is_cancelled_nothing_stays() -> None:
    async def run() -> None:
        meetings, cancelled = Meetings(), list[int]()

        async def never() -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

        waits = asyncio.create_task(meetings.answers("a", [never(), never()]))
        await asyncio.sleep(0.01)
        waits.cancel()
        await asyncio.wait({waits})
        await asyncio.sleep(0.01)
        assert cancelled == [1, 1]
        assert not meetings._sent

    asyncio.run(run())


def quietly(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine, and hold it to leave no exception that nobody retrieves."""
    said: list[dict[str, Any]] = []

    async def listen() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        await run()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(listen())
    assert said == []


def test_answers_that_come_late_are_nobodys() -> None:
    async def run() -> None:
        meetings, begun = Meetings(), asyncio.Event()

        async def ask() -> Any:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                raise OSError("the worker closes")

        waiting = asyncio.create_task(meetings.answers("call", [ask(), ask()]))
        await begun.wait()
        meetings.end("call")
        (answer,) = await waiting
        assert answer["status"] == "declined"
        begun.clear()
        waiting = asyncio.create_task(meetings.answers("other", [ask()]))
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not meetings._sent
        await asyncio.sleep(0.01)

    quietly(run)
