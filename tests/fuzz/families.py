"""The table of families: what draws a case, what it is held to, and its share of the cases.

A generator is added by a function that draws a `Case` and a row here; where it is a new function
of dask_coop, by one that says what is expected, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dask_coop.algebra import strategies
from dask_coop.api.install import of_dask as installed_dask
from fuzz import (
    binned,
    clipping,
    dates,
    distinct,
    draw,
    files,
    fills,
    filters,
    gaps,
    groups,
    histograms,
    labels,
    masked,
    order,
    own,
    pairs,
    pictures,
    products,
    quantiles,
    reductions,
    runs,
    scans,
    selections,
    transfers,
    windows,
)
from fuzz.case import Case
from fuzz.exact import Expected


class Family(NamedTuple):
    """A row of the table below."""

    draw: Callable[[np.random.Generator], Case]
    expect: Callable[[Case], list[Expected]]
    share: int
    #: Whether chunks of CuPy have nothing of the kind.
    of_numpy_chunks: bool = False


FAMILIES = {
    "histogram": Family(histograms.draw_histogram, histograms.expect_histogram, 8),
    "joint": Family(histograms.draw_joint, histograms.expect_joint, 4),
    "bincount": Family(histograms.draw_bincount, histograms.expect_bincount, 2),
    "fill": Family(fills.draw_fill, fills.expect_fill, 1, of_numpy_chunks=True),
    "digitize": Family(histograms.draw_digitize, histograms.expect_digitize, 2),
    "fold": Family(reductions.draw_fold, reductions.expect_fold, 5),
    "extremum": Family(reductions.draw_extremum, reductions.expect_extremum, 4),
    "truth": Family(reductions.draw_truth, reductions.expect_truth, 1),
    "spread": Family(reductions.draw_spread, reductions.expect_spread, 3),
    "pairs": Family(pairs.draw_pairs, pairs.expect_pairs, 3),
    "polynomial": Family(pairs.draw_polynomial, pairs.expect_polynomial, 1),
    "clip": Family(clipping.draw_clip, clipping.expect_clip, 1),
    "deviation": Family(clipping.draw_deviation, clipping.expect_deviation, 1),
    "describe": Family(reductions.draw_description, reductions.expect_description, 2),
    "dates": Family(dates.draw_dates, dates.expect_dates, 1, of_numpy_chunks=True),
    "masked": Family(masked.draw_masked, masked.expect_masked, 6, of_numpy_chunks=True),
    "labels": Family(labels.draw_labels, labels.expect_labels, 2, of_numpy_chunks=True),
    "norm": Family(reductions.draw_norm, reductions.expect_norm, 1),
    "quantile": Family(quantiles.draw_quantile, quantiles.expect_quantile, 4),
    "scan": Family(scans.draw_scan, scans.expect_scan, 8),
    "gaps": Family(gaps.draw_gaps, gaps.expect_gaps, 4),
    "runs": Family(runs.draw_runs, runs.expect_runs, 2),
    "window": Family(windows.draw_window, windows.expect_window, 4),
    "order of windows": Family(windows.draw_order, windows.expect_order, 2),
    "filter": Family(filters.draw_filter, filters.expect_filter, 1),
    "pairs of windows": Family(windows.draw_pairs, windows.expect_pairs, 1),
    "box": Family(windows.draw_box, windows.expect_box, 1),
    "pyramid": Family(windows.draw_pyramid, windows.expect_pyramid, 1),
    "label": Family(pictures.draw_label, pictures.expect_label, 1),
    "measure": Family(pictures.draw_measure, pictures.expect_measure, 1),
    "own": Family(own.draw_own, own.expect_own, 2),
    "ufunc": Family(own.draw_ufunc, own.expect_ufunc, 2),
    "topk": Family(order.draw_topk, order.expect_topk, 2),
    "repeats": Family(order.draw_repeats, order.expect_repeats, 1),
    "ranks": Family(order.draw_ranks, order.expect_ranks, 1),
    "keys": Family(order.draw_keys, order.expect_keys, 1),
    "sort": Family(order.draw_sort, order.expect_sort, 1),
    "product": Family(products.draw_product, products.expect_product, 1),
    "transpose": Family(products.draw_transpose, products.expect_transpose, 1),
    "unique": Family(distinct.draw_unique, distinct.expect_unique, 3),
    "crosstab": Family(distinct.draw_pairs, distinct.expect_pairs, 1),
    "lookup": Family(distinct.draw_lookup, distinct.expect_lookup, 3),
    "groups": Family(groups.draw_groups, groups.expect_groups, 5),
    "group moments": Family(groups.draw_group_moments, groups.expect_group_moments, 2),
    "binned": Family(binned.draw_binned, binned.expect_binned, 1),
    "groupscans": Family(groups.draw_group_scans, groups.expect_group_scans, 2),
    "selection": Family(selections.draw_selection, selections.expect_selection, 3),
    "choice": Family(selections.draw_choice, selections.expect_choice, 1),
    "file": Family(files.draw_file, files.expect_file, 1),
    "stored": Family(files.draw_zarr, files.expect_file, 1),
    "written": Family(files.draw_written, files.expect_written, 1),
    "dataset": Family(files.draw_dataset, files.expect_file, 1),
    "transfer": Family(transfers.draw_transfer, transfers.expect_transfer, 2),
}

#: Families of cases by those of the strategies that they take.
_STRATEGIC = {
    "scan": "scan",
    **dict.fromkeys(("histogram", "joint", "bincount"), "histogram"),
    "product": "matmul",
    "transpose": "transpose",
}

_WHEEL = [name for name, family in FAMILIES.items() for _ in range(family.share)]


def family_of(seed: int, index: int) -> str:
    """Return the family of a case."""
    return _WHEEL[int(np.random.default_rng((seed, index)).integers(len(_WHEEL)))]


#: Functions that `dask_coop.install` puts in the place of those of dask.array with the same results
#: as ours; of counts Dask declares the least length.
INSTALLED = {row.name for row in installed_dask.rows() if row.module == "dask.array"}
INSTALLED -= {"bincount", "push"}


def draw_case(seed: int, index: int) -> Case:
    """Return the case of two numbers."""
    case = FAMILIES[family_of(seed, index)].draw(np.random.default_rng((seed, index, 1)))
    is_dasks = case.function in INSTALLED and not {"method", "engine"} & case.options.keys()
    return replace(
        case,
        installed=is_dasks and index % 8 == 0,
        strategy=_strategy(np.random.default_rng((seed, index, 3)), case),
    )


def _strategy(rng: np.random.Generator, case: Case) -> tuple[str, str] | None:
    """Draw how kernels work on CuPy chunks: as they choose, or by any name."""
    family = _STRATEGIC.get(case.family)
    if family is None:
        return None
    names = [*getattr(strategies, family.upper())]
    if family == "scan" and any(x.array.dtype.kind in "fc" for x in case.inputs):
        # It rounds twice.
        names.remove("scan-then-fan")
    return family, draw.pick(rng, [*names, *[strategies.AUTO] * len(names)])
