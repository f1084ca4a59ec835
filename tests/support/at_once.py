"""Work that several threads do at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any


def at_once(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Do work with each item on a thread of its own, all at the same time; return the results.

    What a thread raises is raised here.
    """
    everybody = Barrier(len(items), timeout=60)

    def begin(item: Any) -> Any:
        everybody.wait()
        return work(item)

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(begin, items))
