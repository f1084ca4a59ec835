"""The least case that fails as a given one does: simpler ones are tried until none fails so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fuzz.case import Array, Case, Operand

Change = Callable[[Operand], Operand]


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float = 15) -> Case:
    """Return a simpler case for which `fails` still is true."""
    end = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for candidates in (_flags, _options, _chunks, _elements, _values):
            step = True
            while step:
                step = False
                for simpler in candidates(case):
                    if time.monotonic() > end:
                        return case
                    try:
                        found = fails(simpler)
                    except Exception:
                        continue
                    if found:
                        case, step, again = simpler, True, True
                        break
    return case


def _operands(case: Case) -> Iterator[tuple[Operand, Callable[[Operand], Case]]]:
    """Yield every operand and what puts another in its place."""
    for i, operand in enumerate(case.inputs):
        yield (
            operand,
            lambda o, i=i: replace(case, inputs=(*case.inputs[:i], o, *case.inputs[i + 1 :])),
        )
    for name, operand in case.operands.items():
        yield (
            operand,
            lambda o, name=name: replace(case, operands={**case.operands, name: o}),
        )


def _flags(case: Case) -> Iterator[Case]:
    if case.compiled:
        yield replace(case, compiled=False)
    if case.strategy is not None:
        yield replace(case, strategy=None)
    for name in case.operands:
        yield replace(case, operands={k: o for k, o in case.operands.items() if k != name})
    for operand, put in _operands(case):
        if operand.layout != "C":
            yield put(replace(operand, layout="C"))
        if operand.mask is not None and operand.mask.any():
            yield put(replace(operand, mask=np.zeros_like(operand.mask)))


def _options(case: Case) -> Iterator[Case]:
    for name, value in case.options.items():
        rest = {k: v for k, v in case.options.items() if k != name}
        yield replace(case, options=rest)
        for simpler in _simpler(value):
            yield replace(case, options={**case.options, name: simpler})


def _simpler(value: Any) -> Iterator[Any]:
    if isinstance(value, bool | str) or value is None:
        return
    if isinstance(value, int | np.integer) and int(value) > 1:
        for less in (1, 2, int(value) // 2, int(value) - 1):
            if less < value:
                yield type(value)(less)
    elif isinstance(value, float) and value not in (0.0, 1.0):
        for less in (0.0, 1.0, float(np.round(value)), float(np.round(value, 1))):
            if len(repr(less)) < len(repr(value)):
                yield less
    elif isinstance(value, np.ndarray) and value.ndim == 1:
        yield from (np.delete(value, part) for part in _parts(value.size))
        for i in range(value.size):
            for less in _simpler(value[i].item()):
                changed = value.copy()
                changed[i] = less
                yield changed
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            for less in _simpler(part):
                yield type(value)([*value[:i], less, *value[i + 1 :]])


def _chunks(case: Case) -> Iterator[Case]:
    for operand, put in _operands(case):
        merged = tuple((n,) for n in operand.array.shape)
        if merged != operand.chunks:
            yield put(replace(operand, chunks=merged))
    for operand, put in _operands(case):
        for d, sizes in enumerate(operand.chunks):
            if len(sizes) > 1:
                for other in ((sum(sizes),), *_merges(sizes)):
                    chunks = (*operand.chunks[:d], other, *operand.chunks[d + 1 :])
                    yield put(replace(operand, chunks=chunks))


def _merges(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    half = len(sizes) // 2
    yield (sum(sizes[:half]), *sizes[half:])
    yield (*sizes[:half], sum(sizes[half:]))
    for i in range(len(sizes) - 1):
        yield (*sizes[:i], sizes[i] + sizes[i + 1], *sizes[i + 2 :])


def _parts(n: int) -> Iterator[slice]:
    """Yield slices to leave out of n elements, the larger first."""
    size = n
    while size:
        yield from (slice(start, start + size) for start in range(0, n, size))
        size //= 2


def _elements(case: Case) -> Iterator[Case]:
    """Leave out elements along the axes of one letter, in all operands that have it."""
    letters = {}
    for operand, _ in _operands(case):
        letters |= dict(zip(operand.axes, operand.array.shape, strict=True))
    for letter, n in letters.items():
        if letter == " ":
            continue
        for part in _parts(n):
            yield _without(case, letter, part)


def _without(case: Case, letter: str, part: slice) -> Case:
    def cut(operand: Operand) -> Operand:
        if letter not in operand.axes:
            return operand
        d = operand.axes.index(letter)
        array, sizes, start = np.delete(operand.array, part, d), [], 0
        mask = None if operand.mask is None else np.delete(operand.mask, part, d)
        for size in operand.chunks[d]:
            left = max(0, min(part.stop, start + size) - max(part.start, start))
            sizes.append(size - left)
            start += size
        while sum(sizes) > array.shape[d]:
            sizes.pop()
        chunks = (*operand.chunks[:d], tuple(sizes), *operand.chunks[d + 1 :])
        return replace(operand, array=array, chunks=chunks, mask=mask)

    operands = {name: cut(operand) for name, operand in case.operands.items()}
    return replace(case, inputs=tuple(map(cut, case.inputs)), operands=operands)


def _values(case: Case) -> Iterator[Case]:
    """Put simpler values in the place of all elements, then of each."""
    for operand, put in _operands(case):
        array = operand.array
        for value in (0, 1):
            plain = np.full_like(array, value)
            if not _same(plain, array):
                yield put(replace(operand, array=plain))
        if array.size > 64:
            continue
        for index in np.ndindex(array.shape):
            element = array[index].view("i8") if array.dtype.kind in "mM" else array[index]
            for value in (0, 1, *_rounded(element)):
                if value != element and not (element == 0 and value == 1):
                    changed = array.copy()
                    changed[index] = value
                    yield put(replace(operand, array=changed))


def _same(a: Array, b: Array) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def _rounded(element: Any) -> list[Any]:
    if element.dtype.kind != "f" or not np.isfinite(element):
        return []
    one = np.round(element, 1)
    return [
        v for v in (np.round(element), one) if v != element and len(repr(v)) < len(repr(element))
    ]
