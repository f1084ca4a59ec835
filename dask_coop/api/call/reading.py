"""Read files by this library, in the layers that Dask and xarray made of them.

A layer of Dask's has the array that it reads as its only value, or beside its tasks::

    original-from-zarr-1f3: zarr.Array          original-from-zarr-1f3: StoredArray
            |                           -->             |
    from-zarr-1f3: getter(...)                  from-zarr-1f3: getter(...)

Values are the same, so keys stay, and so do all other layers. Layers of many tasks are not looked
through: chunks that are in memory, and graphs that somebody has optimized.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dask.array.core import Array
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.layers import ArraySliceDep
from dask.task_spec import DataNode, TaskRef

from dask_coop.files.recognised import Reader, recognised
from dask_coop.graph import config
from dask_coop.graph.files.lifting import ORIGINAL, Data, as_data, as_reads
from dask_coop.graph.transfer import GETTERS

#: By the id of a layer: a reference to it, how it is read, and the layer in its place.
_seen: dict[int, tuple[weakref.ref[Layer], Reader, Layer | None]] = {}


def read_by_us(x: Array) -> Array:
    """Return an array of the same name and values, in whose layers this library reads files.

    It is `x` itself if there are none, or the configuration's ``coop.files.read`` is false.
    """
    layers, changed = x.dask.layers, {}
    concurrency = None
    for name, layer in layers.items():
        if not _may_read(layer):
            continue
        # Most arrays have no such layer, and need no configuration.
        if concurrency is None:
            if config.get("coop.files.read", "auto", False) is False:
                return x
            concurrency = config.get("coop.files.concurrency", config.COUNT)
        slicer = layers.get(name.removeprefix(ORIGINAL)) if type(name) is str else None
        reader = Reader(concurrency, _sizes(slicer))
        if (ours := _known(layer, reader, partial(_ours, layer, reader))) is None:
            continue
        changed[name] = ours
        if type(ours) is Data and _only_reads(slicer):
            reads = _known(slicer, reader, partial(as_reads, slicer))
            changed[name.removeprefix(ORIGINAL)] = reads
    if not changed:
        return x
    graph = HighLevelGraph({**layers, **changed}, x.dask.dependencies)
    return Array(graph, x.name, x.chunks, meta=x._meta)


def _may_read(layer: Layer) -> bool:
    if type(layer) is MaterializedLayer:
        return len(layer.mapping) == 1
    return type(layer) is Blockwise and any(_is_value(of, axes) for of, axes in layer.indices)


def _is_value(of: Any, axes: Any) -> bool:
    """Return whether an input of a layer of blocks is a value, the same for all."""
    return axes is None and not isinstance(of, TaskRef | str | int | float)


def _sizes(layer: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return the chunks in which a layer reads an array; None if it does not."""
    slices = [of for of in getattr(layer, "io_deps", {}).values() if type(of) is ArraySliceDep]
    return slices[0].chunks if len(slices) == 1 else None


def _only_reads(layer: Any) -> bool:
    """Return whether a layer reads the blocks of an array, and does no more."""
    return type(layer) is Blockwise and _sizes(layer) is not None and layer.task.func in GETTERS


def _known(layer: Any, reader: Reader, make: Callable[[], Layer | None]) -> Layer | None:
    """Return the layer that `make` puts in the place of `layer`, always the same; None if none."""
    number = id(layer)
    seen = _seen.get(number)
    if seen is not None and seen[0]() is layer and seen[1] == reader:
        return seen[2]

    def forget(reference: Any) -> None:
        if (seen := _seen.get(number)) is not None and seen[0] is reference:
            _seen.pop(number, None)

    ours = make()
    _seen[number] = weakref.ref(layer, forget), reader, ours
    return ours


def _ours(layer: Layer, reader: Reader) -> Layer | None:
    """Return a layer with arrays that this library reads in the place of another one."""
    return _of_values(layer, reader) if type(layer) is Blockwise else _of_one(layer, reader)


def _of_one(layer: Layer, reader: Reader) -> Layer | None:
    """Return a layer in the place of one that holds an array."""
    mapping: Mapping[Any, Any] = layer.mapping
    ((key, value),) = mapping.items()
    source = value.value if type(value) is DataNode else value
    if isinstance(key, tuple) or (ours := recognised(source, reader)) is None:
        return None
    node = DataNode(key, ours) if type(value) is DataNode else ours
    return as_data(MaterializedLayer({key: node}, annotations=layer.annotations))


def _of_values(layer: Blockwise, reader: Reader) -> Layer | None:
    """Return a layer in the place of one whose tasks hold arrays."""
    indices = []
    for of, axes in layer.indices:
        source = of.value if type(of) is DataNode else of
        ours = recognised(source, reader) if _is_value(of, axes) else None
        if ours is not None and type(of) is DataNode:
            ours = DataNode(of.key, ours)
        indices.append((of if ours is None else ours, axes))
    if all(new is of for (new, _), (of, _) in zip(indices, layer.indices, strict=True)):
        return None
    # Through the constructor, so that no tasks of the layer are remembered.
    blocks = layer.numblocks, layer.concatenate, layer.new_axes, layer.output_blocks
    changed = Blockwise(
        layer.output,
        layer.output_indices,
        layer.task,
        indices,
        *blocks,
        annotations=layer.annotations,
        io_deps=layer.io_deps,
    )
    changed.collection_annotations = copy.copy(layer.collection_annotations)
    return changed
