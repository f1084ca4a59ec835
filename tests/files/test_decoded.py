"""Cells are decoded once for all that take parts of them, in bounded memory."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from dask_coop.files.decoded import Decoded, Need

HALF = Need(5, 10, 100)


def test_a_cell_is_made_once_and_dropped_when_all_is_taken() -> None:
    cells, made = Decoded(), []
    for _ in range(2):
        assert cells.take("a", 1, HALF, lambda: made.append(1) or "cell") == "cell"
        assert cells.take("a", 1, HALF, lambda: made.append(1) or "cell") == "cell"
        assert len(cells) == 0
    assert len(made) == 2


def test_another_stamp_makes_another_cell() -> None:
    cells = Decoded()
    assert cells.take("a", 1, HALF, lambda: "old") == "old"
    assert cells.take("a", 2, HALF, lambda: "new") == "new"
    assert cells.take("a", 2, HALF, lambda: "newer") == "new"
    assert (len(cells), cells._nbytes) == (0, 0)


def test_memory_is_bounded() -> None:
    cells = Decoded()
    cells._most = 250
    for key in "abcd":
        cells.take(key, 1, HALF, lambda: "cell")
    assert (len(cells), cells._nbytes) == (2, 200)
    # One that is larger than all is not kept at all.
    cells.take("e", 1, Need(1, 2, 1000), lambda: "cell")
    assert (len(cells), cells._nbytes) == (0, 0)


def test_threads_wait_for_the_one_that_decodes() -> None:
    cells, made, got = Decoded(), [], []

    def make() -> str:
        made.append(threading.get_ident())
        time.sleep(0.05)
        return "cell"

    def take() -> None:
        got.append(cells.take("a", 1, Need(1, 8, 100), make))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["cell"] * 8
    assert len(made) == 1
    assert (len(cells), cells._nbytes) == (0, 0)


def test_a_failure_is_that_of_all_who_wait_and_of_nobody_else() -> None:
    cells, begun = Decoded(), threading.Event()
    failures: list[Exception] = []

    def fail() -> None:
        begun.set()
        time.sleep(0.1)
        raise OSError("damaged")

    def take(make: Any) -> None:
        try:
            cells.take("a", 1, Need(1, 8, 100), make)
        except OSError as error:
            failures.append(error)

    first = threading.Thread(target=take, args=(fail,))
    first.start()
    begun.wait()
    take(lambda: pytest.fail("it waits"))
    first.join()
    assert len(failures) == 2
    assert (len(cells), cells._nbytes) == (0, 0)
    assert cells.take("a", 1, HALF, lambda: "cell") == "cell"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_does_not_wait_for_threads_that_it_lacks() -> None:
    from dask_coop.files.decoded import DECODED

    begun, end = threading.Event(), threading.Event()

    def make() -> None:
        begun.set()
        end.wait()

    thread = threading.Thread(target=DECODED.take, args=("fork", 1, HALF, make))
    thread.start()
    begun.wait()
    if (child := os.fork()) == 0:
        os._exit(DECODED.take("fork", 1, HALF, lambda: 5))
    end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    DECODED.take("fork", 1, HALF, make)
