"""Exponentially weighted sums and spreads by their definition, in wide floats."""

from __future__ import annotations

from typing import Any

import numpy as np


def spread_out(
    name: str, x: Any, y: Any, alpha: float, adjust: bool, ignore_na: bool, bias: bool
) -> Any:
    """Return a weighted sum or spread behind each element of a line.

    It is infinite where nearly all of the weight is one element's, so that what is divided by the
    others' is noise.
    """
    valid = ~np.isnan(x) & ~np.isnan(y)
    weights, found = np.zeros(len(x), "g"), np.full(len(x), np.nan)
    for i in range(len(x)):
        if valid[i] or not ignore_na:
            weights[:i] *= 1 - np.longdouble(alpha)
        if valid[i]:
            weights[i] = 1 if adjust or not weights.any() else alpha
            weights /= 1 if adjust else weights.sum()
        here = weights > 0
        if name == "ewm_sum":
            found[i] = (weights[here] * x[here]).sum() if here.any() else np.nan
            continue
        w, a, b = weights[here], x[here].astype("g"), y[here].astype("g")
        if len(w) < (1 if bias or name == "ewm_corr" else 2):
            continue
        if name == "ewm_corr" and (np.ptp(a) == 0 or np.ptp(b) == 0):
            continue
        total = w.sum()
        if w.max() > (1 - 1e-6) * total and not (bias or len(w) < 2):
            found[i] = np.inf
            continue
        a, b = a - (w * a).sum() / total, b - (w * b).sum() / total
        with np.errstate(all="ignore"):
            value = (w * a * b).sum() / total
            if name == "ewm_corr":
                value /= np.sqrt((w * a * a).sum() * (w * b * b).sum()) / total
            elif not bias:
                value *= total**2 / (total**2 - (w**2).sum())
            found[i] = np.sqrt(value) if name == "ewm_std" else value
    return found
