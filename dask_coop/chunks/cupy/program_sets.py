"""The programs to compile ahead: for most work, for groups of functions, and all.

`programs_list` lists them by the function that launches them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dask_coop.algebra.fills import fill
from dask_coop.algebra.monoids import (
    ARGMAX,
    ARGMIN,
    LOGADDEXP,
    MAX,
    MEAN,
    MIN,
    MINMAX,
    MOMENTS,
    MONOIDS,
    NANMAX,
    NANMIN,
    PROD,
    SUM,
    VAR,
)
from dask_coop.algebra.operation import bind, compensated
from dask_coop.chunks.cupy.programs_list import (
    all_groups,
    all_of_many_groups,
    all_scans,
    counts,
    digits,
    element,
    finders,
    functor,
    gaps,
    grouped,
    groups,
    histograms,
    layout,
    matmuls,
    multichunk_scan,
    multichunks,
    pairs,
    reductions,
    scanned,
    scans,
    selections,
    skips,
    tallies,
    transposes,
    weighs,
    windows,
)
from dask_coop.cuda.devices import Device, usual
from dask_coop.cuda.programs import (
    frames,
    histogram,
    matmul,
    multichunk,
    order_statistics,
    reduce,
    select,
)
from dask_coop.cuda.programs.base import CTYPES

_H200 = usual("sm_90")

#: The monoids of `common`.
_COMMON = (SUM, MIN, MAX, MINMAX, MEAN, VAR, MOMENTS)


def common(dtypes: tuple[np.dtype[Any], ...], gpu: Device = _H200) -> list[str]:
    """Return the programs of most work on elements of `dtypes`, multi-chunk launches included."""
    sources: list[str] = []
    for dtype in dtypes:
        for monoid in _COMMON:
            op = compensated(bind(monoid, dtype, monoid.output(dtype), monoid.name))
            sources += reductions(op)
            sources.append(multichunk.reduce(functor(op), element(op), layout(op)))
        total = compensated(bind(SUM, dtype, SUM.output(dtype), "scan"))
        sources += scans(total, gpu)
        sources.append(multichunk_scan(scanned(total), gpu))
        samples = np.dtype("u1") if dtype.kind == "b" else dtype
        edge = np.dtype("f4" if dtype.kind == "f" and dtype.itemsize <= 4 else "f8")
        find = histogram.finder("guessed", samples, edge)
        sources += [*counts(find), multichunk.histogram(find, False)]
    return list(dict.fromkeys(sources))


#: The dtypes that programs are compiled ahead for by default, and the groups that `warm` knows.
WARM = tuple(map(np.dtype, ("f4", "f8", "i4", "i8", "u1")))
GROUPS = ("reductions", "scans", "histograms", "products")

#: The monoids of scans with public functions of their own.
_SCANS = (SUM, PROD, MAX, MIN, LOGADDEXP)


def warm(group: str, dtype: np.dtype[Any], gpu: Device) -> list[str]:
    """Return the programs that the public functions of a group launch by default for a dtype.

    Programs for masks, segments, exclusive or reverse scans, and weights other than floats are left
    out.

    Parameters
    ----------
    group : {"reductions", "scans", "histograms", "products"}
    dtype : numpy.dtype
    gpu : Device
    """
    match group:
        case "reductions":
            return list(dict.fromkeys(_warm_reductions(dtype)))
        case "scans":
            return list(dict.fromkeys(_warm_scans(dtype, gpu)))
        case "histograms":
            return list(dict.fromkeys(_warm_histograms(dtype, gpu)))
        case _:
            known = dtype.kind == "b" or dtype in matmul.DTYPES
            return [*transposes(dtype), *(matmuls(dtype) if known else ())]


def _warm_reductions(dtype: np.dtype[Any]) -> Iterator[str]:
    for monoid in MONOIDS:
        # Reproducible sums are rare, and LOGADDEXP has no public reduction.
        if dtype.kind not in monoid.kinds or monoid.has_digits or monoid is LOGADDEXP:
            continue
        for skipna in skips(monoid) if dtype.kind == "f" else (False,):
            op = compensated(bind(monoid, dtype, monoid.output(dtype), monoid.name, skipna))
            yield from reductions(op)
            yield multichunk.reduce(functor(op), element(op), layout(op))


def _warm_scans(dtype: np.dtype[Any], gpu: Device) -> Iterator[str]:
    for monoid in _SCANS:
        if dtype.kind in monoid.kinds:
            op = compensated(bind(monoid, dtype, monoid.output(dtype), "scan"))
            yield from scans(op, gpu)
            yield multichunk_scan(scanned(op), gpu)
            # For the lift of the chunks.
            yield reduce.long_rows(functor(op), element(op), layout(op))
    if dtype.kind == "f":
        filled = bind(fill(None), dtype, dtype, "ffill")
        yield from reductions(filled)
        yield from (*scans(filled, gpu), *scans(filled, gpu, reverse=True))


def _warm_histograms(dtype: np.dtype[Any], gpu: Device) -> Iterator[str]:
    if dtype.kind not in "biuf":
        return
    samples = np.dtype("u1") if dtype.kind == "b" else dtype
    edge = np.dtype("f4" if dtype.kind == "f" and dtype.itemsize <= 4 else "f8")
    offsets_of = np.dtype("u4")
    tally = histogram.finder("unit", offsets_of, offsets_of)
    one, several = digits(samples)
    yield from (*counts(one), multichunk.histogram(one, samples.itemsize > 1))
    yield histogram.windows(several, False)
    if samples.itemsize > 2:
        yield from (select.collect(samples, many) for many in (False, True))
    for find in finders(samples, edge):
        yield from counts(find)
        yield from weighs(find, "fd")
        yield histogram.locate(find, offsets_of)
        yield multichunk.histogram(find, False)
    for find in (tally, *([histogram.finder("unit", samples, samples)] * (samples.kind in "iu"))):
        yield from counts(find)
        yield from weighs(find, "fd")
    yield from (histogram.largest(np.dtype(weight)) for weight in "fd")
    yield from (histogram.clear(), histogram.settle())


def shipped(dtype: np.dtype[Any], gpu: Device) -> list[str]:
    """Return the programs of common statistics of a dtype of floats, for the package's archive.

    These are the programs of `common`, of forms that leave NaN out, of quantiles, groups, windows,
    gaps, selections and distinct elements, in an order in which neighbours compress well.
    """
    sources = common((dtype,), gpu)
    for monoid in (SUM, MEAN, VAR, NANMIN, NANMAX, ARGMIN, ARGMAX):
        for skipna in skips(monoid):
            op = compensated(bind(monoid, dtype, monoid.output(dtype), monoid.name, skipna))
            sources += reductions(op)
    skipping = compensated(bind(SUM, dtype, SUM.output(dtype), "scan", True))
    filled = bind(fill(None), dtype, dtype, "ffill")
    sources += (*reductions(skipping), *scans(skipping, gpu), *reductions(filled))
    sources += (*scans(filled, gpu), *scans(filled, gpu, reverse=True))
    sources += (*_warm_histograms(dtype, gpu), *order_statistics.all_of(dtype))
    for monoid in (SUM, MEAN, VAR, MIN, MAX, NANMIN, NANMAX):
        for skipna in skips(monoid):
            sources += groups(grouped(bind(monoid, dtype, monoid.output(dtype), "", skipna)))
    if dtype.itemsize <= 4:
        sources += all_of_many_groups(dtype)
    sources += (*windows(dtype), *transposes(dtype), *select.programs())
    return list(dict.fromkeys(sources))


def everything() -> list[str]:
    """Return every program of the library, each once."""
    sources: dict[str, None] = {}
    for name in CTYPES:
        dtype = np.dtype(name)
        for monoid in MONOIDS:
            if dtype.kind in monoid.kinds:
                for skipna in skips(monoid):
                    op = bind(monoid, dtype, monoid.output(dtype), monoid.name, skipna)
                    sources.update(dict.fromkeys(reductions(op)))
                if "masked" in monoid.options and dtype.kind != "c":
                    op = replace(bind(monoid, dtype, dtype, monoid.name), masked=True)
                    sources.update(dict.fromkeys(reductions(op)))
        sources.update(dict.fromkeys(all_groups(dtype)))
        if dtype.kind in "biuf":
            sources.update(dict.fromkeys(histograms(dtype, _H200)))
            sources.update(dict.fromkeys(order_statistics.all_of(dtype)))
        if dtype.kind in "biu":
            sources.update(dict.fromkeys(tallies(dtype, _H200)))
        sources.update(dict.fromkeys(multichunks(dtype, _H200)))
        sources.update(dict.fromkeys(transposes(dtype)))
        sources.update(dict.fromkeys(windows(dtype)))
        if dtype.kind == "b" or dtype in matmul.DTYPES:
            sources.update(dict.fromkeys(matmuls(dtype)))
        if dtype in WARM:
            sources.update(dict.fromkeys(common((dtype,))))
            for group in GROUPS:
                sources.update(dict.fromkeys(warm(group, dtype, _H200)))
    sources.update(dict.fromkeys(all_scans()))
    sources.update(dict.fromkeys(gaps()))
    sources.update(dict.fromkeys(pairs()))
    sources.update(dict.fromkeys(selections()))
    sources.update(dict.fromkeys(frames.programs()))
    sources.update(dict.fromkeys(frames.unpackings()))
    return list(sources)
