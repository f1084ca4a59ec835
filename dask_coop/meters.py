"""Count calls, launches, compilations and copies in the meter of the context.

A task on a worker of distributed runs in the context of a meter, distributed's `context_meter`, and
a round of a collective in one of `dask_coop.cluster.monitor`. Counts go to that meter, which knows
its worker and task::

    chunk function, launch, compilation, copy --count--> meter --> worker --heartbeat--> scheduler

Without a meter, as in a process without distributed, nothing is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

#: Prefix of all activities, as other libraries use the same meter.
PREFIX = "coop-"

KERNELS = PREFIX + "kernels"
COMPILATIONS = PREFIX + "compile"
TO_GPU = PREFIX + "from-numpy"
TO_HOST = PREFIX + "to-numpy"
#: Chunks that are kept on GPUs, that are not read again for it, and that are no longer kept.
KEPT = PREFIX + "kept"
FOUND = PREFIX + "kept-used"
DROPPED = PREFIX + "kept-dropped"


def count(activity: str, value: float = 1, unit: str = "count") -> None:
    """Add `value` to an activity of the context's meter, if there is one."""
    # Don't import distributed, which takes long: if nobody has, there is no meter.
    metrics = sys.modules.get("distributed.metrics")
    if (meter := getattr(metrics, "context_meter", None)) is not None:
        # Counts are only shown, so a failure here must fail no call.
        with suppress(Exception):
            meter.digest_metric(activity, value, unit)


@contextmanager
def timed(activity: str, nbytes: int = 0) -> Iterator[None]:
    """Count the seconds within, and the bytes moved."""
    start = perf_counter()
    try:
        yield
    finally:
        count(activity, perf_counter() - start, "seconds")
        if nbytes:
            count(activity, nbytes, "bytes")


def counted(module: ModuleType, names: Iterable[str], ranges: Any = None) -> SimpleNamespace:
    """Return functions of a module, with each call counted under the function's name.

    Parameters
    ----------
    module : module
    names : iterable of str
    ranges : optional
        CuPy's ``cupy.cuda.nvtx``: calls are then also ranges in a profile of the process.
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
