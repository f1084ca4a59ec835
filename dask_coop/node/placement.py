"""On which GPU of a `Node` a task belongs, and what a task's graph node says about it.

New chunks are dealt out in their order among the chunks of that name, in contiguous runs, so that
neighbours share a GPU; whatever has arrays for input (`dask_coop.graph.inputs`) goes where most of
their bytes are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Set
from contextlib import suppress
from typing import Any

from dask._task_spec import Task
from dask.array.dispatch import to_cupy_dispatch, to_numpy_dispatch

from dask_coop.graph.tasks import is_fused
from dask_coop.graph.transfer import copy_to_gpu, copy_to_host, store_chunk


class OnAllGpus:
    """A function of a task that works on all GPUs at a time.

    A `Node` calls it on a thread that is no GPU's, with its inputs where they lie.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Work on the task's inputs."""
        raise NotImplementedError


def is_on_all_gpus(task: Any) -> bool:
    """Return whether the task of a graph works on all GPUs at a time."""
    return isinstance(task, Task) and isinstance(task.func, OnAllGpus)


def deal(keys: Iterable[Hashable], n: int, in_turn: Set[str] = frozenset()) -> dict[Hashable, int]:
    """Deal the keys of each name, in the order of their indices, out to `n` GPUs.

    Parameters
    ----------
    keys : iterable of keys
        Tuples of a name and indices; other keys are dealt out in the order given.
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
            # Indices of several types have no order but the graph's.
            with suppress(TypeError):
                named[name] = sorted(group)
    return {
        key: i % n if name and name[0] in in_turn else i * n // len(group)
        for name, group in named.items()
        for i, key in enumerate(group)
    }


def copies_to_host(task: Any) -> bool:
    """Return whether a task, or one that is fused into it, copies an array of a GPU to the host."""
    return _calls(task, (copy_to_host, store_chunk, to_numpy_dispatch), "asnumpy")


def copies_to_gpu(task: Any) -> bool:
    """Return whether a task, or one that is fused into it, copies an array of the host to a GPU."""
    return _calls(task, (copy_to_gpu, to_cupy_dispatch), "asarray")


def _calls(task: Any, functions: tuple[Any, ...], of_cupy: str) -> bool:
    """Return whether a task calls one of some functions, or that of CuPy."""
    if not isinstance(task, Task):
        return False
    if is_fused(task):
        return any(_calls(inner, functions, of_cupy) for inner in task.args[0].values())
    func = task.func
    if getattr(func, "__name__", None) == of_cupy:
        return str(getattr(func, "__module__", None)).partition(".")[0] == "cupy"
    return any(func is one for one in functions)
