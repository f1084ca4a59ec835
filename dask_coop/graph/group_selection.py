"""Quantiles of groups of lazy labels, of all elements: count the digits of keys by group.

::

    x0, labels 0 --count--> table -+             --collect--> keys, codes --count--> ...
                                   +-> digits -->
    x1, labels 1 --count--> table -+             --collect--> keys, codes --count--> ...

A table has the digits of all groups (`dask_coop.algebra.group_digits`). Chunks and labels are freed
after the first round: what later rounds count is collected, as keys and the codes of their groups.
Once few keys are left, the tree joins them instead of counts; they are sorted, and the rounds that
follow do nothing.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from dask.array.core import Array
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra.bins import Integers
from dask_coop.algebra.digits import keys_of
from dask_coop.algebra.group_digits import (
    ENTRIES,
    FEW,
    GroupDigits,
    count_rounds,
    descend,
    find_entries,
    find_tables,
    finish,
    first_digit,
    settle,
)
from dask_coop.algebra.quantiles import Quantiles
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.labels import Coder
from dask_coop.graph.group_quantiles import COUNT, Coded, Form, as_coder
from dask_coop.graph.layers import FAN_IN, Key, Layer, array
from dask_coop.graph.line_quantiles import interpolated
from dask_coop.graph.prefixes import at_a_time
from dask_coop.graph.tasks import refs

#: The number of groups that rounds are planned for where it is unknown; more have longer digits.
_UNKNOWN = 1 << 10


class Sample(NamedTuple):
    """Keys of elements, and the codes of their groups."""

    keys: Any
    codes: Any


#: What the tree combines: counts of all tables, samples to sort, or None if all is found.
Counted = Any


def quantiles(x: Array, labels: Coded, shape: tuple[float, ...], form: Form) -> Array:
    """Return quantiles of the groups of all elements of `x`.

    Parameters
    ----------
    x : dask.array.Array
    labels : Coded
        In the chunks of `x`.
    shape : tuple of int or nan
        The number of groups along each of the result's axes.
    form : Form
    """
    n, wanted = math.prod(shape), 2 * math.prod(form.quantiles.shape)
    room = min(ENTRIES, 4 * max(1, math.prod(map(max, x.chunks))))
    planned = int(n) if n == n else _UNKNOWN
    rounds = count_rounds(x.dtype, planned, wanted, room)
    fan_in = at_a_time(FAN_IN, 8 * max(room, 16 * planned * wanted))
    token = tokenize(x, labels, shape, form, rounds, room, FEW)
    below, layer = f"groupby-{form.name}-rounds-{token}", Layer()
    coder: Key = (below, "coder")
    digits: Key = (below, "digits", 0)
    options = {"dtype": x.dtype, "quantiles": form.quantiles}
    options |= {"room": room, "few": FEW, "rounds": rounds}
    layer[coder] = Task(coder, as_coder, labels.coder_or_block())
    layer[digits] = Task(digits, start, coder=TaskRef(coder), **options)
    samples: dict[Key, Key] = {}
    for number in range(rounds):
        # Keys are collected twice. Those that are many even then are alike.
        known: dict[str, Any] = {"digits": TaskRef(digits)}
        counts: list[Key] = []
        for index in itertools.product(*map(range, x.numblocks)):
            chunk = {**known, "coder": TaskRef(coder), **declared_by(*labels.arrays, block=x)}
            chunk["block"] = TaskRef((x.name, *index))
            key = (below, "count", number, *index)
            counts.append(key)
            if number == 0:
                layer[key] = Task(key, count_block, *labels.blocks(index), **chunk)
                continue
            sample = (below, "collect", number, *index)
            if number == 1:
                layer[sample] = Task(sample, collect_block, *labels.blocks(index), **chunk)
                samples[index] = sample
            elif number == 2:
                layer[sample] = Task(sample, collect, sample=TaskRef(samples[index]), **known)
                samples[index] = sample
            layer[key] = Task(key, count, sample=TaskRef(samples[index]), **known)
        level = 0
        while len(counts) > fan_in:
            above: list[Key] = []
            for i in range(0, len(counts), fan_in):
                key = (below, "combine", number, level, i // fan_in)
                layer[key] = Task(key, combine, refs(counts[i : i + fan_in]))
                above.append(key)
            counts, level = above, level + 1
        digits = (below, "digits", number + 1)
        layer[digits] = Task(digits, find, refs(counts), **known)
    sources = [x, *labels.collections()]
    graph = HighLevelGraph.from_collections(below, layer, dependencies=sources)
    result = f"groupby-{form.name}-{token}"
    last = (result, *(0,) * (len(form.quantiles.shape) + len(shape)))
    to = chunks.kind(x._meta)
    known = {"digits": TaskRef(digits), "coder": TaskRef(coder)}
    top = {last: Task(last, finalize, **known, form=form, to=to)}
    out_chunks = tuple((size,) for size in (*form.quantiles.shape, *shape))
    return array(graph, {below}, result, top, x._meta, out_chunks, form.dtype)


# Inside the tasks.


def start(coder: Coder, **options: Any) -> GroupDigits:
    """Return the first digit to count keys by."""
    return first_digit(n=math.prod(coder.shape), **options)


@casts
def count_block(*labels: Any, block: Any, coder: Coder, digits: GroupDigits) -> Counted:
    """Return the counts of the first digit of the keys of a block."""
    return _counts(_sample(block, labels, coder), digits)


@casts
def collect_block(*labels: Any, block: Any, coder: Coder, digits: GroupDigits) -> Sample:
    """Return the keys of a block that are counted next, and the codes of their groups."""
    return _collected(_sample(block, labels, coder), digits)


def collect(sample: Sample, digits: GroupDigits) -> Sample:
    """Return the keys of a sample that are counted next, and the codes of their groups."""
    return _collected(sample, digits)


def count(sample: Sample, digits: GroupDigits) -> Counted:
    """Return the counts of the next digit of keys, or the keys themselves if all are few."""
    if digits.keys is not None:
        return None
    if digits.sorts:
        return Sample(*(chunks.asarray(array, "numpy") for array in _collected(sample, digits)))
    return _counts(sample, digits)


def combine(counted: list[Counted]) -> Counted:
    """Combine the counts or the samples of several chunks."""
    first = counted[0]
    if first is None:
        return None
    if isinstance(first, Sample):
        return Sample(*map(np.concatenate, zip(*counted, strict=True)))
    return sum(counted[1:], first)


def find(counted: list[Counted], digits: GroupDigits) -> GroupDigits:
    """Return the digits that follow from all counts or samples."""
    total = combine(counted)
    if total is None:
        return digits
    return settle(digits, *total) if isinstance(total, Sample) else descend(digits, total)


def finalize(digits: GroupDigits, coder: Coder, form: Form, to: str) -> Any:
    """Return the quantiles of all groups."""
    low, high, gamma = finish(digits)
    assert digits.lengths is not None
    missing = digits.sizes == 0
    assert isinstance(form.quantiles, Quantiles)
    values = interpolated(low, high, gamma, missing, form.quantiles, form.result)
    values = np.where(digits.lengths == 0, form.nothing, values)
    values = form.filled(values, digits.valid).astype(form.dtype, copy=False)
    return chunks.asarray(values.reshape(*form.quantiles.shape, *coder.shape), to)


def _sample(block: Any, labels: tuple[Any, ...], coder: Coder) -> Sample:
    codes = chunks.asarray(coder.codes(labels), chunks.kind(block)).reshape(-1)
    block = block.reshape(-1).astype(block.dtype.newbyteorder("="), copy=False)
    codes = codes.astype("i4" if math.prod(coder.shape) <= np.iinfo("i4").max else "i8", copy=False)
    keys, inside = keys_of(block), codes >= 0
    if bool(inside.all()):
        return Sample(keys, codes)
    return Sample(*(chunks.backend_of(block).compress(x, inside) for x in (keys, codes)))


def _collected(sample: Sample, digits: GroupDigits) -> Sample:
    if digits.keys is not None:
        return Sample(sample.keys[:0], sample.codes[:0])
    if not sample.keys.size or bool((inside := _tables(sample, digits) >= 0).all()):
        return sample
    return Sample(*(chunks.backend_of(x).compress(x, inside) for x in sample))


def _counts(sample: Sample, digits: GroupDigits) -> Any:
    keys = sample.keys
    if not keys.size:
        return np.zeros(digits.entries, "i8")
    tables = _tables(sample, digits)
    if not digits.is_first and not bool((inside := tables >= 0).all()):
        backend = chunks.backend_of(keys)
        keys, tables = (backend.compress(x, inside) for x in (keys, tables))
    entries = find_entries(digits, keys, tables)
    integers = Integers(digits.entries)
    (table,) = chunks.backend_of(entries).histogram(COUNT, [entries], integers, None)
    return chunks.asarray(table, "numpy")[: digits.entries]


def _tables(sample: Sample, digits: GroupDigits) -> Any:
    to = chunks.kind(sample.keys)
    return find_tables(digits, *sample, like=lambda x: chunks.asarray(x, to))
