"""Quantities of pint: arrays with units, which results keep where these are linear in them.

A table says what a function makes of units. The function itself sees magnitudes; what is to be
compared with them, such as edges, is converted to their units before. pint itself is asked what
sums, differences and truths of its units are, so that what it refuses of degrees Celsius is refused
in its words. It is never imported here: without it there are no quantities.
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

#: What results have: the units of the array, also if these have an offset; those of its sums, of
#: differences of elements, or of their products with one another; none, for places and numbers of
#: elements; none, where elements are compared with zero; or none, for what has units takes no part.
#: Rows of statistics and scans by name say it themselves.
_RULES = {
    "same": "median nanmedian quantile percentile nanquantile nanpercentile move_mean move_min "
    "move_max ewm_mean box_filter ffill bfill topk sort select compress extract transpose to_gpu "
    "to_host",
    "sum": "cumulative_sum move_sum integral_image norm",
    "difference": "move_std ptp",
    "square": "move_var",
    "place": "argtopk argsort searchsorted isin digitize",
    "truth": "nonzero flatnonzero argwhere",
    "pure": "cumulative_prod",
}

#: By function, the rule of its result, or of each of its results.
UNITS: dict[str, tuple[str, ...]] = {
    **{name: (rule,) for rule, names in _RULES.items() for name in names.split()},
    **{name: (row.units,) for name, row in (STATISTICS | SCANS).items() if row.units},
    "unique": ("same", "place", "place", "place"),
    "value_counts": ("same", "place"),
    "describe": ("place", "place", "same", "same", "sum", "same", "square", "difference"),
}

#: Which parameter is the array, where it is not the first.
_ARRAYS = {"compress": "a", "extract": "arr"}

#: Which others are of the array's units.
_ALIKE = {
    "digitize": "bins",
    "searchsorted": "v",
    "isin": "test_elements",
    **dict.fromkeys(["min", "max", "nanmin", "nanmax", "sum", "nansum"], "initial"),
}

#: What takes no quantities, and why.
REFUSED = {
    "bincount": "it counts integers from 0 on, which have no units",
    "groupby_reduce": "it does not know the units of each statistic",
    "groupby_scan": "it does not know the units of each scan",
    "histogram2d": "it has one edge array for each coordinate",
    "histogramdd": "it has one edge array for each coordinate",
    "matmul": "its semirings multiply and add in ways of their own",
    "reduce": "it does not know what the monoid makes of units",
    "scan": "it does not know what the monoid makes of units",
    "to_hist": "axes have no units",
}


def with_units(function: Callable[P, R]) -> Callable[P, R]:
    """Return a public function that takes quantities, too."""
    name, signature = function.__name__, inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Who has a quantity has imported pint.
        if "pint" not in sys.modules or not _holds_quantity((*args, *kwargs.values())):
            return function(*args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which says what is wrong
        if name not in UNITS and name not in _SPECIAL:
            why = REFUSED.get(name, "it does not say what becomes of units")
            raise Refused(f"{name} does not take quantities: {why}; give .magnitude")
        serve: Callable[..., R] = _SPECIAL.get(name, _by_rule)
        return serve(function, given)

    return call


class _Units(NamedTuple):
    """The units of an array of the function `name`: one of them, or None where it has none."""

    name: str
    one: Any

    @classmethod
    def of(cls, name: str, array: Any) -> _Units:
        """Return the units of an array, which may be no quantity."""
        return cls(name, _attach(1.0, array) if _is_quantity(array) else None)

    def by(self, rule: str) -> Any:
        """Return one of the units of a result by a rule; None where it has none."""
        if self.one is None or rule == "place":
            return None
        match rule:
            case "truth":
                bool(self.one)
                return None
            case "same":
                return self.one
            case "sum":
                return self._linear(self.one + self.one, 2)
            case "difference":
                return self._linear(self.one - self.one, 0)
        return self.by("difference") ** 2

    def _linear(self, made: Any, expected: float) -> Any:
        if made.magnitude != expected:
            raise Refused(
                f"{self.name} does not take quantities in {self.one.units}, which are logarithmic; "
                "convert them with .to_base_units()"
            )
        return _attach(1.0, made)

    def strip(self, what: str, value: Any) -> Any:
        """Return the magnitude in these units of the argument `what`."""
        if value is None or (self.one is None and not _holds_quantity(value)):
            return value
        if self.one is None:
            raise Refused(f"{what} of {self.name} has units, and the array has none: {value!r}")
        if isinstance(value, list | tuple) and value and all(map(_is_quantity, value)):
            return [self.strip(what, part) for part in value]
        if not _is_quantity(value):
            raise Refused(
                f"{what} of {self.name} has no units, and the array is in {self.one.units}: give "
                f"Quantity({what}, '{self.one.units}')"
            )
        return value.m_as(self.one.units)


def _is_quantity(value: Any) -> bool:
    return isinstance(value, sys.modules["pint"].Quantity)


def _holds_quantity(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_quantity, value))
    return _is_quantity(value)


def _magnitude(value: Any) -> Any:
    return value.magnitude if _is_quantity(value) else value


def _attach(result: Any, one: Any) -> Any:
    """Return the quantity of a result in units of `one`, if that is not None, and its registry."""
    kind: Any = type(one)
    return result if one is None else kind(result, one.units)


def _call(function: Callable[..., Any], given: BoundArguments, more: Mapping[str, Any]) -> Any:
    """Call a function with its arguments, of which `more` have no units any more."""
    given.arguments |= more
    for key, value in given.arguments.items():
        if _holds_quantity(value):
            raise Refused(f"{key} of {function.__name__} takes no quantity; give {key}.magnitude")
    return function(*given.args, **given.kwargs)


def _by_rule(function: Callable[..., Any], given: BoundArguments) -> Any:
    name, arguments = function.__name__, given.arguments
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
        rules = ("truth",)  # which counts what is not zero
    own = _Units.of(name, array)
    units, plain = [own.by(rule) for rule in rules], {key: _magnitude(array)}
    if (alike := _ALIKE.get(name)) in arguments:
        plain[alike] = own.strip(alike, arguments[alike])
    result = _call(function, given, plain)
    if not isinstance(result, tuple | list):
        return _attach(result, units[0])
    every = units if len(units) > 1 else units * len(result)
    parts = map(_attach, result, every)
    return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)


def _histogram(function: Callable[..., Any], given: BoundArguments) -> Any:
    arguments = {"bins": 10, "range": None, "weights": None, "density": None} | given.arguments
    array, weights, bins = (arguments[key] for key in ("a", "weights", "bins"))
    own, heavy = (_Units.of("histogram", each) for each in (array, weights))
    # A number of bins, which may be lazy, or a rule for it has no units.
    if _holds_quantity(bins) or (not isinstance(bins, str | Delayed) and np.ndim(bins)):
        bins = own.strip("bins", bins)
    limits, units = own.strip("range", arguments["range"]), heavy.by("sum")
    if arguments["density"]:
        width = own.by("difference")
        units = None if width is None else 1 / width
    plain = {"a": _magnitude(array), "weights": _magnitude(weights), "bins": bins, "range": limits}
    made = _call(function, given, plain)
    return made._replace(counts=_attach(made.counts, units), edges=_attach(made.edges, own.one))


def _cumulative_trapezoid(function: Callable[..., Any], given: BoundArguments) -> Any:
    name, arguments = function.__name__, given.arguments
    along = "dx" if arguments.get("x") is None else "x"
    height = _Units.of(name, arguments["y"]).by("sum")
    width = _Units.of(name, arguments.get(along)).by("difference")
    units = [one for one in (height, width) if one is not None]
    plain = {key: _magnitude(arguments[key]) for key in ("y", along) if key in arguments}
    return _attach(_call(function, given, plain), math.prod(units))


def _moment(function: Callable[..., Any], given: BoundArguments) -> Any:
    array, order = given.arguments["a"], given.arguments["order"]
    one = _Units.of("moment", array).by("difference")
    power = None if one is None else one**order
    return _attach(_call(function, given, {"a": _magnitude(array)}), power)


#: Functions of whose results no rule tells the units.
_SPECIAL: dict[str, Callable[..., Any]] = {
    "moment": _moment,
    "histogram": _histogram,
    "cumulative_trapezoid": _cumulative_trapezoid,
}
