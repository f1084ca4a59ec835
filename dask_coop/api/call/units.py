"""Quantities of pint: arrays with units, from which the units of results follow.

A table has the rule for the units of each function's result. The function itself gets magnitudes;
arguments to compare with them, such as edges, are first converted to the array's units. pint itself
computes sums, differences and truths of its units, so its own errors refuse, for example, sums of
degrees Celsius. This module never imports pint: without it there are no quantities.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import BoundArguments
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from dask.delayed import Delayed

from dask_coop.algebra.statistics import SCANS, STATISTICS
from dask_coop.errors import Refused

P = ParamSpec("P")
R = TypeVar("R")

#: Rules for the units of results, and their functions; statistics and scans by name have the rule
#: in their rows.
#: - "same": the units of the array, even with an offset
#: - "sum", "difference", "square": those of sums, of differences of elements, of their squares
#: - "place": none, for indices and numbers of elements
#: - "truth": none, after elements are compared with zero
#: - "pure": dimensionless, as the array must be
_RULES = {
    "same": "median nanmedian quantile percentile nanquantile nanpercentile move_mean move_min "
    "move_max move_median move_quantile ewm_mean box_filter ffill bfill topk sort select compress "
    "extract transpose to_gpu to_host",
    "sum": "cumulative_sum ewm_sum move_sum integral_image norm",
    "difference": "ewm_std move_std ptp",
    "square": "ewm_var move_var",
    "place": "skew kurtosis move_rank move_argmin move_argmax argtopk argsort nunique rankdata "
    "approx_nunique percentileofscore searchsorted isin digitize",
    "truth": "nonzero flatnonzero argwhere",
    "pure": "cumulative_prod",
}

#: By function, the rule for its result, or one for each of its results.
UNITS: dict[str, tuple[str, ...]] = {
    **{name: (rule,) for rule, names in _RULES.items() for name in names.split()},
    **{name: (row.units,) for name, row in (STATISTICS | SCANS).items() if row.units},
    "mode": ("same", "place"),
    "unique": ("same", "place", "place", "place"),
    "value_counts": ("same", "place"),
    "describe": ("place", "place", "same", "same", "sum", "same", "square", "difference"),
}

#: The parameter that is the array, if it is not the first.
_ARRAYS = {"compress": "a", "extract": "arr"}

#: Other parameters in the array's units.
_ALIKE = {
    "digitize": "bins",
    "searchsorted": "v",
    "isin": "test_elements",
    "percentileofscore": "score",
    **dict.fromkeys(["min", "max", "nanmin", "nanmax", "sum", "nansum"], "initial"),
}

#: Functions that take no quantities, and why.
REFUSED = {
    "average": "its weights may have units of their own",
    **dict.fromkeys(
        ["binned_statistic", "binned_statistic_2d", "binned_statistic_dd"],
        "its coordinates and values may have units of their own",
    ),
    "bincount": "it counts integers from 0 on, which have no units",
    **dict.fromkeys(
        ["corrcoef", "cov", "crosstab", "lexsort"], "its variables may have units of their own"
    ),
    **dict.fromkeys(
        ["longest_run", "count_runs", "count_in_runs", "first_run", "last_run", "run_lengths"],
        "it takes truth values, which have no units",
    ),
    "run_events": "it takes truth values, which have no units",
    **dict.fromkeys(["coarsen", "pyramid"], "it does not know what the reduction makes of units"),
    "ewm_cov": "it does not multiply the units of two arrays",
    "ewm_corr": "it does not multiply the units of two arrays",
    "groupby_reduce": "it does not know the units of each statistic",
    "groupby_scan": "it does not know the units of each scan",
    "histogram2d": "it has one edge array for each coordinate",
    "histogramdd": "it has one edge array for each coordinate",
    "label": "it takes what is not zero, whatever the units",
    "lfilter": "its coefficients may have units of their own",
    "linregress": "its variables may have units of their own",
    **dict.fromkeys(["mad_std", "median_abs_deviation", "sigma_clip"], "it works on magnitudes"),
    "move_cov": "it does not multiply the units of two arrays",
    "move_corr": "it does not multiply the units of two arrays",
    "matmul": "its semirings multiply and add in ways of their own",
    "polyfit": "its variables may have units of their own",
    "reduce": "it does not know what the monoid makes of units",
    "sosfilt": "its coefficients may have units of their own",
    "scan": "it does not know what the monoid makes of units",
    "to_hist": "axes have no units",
    "to_zarr": "Zarr arrays have no units",
}


def with_units(function: Callable[P, R]) -> Callable[P, R]:
    """Return a public function that also takes quantities."""
    name, signature = function.__name__, inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # A quantity cannot exist before pint is imported.
        if "pint" not in sys.modules or not _holds_quantity((*args, *kwargs.values())):
            return function(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # raises its own TypeError
        if name not in UNITS and name not in _SPECIAL:
            why = REFUSED.get(name, "it does not say what becomes of units")
            raise Refused(f"{name} does not take quantities: {why}; give .magnitude")
        serve: Callable[..., R] = _SPECIAL.get(name, _by_rule)
        return serve(function, bound)

    return call


class _Units(NamedTuple):
    """The units of an argument of the function `name`: a quantity of 1, or None without units."""

    name: str
    unit: Any

    @classmethod
    def of(cls, name: str, array: Any) -> _Units:
        """Return the units of an array, which need not be a quantity."""
        return cls(name, _attach(1.0, array) if _is_quantity(array) else None)

    def by(self, rule: str) -> Any:
        """Return a quantity of 1 in the units of a result by a rule; None without units."""
        if self.unit is None or rule == "place":
            return None
        match rule:
            case "truth":
                bool(self.unit)
                return None
            case "same":
                return self.unit
            case "sum":
                return self._linear(self.unit + self.unit, 2)
            case "difference":
                return self._linear(self.unit - self.unit, 0)
        return self.by("difference") ** 2

    def _linear(self, result: Any, expected: float) -> Any:
        """Return 1 in the units of `result`; refuse units whose magnitudes do not add up."""
        if result.magnitude != expected:
            raise Refused(
                f"{self.name} does not take quantities in {self.unit.units}, which are "
                "logarithmic; convert them with .to_base_units()"
            )
        return _attach(1.0, result)

    def strip(self, argument: str, value: Any) -> Any:
        """Return the magnitude, in these units, of the value of the `argument` of that name."""
        if value is None or (self.unit is None and not _holds_quantity(value)):
            return value
        if self.unit is None:
            raise Refused(f"{argument} of {self.name} has units, and the array has none: {value!r}")
        if isinstance(value, list | tuple) and value and all(map(_is_quantity, value)):
            return [self.strip(argument, part) for part in value]
        if not _is_quantity(value):
            raise Refused(
                f"{argument} of {self.name} has no units, and the array is in {self.unit.units}: "
                f"give Quantity({argument}, '{self.unit.units}')"
            )
        return value.m_as(self.unit.units)


def _is_quantity(value: Any) -> bool:
    return isinstance(value, sys.modules["pint"].Quantity)


def _holds_quantity(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_quantity, value))
    return _is_quantity(value)


def _magnitude(value: Any) -> Any:
    return value.magnitude if _is_quantity(value) else value


def _attach(result: Any, unit: Any) -> Any:
    """Return a result as a quantity in the units and registry of `unit`; unchanged if None."""
    kind: Any = type(unit)
    return result if unit is None else kind(result, unit.units)


def _call(function: Callable[..., Any], bound: BoundArguments, plain: Mapping[str, Any]) -> Any:
    """Call a function with its arguments, replaced by those in `plain`, which have no units."""
    bound.arguments |= plain
    for key, value in bound.arguments.items():
        if _holds_quantity(value):
            raise Refused(f"{key} of {function.__name__} takes no quantity; give {key}.magnitude")
    return function(*bound.args, **bound.kwargs)


def _by_rule(function: Callable[..., Any], bound: BoundArguments) -> Any:
    name, arguments = function.__name__, bound.arguments
    key = _ARRAYS.get(name, next(iter(arguments)))
    array, rules = arguments[key], UNITS[name]
    if rules == ("pure",) and _is_quantity(array):
        if not array.dimensionless:
            raise Refused(
                f"{name} does not take quantities in {array.units}: the units of its result would "
                "depend on the elements; give .magnitude"
            )
        array, rules = array.to(""), ("same",)
    if name == "norm" and arguments.get("ord") == 0:
        rules = ("truth",)  # it counts the elements that are not zero
    if arguments.get("error") is not None:
        rules = (*rules, "place")  # errors are of ranks
    array_units = _Units.of(name, array)
    units, plain = [array_units.by(rule) for rule in rules], {key: _magnitude(array)}
    if (alike := _ALIKE.get(name)) in arguments:
        plain[alike] = array_units.strip(alike, arguments[alike])
    result = _call(function, bound, plain)
    if not isinstance(result, tuple | list):
        return _attach(result, units[0])
    every = units if len(units) > 1 else units * len(result)
    parts = map(_attach, result, every)
    return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)


def _histogram(function: Callable[..., Any], bound: BoundArguments) -> Any:
    arguments = {"bins": 10, "range": None, "weights": None, "density": None} | bound.arguments
    array, weights, bins = (arguments[key] for key in ("a", "weights", "bins"))
    array_units, weight_units = (_Units.of("histogram", value) for value in (array, weights))
    # A number of bins, which may be lazy, and a rule for it have no units.
    if _holds_quantity(bins) or (not isinstance(bins, str | Delayed) and np.ndim(bins)):
        bins = array_units.strip("bins", bins)
    limits, unit = array_units.strip("range", arguments["range"]), weight_units.by("sum")
    if arguments["density"]:
        width = array_units.by("difference")
        unit = None if width is None else 1 / width
    plain = {"a": _magnitude(array), "weights": _magnitude(weights), "bins": bins, "range": limits}
    result = _call(function, bound, plain)
    edges = _attach(result.edges, array_units.unit)
    return result._replace(counts=_attach(result.counts, unit), edges=edges)


def _cumulative_trapezoid(function: Callable[..., Any], bound: BoundArguments) -> Any:
    name, arguments = function.__name__, bound.arguments
    along = "dx" if arguments.get("x") is None else "x"
    height = _Units.of(name, arguments["y"]).by("sum")
    width = _Units.of(name, arguments.get(along)).by("difference")
    units = [unit for unit in (height, width) if unit is not None]
    plain = {key: _magnitude(arguments[key]) for key in ("y", along) if key in arguments}
    return _attach(_call(function, bound, plain), math.prod(units))


def _moment(function: Callable[..., Any], bound: BoundArguments) -> Any:
    array, order = bound.arguments["a"], bound.arguments["order"]
    unit = _Units.of("moment", array).by("difference")
    power = None if unit is None else unit**order
    return _attach(_call(function, bound, {"a": _magnitude(array)}), power)


#: Functions whose results' units follow no rule.
_SPECIAL: dict[str, Callable[..., Any]] = {
    "moment": _moment,
    "histogram": _histogram,
    "cumulative_trapezoid": _cumulative_trapezoid,
}
