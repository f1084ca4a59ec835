"""Suggest the name that was meant: that of a function, a method or a keyword."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

#: The names of NumPy, xarray and PyTorch for the axes that a function works along.
AXES = ("axis", "axes", "dim", "dims")

#: Names of other libraries, as regular expressions, and those of this one.
_FOREIGN = {
    r"(?:rolling|moving|running|sliding)_(\w+)": r"move_\1",
    r"(?:rolling|moving|sliding_window\w*)": "move_mean",
    r"(?:uniform_filter|box_blur|boxcar|mean_filter)": "box_filter",
    r"(?:minimum|maximum)_filter\w*": "move_min",
    r"(?:ewma?|exp_mean|rolling_exp\w*)": "ewm_mean",
    r"(?:ewm|move_exp_nan)(mean|sum|var|std|cov|corr)": r"ewm_\1",
    r"(?:groupby|group_by|resample|groupby_agg\w*|xarray_reduce|zonal_stats)": "groupby_reduce",
    r"(?:groupby|group)_cum\w+": "groupby_scan",
    r"(?:accumulate|cumreduction|prefix_sum|inclusive_scan)": "scan",
    r"(?:cumulative_|cum)max\w*": "cummax",
    r"(?:cumulative_|cum)min\w*": "cummin",
    r"(?:cumtrapz|cumulative_integrate|trapezoid|trapz)": "cumulative_trapezoid",
    r"(?:integral|summed_area_table)": "integral_image",
    r"hist(?:ogram1d)?": "histogram",
    r"hist2d": "histogram2d",
    r"histogramnd": "histogramdd",
    r"a(max|min|ll|ny)": r"\1",
    r"average": "mean",
    r"nan_?average": "nanmean",
    r"variance": "var",
    r"(?:stdev|stddev|standard_deviation)": "std",
    r"(?:product)": "prod",
    r"(?:push|forward_fill|pad)": "ffill",
    r"(?:backfill|backward_fill)": "bfill",
    r"(?:where_true|masked_select|boolean_mask)": "select",
    r"arg_?(?:partition|top_?k)": "argtopk",
    r"rle(?:_1d)?|run_length(?:_encod\w+)?": "run_lengths",
    r"(?:windowed_run_events|consecutive_runs)": "count_runs",
    r"windowed_run_count": "count_in_runs",
    r"(?:longest_spell|max_run\w*|maximum_consecutive\w*)": "longest_run",
    r"(?:find_events)": "run_events",
    r"(?:partition|top_k|nlargest|nsmallest)": "topk",
    r"(?:distinct|unique_\w+)": "unique",
    r"(?:approx_(?:count_distinct|n_unique)|nunique_approx|hyperloglog)": "approx_nunique",
    r"(?:counts|unique_counts)": "value_counts",
    r"(?:summary|info)": "describe",
    r"(?:cuda|to_cuda|to_cupy)": "to_gpu",
    r"(?:cpu|to_cpu|to_numpy|asnumpy)": "to_host",
    r"(?:enable|patch)": "install",
    r"(?:disable|unpatch)": "uninstall",
}


def meant(name: str, known: Collection[str]) -> str | None:
    """Return the one of the `known` names that a misspelt or foreign `name` stands for, or None."""
    for pattern, ours in _FOREIGN.items():
        if match := re.fullmatch(pattern, name, re.IGNORECASE):
            ours = match.expand(ours)
            if ours in known:
                return ours
    # Methods along named dimensions leave NaN out themselves.
    if (plain := name.removeprefix("nan")) in known:
        return plain
    return next(iter(get_close_matches(name.lower(), known, n=1, cutoff=0.7)), None)


def no_attribute(owner: str, name: str, known: Collection[str], expression: str) -> AttributeError:
    """Return the error for an attribute that `owner` lacks, which names the one that was meant.

    Parameters
    ----------
    owner : str
        The object as Python's messages have it.
    name : str
        The attribute.
    known : collection of str
        Its public attributes.
    expression : str
        The object in a user's code.
    """
    message = f"{owner} has no attribute {name!r}"
    if not name.startswith("_"):
        suggested = meant(name, known)
        message += f"; did you mean {suggested!r}?" if suggested else f"; see dir({expression})"
    # With a name and without an object, Python adds no suggestion of its own.
    return AttributeError(message, name=name)


def check_keywords(name: str, parameters: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise TypeError if a keyword in `given` is no parameter of the function `name`."""
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if takes_any or given.keys() <= parameters.keys():
        return
    wrong = next(key for key in given if key not in parameters)
    near = [key for key in parameters if wrong in AXES and key in AXES]
    if near := near or get_close_matches(wrong, parameters, n=1):
        instead = f"{near[0]}=, not {wrong}="
    else:
        instead = ", ".join(parameters)
    said = f"{name}() got an unexpected keyword argument {wrong!r}"
    raise TypeError(f"{said}; {name} takes {instead}")
