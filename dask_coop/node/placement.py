"""Choose the GPU of a `Node` for a task that has no input on a GPU.

New chunks of one name are dealt out in contiguous runs, so that neighbours share a GPU. Tasks with
inputs on GPUs go where most of those bytes are (`dask_coop.graph.inputs`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Set
from contextlib import suppress
from typing import Any

from dask._task_spec import Task
from dask.array.dispatch import to_cupy_dispatch, to_numpy_dispatch

from dask_coop.graph.tasks import is_fused
from dask_coop.graph.transfer import (
    Whole,
    copy_once,
    copy_to_gpu,
    copy_to_host,
    join_on_host,
    store_chunk,
)


class OnAllGpus:
    """The function of a task that works on all GPUs at a time.

    A `Node` calls it on a thread of no GPU, and does not move its inputs.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Process the task's inputs."""
        raise NotImplementedError


def is_on_all_gpus(task: Any) -> bool:
    """Return whether a task works on all GPUs at a time."""
    if not isinstance(task, Task):
        return False
    return isinstance(task.func, OnAllGpus) or task.func is join_on_host


def deal(keys: Iterable[Hashable], n: int, in_turn: Set[str] = frozenset()) -> dict[Hashable, int]:
    """Return the GPU of each key: keys of one name are dealt out to `n` GPUs in order.

    Parameters
    ----------
    keys : iterable of keys
        Tuples of a name and indices; other keys are dealt out in the order of the iterable.
    n : int
        The number of GPUs.
    in_turn : set of str
        Names whose neighbours go to different GPUs.

    Returns
    -------
    dict
        A number in ``range(n)`` for each key; that of the k-th of m keys is ``k * n // m``, or
        ``k % n``.
    """
    named: defaultdict[Any, list[Any]] = defaultdict(list)
    for key in keys:
        named[key[:1] if isinstance(key, tuple) else None].append(key)
    for name, group in named.items():
        if name is not None:
            # Indices of mixed types cannot be sorted and keep the graph's order.
            with suppress(TypeError):
                named[name] = sorted(group)
    return {
        key: i % n if name and name[0] in in_turn else i * n // len(group)
        for name, group in named.items()
        for i, key in enumerate(group)
    }


def copies_to_host(task: Any) -> bool:
    """Return whether a task, or one fused into it, copies an array from a GPU to the host."""
    return _calls(task, (copy_to_host, store_chunk, to_numpy_dispatch), "asnumpy")


def copies_to_gpu(task: Any) -> bool:
    """Return whether a task, or one fused into it, copies an array from the host to a GPU."""
    return _calls(task, (copy_once, copy_to_gpu, to_cupy_dispatch), "asarray")


def _calls(task: Any, functions: tuple[Any, ...], of_cupy: str) -> bool:
    """Return whether a task calls one of `functions`, or CuPy's function of the name `of_cupy`."""
    if not isinstance(task, Task):
        return False
    if is_fused(task):
        return any(_calls(inner, functions, of_cupy) for inner in task.args[0].values())
    func = task.func
    if getattr(func, "__name__", None) == of_cupy:
        return str(getattr(func, "__module__", None)).partition(".")[0] == "cupy"
    if isinstance(func, Whole):
        func = copy_to_host
    return any(func is function for function in functions)
