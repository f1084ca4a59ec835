"""Where things are counted; who wants to know puts in what they are told to.

A task on a worker of distributed runs in the context of a meter, distributed's `context_meter`, and
a round of a collective in one of `dask_coop.cluster.monitor`. What is counted within goes there,
and is known to be of that worker and that task::

    chunk function, launch, compilation, copy --count--> meter --> worker --heartbeat--> scheduler

Where there is no meter, as in a process without distributed, nothing is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

#: What the names of all activities begin with: other libraries have theirs in the same place.
PREFIX = "coop-"

KERNELS = PREFIX + "kernels"
COMPILATIONS = PREFIX + "compile"
TO_GPU = PREFIX + "from-numpy"
TO_HOST = PREFIX + "to-numpy"


def count(activity: str, value: float = 1, unit: str = "count") -> None:
    """Tell the meter of the context, if there is one."""
    # Importing distributed takes long, and only where it is there is a meter.
    metrics = sys.modules.get("distributed.metrics")
    if (meter := getattr(metrics, "context_meter", None)) is not None:
        # What is counted is only shown, so no call fails for it.
        with suppress(Exception):
            meter.digest_metric(activity, value, unit)


@contextmanager
def timed(activity: str, nbytes: int = 0) -> Iterator[None]:
    """Tell the meter the seconds within, and the bytes that are moved."""
    start = perf_counter()
    try:
        yield
    finally:
        count(activity, perf_counter() - start, "seconds")
        if nbytes:
            count(activity, nbytes, "bytes")


def counted(module: ModuleType, names: Iterable[str], ranges: Any = None) -> SimpleNamespace:
    """Return functions of a module that are counted by their names when they are called.

    Parameters
    ----------
    module : module
    names : iterable of str
    ranges : optional
        CuPy's ``cupy.cuda.nvtx``: calls are then ranges in a profile of the process, too.
    """
    return SimpleNamespace(**{name: _counted(module, name, ranges) for name in names})


def _counted(module: ModuleType, name: str, ranges: Any) -> Callable[..., Any]:
    activity = PREFIX + name.replace("_", "-")

    def plain(*args: Any, **kwargs: Any) -> Any:
        count(activity)
        return getattr(module, name)(*args, **kwargs)

    def ranged(*args: Any, **kwargs: Any) -> Any:
        ranges.RangePush(activity)
        try:
            return plain(*args, **kwargs)
        finally:
            ranges.RangePop()

    return plain if ranges is None else ranged
