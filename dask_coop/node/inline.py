"""Run a graph of a `Node` in the calling thread, without Dask's scheduler.

If all chunks of a graph are in the memory of a GPU, its tasks only queue kernels. To optimize the
graph, to order its tasks and to hand each to a thread would take longer than the kernels. Graphs
with other work, such as reading files, need the threads.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dask._task_spec import Alias, DataNode, NestedContainer, Task, TaskRef
from dask.array.core import concatenate3, concatenate_shaped, finalize
from dask.array.optimization import optimize as optimize_arrays
from dask.blockwise import Blockwise
from dask.delayed import optimize as optimize_delayed
from dask.highlevelgraph import MaterializedLayer
from dask.utils import methodcaller

from dask_coop.graph.inputs import leaves
from dask_coop.graph.joined import Cuts, cut, read_join
from dask_coop.graph.tasks import Graph, RootTask, read
from dask_coop.node.placement import OnAllGpus, copies_to_gpu, copies_to_host

#: Dask's default optimizers of arrays and of delayed objects.
_OPTIMIZERS = (None, optimize_arrays, optimize_delayed)

#: Functions of Dask and Python that pass chunks on or put results together.
_PASSING = (operator.getitem, finalize, concatenate3, concatenate_shaped)

#: The modules whose functions only queue kernels if their arrays are on a GPU.
_QUICK = ("dask_coop", "operator", "_operator", "numpy", "dask.array.chunk")

#: The most bytes of an array on the host that are not worth a thread.
_SMALL_BYTES = 1 << 16


def built(dsk: Any) -> list[Graph] | None:
    """Return the layers of a graph not yet optimized, or None if one has unknown tasks."""
    try:
        from dask._expr import HLGExpr, _HLGExprSequence
    except ImportError:
        return None
    layers: list[Graph] = []
    for expr in dsk.operands if isinstance(dsk, _HLGExprSequence) else [dsk]:
        if not isinstance(expr, HLGExpr) or expr.low_level_optimizer not in _OPTIMIZERS:
            return None
        for layer in expr.hlg.layers.values():
            if type(layer) in (MaterializedLayer, Cuts):
                layers.append(layer.mapping)
            elif isinstance(layer, Blockwise) and _is_quick(layer.task):
                layers.append(dict(layer))
            else:
                return None
    return layers


def is_quick(graph: Mapping[Any, Any]) -> bool:
    """Return whether all tasks of a graph only queue kernels or pass data on."""
    return all(_is_quick(node) for node in graph.values() if isinstance(node, Task))


def is_on_one_gpu(graph: Mapping[Any, Any], gpus: Any) -> bool:
    """Return whether all chunks of a graph are on one GPU.

    Launches over several GPUs, and tasks that finish their results, take chunks of any of them.
    """
    tasks = [node for node in graph.values() if isinstance(node, Task)]
    chunkwise = [task for task in tasks if not isinstance(task.func, OnAllGpus)]
    if all(read(task, RootTask) or _passes(task.func) for task in chunkwise):
        return True
    devices: set[int] = set()
    data = [node for node in graph.values() if type(node) is DataNode]
    # Those of a join are on one GPU.
    inputs = [join.blocks[0] if (join := read_join(task)) else task for task in chunkwise]
    for leaf in leaves([*inputs, *data]):
        if (device := gpus.device_of(leaf)) is not None:
            devices.add(device)
        elif getattr(leaf, "nbytes", 0) > _SMALL_BYTES:
            return False
    return len(devices) == 1


def _is_quick(node: Any) -> bool:
    """Return whether a task calls one of the functions that only queue kernels, or pass data on."""
    if isinstance(node, NestedContainer):
        return all(_is_quick(inner) for inner in node.args if isinstance(inner, Task))
    if type(node) is not Task or copies_to_gpu(node) or copies_to_host(node):
        return False
    function = node.func
    while hasattr(function, "func"):
        function = function.func
    module = getattr(function, "__module__", None) or ""
    known = module in _QUICK or module.partition(".")[0] in _QUICK
    return known or isinstance(function, methodcaller) or _passes(function)


def _passes(function: Any) -> bool:
    # A callable need not be hashable.
    return any(function is each for each in _PASSING)


def run(
    graph: Mapping[Any, Any], wanted: Iterable[Any], call: Callable[[Any, Any], Any]
) -> dict[Any, Any]:
    """Return the results of the `wanted` keys of a graph; drop others when nothing needs them.

    `call` runs a task, given a dict of its inputs.
    """
    wanted = set(wanted)
    order = _order(graph, wanted)
    uses = Counter(key for node in order for key in node.dependencies)
    results: dict[Any, Any] = {}
    # The block that each view is of.
    wholes: dict[Any, Any] = {}
    for node in order:
        if type(node) is DataNode:
            results[node.key] = node.value
        elif type(node) is Alias:
            results[node.key] = results[node.target]
        elif node.func is cut:
            # A view, which launches nothing.
            wholes[node.key] = results[node.args[0].key]
            results[node.key] = cut(wholes[node.key], node.args[1])
        elif (
            node.func is finalize and (whole := _cut_from(node, graph, results, wholes)) is not None
        ):
            results[node.key] = whole
        else:
            results[node.key] = call(node, {key: results[key] for key in node.dependencies})
        for key in node.dependencies:
            uses[key] -= 1
            if not uses[key] and key not in wanted:
                del results[key]
                wholes.pop(key, None)
    return results


def _cut_from(
    node: Any, graph: Mapping[Any, Any], results: Mapping[Any, Any], wholes: Mapping[Any, Any]
) -> Any:
    """Return the block that the blocks of a result are cut from, if they are all of it, or None."""
    keys = [*_references(node.args[0])]
    if not keys or not all(key in wholes for key in keys):
        return None
    whole = wholes[keys[0]]
    starts = [tuple(along.start or 0 for along in graph[key].args[1]) for key in keys]
    # Cuts do not overlap, so that those of a block that have its size are all of it.
    is_all = sum(results[key].size for key in keys) == whole.size and starts == sorted({*starts})
    return whole if is_all and all(wholes[key] is whole for key in keys) else None


def _references(argument: Any) -> Iterator[Any]:
    """Yield the keys of the references in nested lists, in order."""
    if isinstance(argument, NestedContainer):
        for inner in argument.args:
            yield from _references(inner)
    elif isinstance(argument, tuple | list):
        for inner in argument:
            yield from _references(inner)
    elif isinstance(argument, TaskRef):
        yield argument.key


def _order(graph: Mapping[Any, Any], wanted: Iterable[Any]) -> list[Any]:
    """Return the nodes that `wanted` needs, depth first."""
    order: dict[Any, Any] = {}
    for key in sorted(wanted, key=str):
        stack = [key]
        while stack:
            node = graph[stack[-1]]
            if missing := [needed for needed in node.dependencies if needed not in order]:
                stack += reversed(missing)
            else:
                order.setdefault(stack.pop(), node)
    return [*order.values()]


@contextmanager
def noting(key: Any, where: str) -> Iterator[None]:
    """Add a note with the task's key to an exception raised within."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in task {key!r}{where}")
        raise
