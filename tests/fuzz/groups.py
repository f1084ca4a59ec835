"""Cases of groups of elements, of labels that are known or computed with the chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr

import dask_coop as dc
from dask_coop.algebra.merges import highest, lowest
from dask_coop.api.groups import quantiles
from dask_coop.graph import group_selection
from fuzz import draw, exact, pairs
from fuzz.case import Array, Case, Operand, show_array
from fuzz.exact import EPS, Expected

#: What is found of a group exactly, whatever the order.
_FUNCS = ["count", "min", "max", "nanmin", "nanmax", "first", "last", "nanfirst", "nanlast"]
_FUNCS += ["argmin", "argmax", "nanargmin", "nanargmax", "any", "all", "count_nonzero"]
_QUANTILES = ["median", "nanmedian", "quantile", "nanquantile"]
_SUMS = ["sum", "nansum", "prod", "nanprod", "mean", "nanmean"]
_SPREADS = ["var", "nanvar", "std", "nanstd"]
_PAIRS = ["cov", "corr", "slope", "intercept", "pvalue", "stderr", "intercept_stderr"]
#: Those that NumPy has of complex numbers, too, and as ours are.
_OF_COMPLEX = {"count", "first", "last", "nanfirst", "nanlast", "any", "all", "count_nonzero"}
#: Those of a group without elements, where it is neither NaN nor the lowest integer.
_NOTHING = {"count": 0, "count_nonzero": 0, "any": 0, "all": 0, "prod": 1}
_NOTHING |= dict.fromkeys(("argmin", "argmax", "nanargmin", "nanargmax"), -1)
#: Sums and products of NaN alone that are left out.
_OF_NAN = {"nansum": 0, "nanprod": 1}

_SCANS = ["cumsum", "nancumsum", "cumprod", "nancumprod", "cummax", "cummin", "ffill", "bfill"]


@dataclass(frozen=True)
class GroupCase(Case):
    """A call whose labels, the second array, are known when the graph is built."""

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Call the function on chunks of `xp`'s kind."""
        x, labels = self.inputs
        named = {name: operand.build(xp) for name, operand in self.operands.items()}
        found = getattr(dc, self.function)(x.build(xp), labels.array, **named, **self.options)
        return found if isinstance(found, tuple) else (found,)

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        labels = self.inputs[1]
        return super().code(xp).replace(labels.code(xp), show_array(labels.array), 1)


@dataclass(frozen=True)
class CountedCase(Case):
    """A call that counts the digits of any elements by group, and sorts none of them."""

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Call the function on chunks of `xp`'s kind."""
        before = quantiles._SMALL, group_selection.FEW
        quantiles._SMALL = group_selection.FEW = -1
        try:
            return super().call(xp)
        finally:
            quantiles._SMALL, group_selection.FEW = before

    def code(self, xp: Any) -> str:
        """Return the call as a line of Python."""
        names = "quantiles._SMALL = group_selection.FEW = -1"
        return (
            "from dask_coop.api.groups import quantiles; "
            f"from dask_coop.graph import group_selection; {names}; {super().code(xp)}"
        )


def draw_groups(rng: draw.Generator) -> Case:
    """Draw a statistic of groups."""
    large, many = draw.chance(rng, 0.1), draw.chance(rng, 0.05)
    sides = draw.large_shape(rng) if large or many else draw.shape(rng, 1)
    func = draw.pick(rng, _FUNCS * 3 + _QUANTILES * 2 + _SUMS + _SPREADS)
    dtypes = [*draw.REAL, *(draw.COMPLEX if func in _OF_COMPLEX else [])]
    if func in _QUANTILES:
        dtypes.remove("f2")
    if func.endswith("prod"):
        dtypes = draw.INTS
    dtype = draw.pick(rng, dtypes)
    x = _even_values(rng, dtype, sides) if many else _values(rng, dtype, sides)
    known = draw.chance(rng, 0.5)
    labels, n = _labels(rng, x, int(rng.integers(200, 2000)) if many else int(rng.integers(1, 9)))
    labels = _in_some_dtype(rng, labels, n)
    options: dict[str, Any] = {"func": func}
    if draw.chance(rng, 0.7):
        _draw_expected(rng, n, options)
    if labels.ndim > 1 and "expected_groups" in options | dict.fromkeys(["known"] * known):
        _draw_axes(rng, x, labels, options)
    if draw.chance(rng, 0.2):
        options["fill_value"] = 7
        options |= {"min_count": int(rng.integers(0, 4))} if draw.chance(rng, 0.5) else {}
    if func.endswith("quantile"):
        q = [0.3, 0.9] if draw.chance(rng, 0.5) else 0.7
        options["finalize_kwargs"] = {"q": q}
    return _case(rng, "groups", "groupby_reduce", x, labels, options, known, large or many)


def draw_group_scans(rng: draw.Generator) -> Case:
    """Draw a scan of groups."""
    large = draw.chance(rng, 0.1)
    sides = draw.large_shape(rng) if large else draw.shape(rng, 1)
    func = draw.pick(rng, _SCANS)
    x = _values(rng, draw.pick(rng, draw.INTS if func.endswith("prod") else draw.REAL), sides)
    labels, n = _labels(rng, x, int(rng.integers(1, 9)))
    axis = int(rng.integers(x.ndim - labels.ndim, x.ndim))
    options = {"func": func, "axis": axis}
    if draw.chance(rng, 0.5):
        options["expected_groups"] = [*range(n)]
    known = draw.chance(rng, 0.5)
    return _case(rng, "groupscans", "groupby_scan", x, labels, options, known, large)


def draw_group_moments(rng: draw.Generator) -> Case:
    """Draw a statistic of pairs, or of the shape of a distribution, by group."""
    sides, name = draw.shape(rng, 1), draw.pick(rng, [*_PAIRS, *pairs.SHAPES])
    x = pairs.numbers(rng, draw.pick(rng, pairs.DTYPES), sides, gaps=draw.chance(rng, 0.3))
    labels, n = _labels(rng, x, int(rng.integers(1, 5)))
    options: dict[str, Any] = {"func": draw.pick(rng, ["", "nan"]) + name}
    known = draw.chance(rng, 0.5)
    if draw.chance(rng, 0.7):
        _draw_expected(rng, n, options)
    if labels.ndim > 1 and "expected_groups" in options | dict.fromkeys(["known"] * known):
        _draw_axes(rng, x, labels, options)
    if draw.chance(rng, 0.2):
        options |= {"fill_value": 7, "min_count": int(rng.integers(0, 4))}
    if name == "cov" and draw.chance(rng, 0.3):
        options["finalize_kwargs"] = {"ddof": int(rng.integers(0, 3))}
    case = _case(rng, "group moments", "groupby_reduce", x, labels, options, known, False)
    if name in _PAIRS:
        y = pairs.numbers(rng, "f8", sides, gaps=draw.chance(rng, 0.3))
        case.operands["y"] = Operand(y, draw.chunks(rng, sides), case.inputs[0].axes)
    return case


def _values(rng: draw.Generator, dtype: Any, sides: tuple[int, ...]) -> Array:
    """Return elements, now and then many that an extremum has for its identity."""
    x = draw.values(rng, dtype, sides)
    if draw.chance(rng, 0.3):
        end = draw.pick(rng, [lowest, highest])(x.dtype)
        x = np.where(rng.random(sides) < draw.pick(rng, [0.5, 0.95, 1.1]), end, x).astype(dtype)
    return x


def _even_values(rng: draw.Generator, dtype: Any, sides: tuple[int, ...]) -> Array:
    """Return elements that are floats of about one size: sums of many groups have one scale."""
    if np.dtype(dtype).kind != "f":
        return _values(rng, dtype, sides)
    x = draw.pick(rng, [0, 1, 1000]) + rng.standard_normal(sides)
    if draw.chance(rng, 0.3):
        x[rng.random(sides) < draw.pick(rng, [0.001, 0.5])] = draw.pick(rng, [np.nan, np.inf])
    return x.astype(dtype)


def _in_some_dtype(rng: draw.Generator, labels: Array, n: int) -> Array:
    """Return labels in a dtype that holds them; unsigned ones for what is below 0 have others."""
    if labels.dtype.kind != "i":
        return labels.astype(draw.pick(rng, ["f4", "f8", *(["f2"] * (n < 1000))]))
    dtype = draw.pick(rng, [*(["i1", "u1"] * (n < 100)), "i2", "u2", "i4", "i4", "u4", "i8", "u8"])
    return np.where((labels < 0) & (dtype[0] == "u"), n + 1, labels).astype(dtype)


def _draw_expected(rng: draw.Generator, n: int, options: dict[str, Any]) -> None:
    """Expect all groups, or not the first, or some in any order and some that do not occur."""
    groups = [*range(n)]
    if draw.chance(rng, 0.3):
        groups = [*range(1, n + 1)]
    elif draw.chance(rng, 0.3):
        groups = [int(group) for group in rng.permutation(n + 3)[: int(rng.integers(1, n + 2))]]
        options |= {"sort": False} if draw.chance(rng, 0.5) else {}
    options["expected_groups"] = groups


def _labels(rng: draw.Generator, x: Array, n: int) -> tuple[Array, int]:
    """Return labels of the last axes of an array, and of how many groups that may be expected."""
    ndim = int(rng.integers(1, x.ndim + 1))
    labels = rng.integers(-1, n, x.shape[x.ndim - ndim :])
    if draw.chance(rng, 0.4):
        # Most chunks have few groups.
        labels = np.sort(labels.reshape(-1)).reshape(labels.shape)
    if draw.chance(rng, 0.3):
        labels = np.where(labels < 0, np.nan, labels)
    return labels, n


def _draw_axes(rng: draw.Generator, x: Array, labels: Array, options: dict[str, Any]) -> None:
    if draw.chance(rng, 0.4):
        axes = rng.permutation(labels.ndim)[: int(rng.integers(1, labels.ndim))]
        options["axis"] = tuple(int(d) + x.ndim - labels.ndim for d in axes)
        options |= {"fill_value": 7} if draw.chance(rng, 0.8) else {}


def _case(
    rng: draw.Generator,
    family: str,
    function: str,
    x: Array,
    labels: Array,
    options: dict[str, Any],
    known: bool,
    large: bool,
) -> Case:
    letters = "abcdefgh"[: x.ndim]
    own = letters[x.ndim - labels.ndim :]
    inputs = draw.operand(rng, x, letters), draw.operand(rng, labels, own)
    compiled = large or draw.chance(rng, 0.3)
    kind: type[Case] = GroupCase if known else Case
    if options["func"] in _QUANTILES and not known and draw.chance(rng, 0.6):
        kind = CountedCase
    return kind(family, function, inputs, {}, options, compiled=compiled)


# The independent judge.


def _arrays(case: Case) -> tuple[Array, Array, Array]:
    """Return the elements, their labels, and the groups that there are."""
    x, labels = (operand.array for operand in case.inputs)
    if labels.shape != x.shape[x.ndim - labels.ndim :]:
        raise ValueError("labels do not fit")
    groups = case.option("expected_groups")
    if groups is not None:
        given = np.array(groups, "i8")
        return x, labels, np.sort(given) if case.option("sort", True) else given
    return x, labels, np.unique(labels[labels == labels])


def _kept_axes(case: Case, x: Array, labels: Array) -> tuple[tuple[int, ...], list[int]]:
    """Return the axes that are not reduced, and which of them labels are along."""
    first = x.ndim - labels.ndim
    axes = case.option("axis", range(first, x.ndim))
    rows = [d for d in range(first, x.ndim) if d not in axes]
    if rows and not (isinstance(case, GroupCase) or "expected_groups" in case.options):
        raise ValueError("labels are not known")
    return (*range(first), *rows), rows


def expect_groups(case: Case) -> list[Expected]:
    """Return what a loop over the groups finds."""
    x, labels, groups = _arrays(case)
    func, fill = case.option("func"), case.option("fill_value")
    kept, rows = _kept_axes(case, x, labels)
    known, given = isinstance(case, GroupCase), "expected_groups" in case.options
    # As of flox, results are float64 whatever `q` is.
    q = np.asarray((case.option("finalize_kwargs") or {}).get("q", 0.5))
    dtype = _dtype(func, x.dtype, q)
    nothing = _NOTHING.get(func, np.nan if dtype.kind in "fc" else lowest(dtype))
    least = case.option("min_count", int(bool(rows) or (fill is not None and given)))
    if least and fill is None and func in ("nansum", "nanprod"):
        fill = np.nan
    instead = nothing if fill is None else fill
    output = dtype if fill is None else np.result_type(dtype, fill)
    shape = (*np.shape(q), *(x.shape[d] for d in kept), len(groups))
    adds = func in _SUMS + _SPREADS and dtype.kind == "f"
    value, slack = np.full(shape, instead, "g" if adds else output), np.zeros(shape)
    for at, lines, codes in _lines(x, labels, kept):
        for i, group in enumerate(groups):
            places, here = np.flatnonzero(codes == group), (..., *at, i)
            part = lines[places]
            some = part[part == part]
            if len(some) < least:
                if fill is None:
                    raise ValueError("a fill value is needed")
                value[here] = fill
            elif not part.size or (func in ("nanmin", "nanmax") and not some.size):
                value[here] = instead
            else:
                value[here] = _find(func, part, some, places, nothing, q)
                slack[here] = _slack(func, some) if adds else 0
    result = Expected(value, output, 1.0 if adds else None, slack)
    return [result, Expected(groups, host=known or given)]


def expect_group_moments(case: Case) -> list[Expected]:
    """Return what a loop over the groups finds by wide floats."""
    x, labels, groups = _arrays(case)
    y, func, fill = case.operand("y"), case.option("func"), case.option("fill_value")
    kept, rows = _kept_axes(case, x, labels)
    known, named = isinstance(case, GroupCase), "expected_groups" in case.options
    if (y is None) != (func.removeprefix("nan") in pairs.SHAPES) or (
        y is not None and y.shape != x.shape
    ):
        raise ValueError("there are no pairs")
    least = case.option("min_count", int(bool(rows) or (fill is not None and named)))
    shape = (*(x.shape[d] for d in kept), len(groups))
    value, slack = np.full(shape, np.nan if fill is None else fill, "g"), np.zeros(shape)
    others = _lines(x if y is None else y, labels, kept)
    for (at, lines, codes), (_, other, _) in zip(_lines(x, labels, kept), others, strict=True):
        for i, group in enumerate(groups):
            places, here = np.flatnonzero(codes == group), (..., *at, i)
            a, b = lines[places].astype("g"), other[places].astype("g")
            valid = ~(np.isnan(a) | np.isnan(b))
            if valid.sum() < least:
                if fill is None:
                    raise ValueError("a fill value is needed")
            elif places.size:
                keeps = valid if func.startswith("nan") else np.ones(len(a), "?")
                moment = _moment(func.removeprefix("nan"), a[keeps], b[keeps], case)
                value[here], slack[here] = moment
    dtype = x.dtype if y is None and x.dtype.kind == "f" else np.dtype("f8")
    output = dtype if fill is None else np.result_type(dtype, fill)
    return [Expected(value, output, 4.0, slack), Expected(groups, host=known or named)]


def _moment(name: str, a: Array, b: Array, case: Case) -> tuple[Any, float]:
    """Return a statistic of pairs or of a shape, and by how much it may be off."""
    n = len(a)
    if not n:
        return np.nan, 0.0
    d, e = a - a.mean(), b - b.mean()
    xx, yy, xy = (d * d).sum(), (e * e).sum(), (d * e).sum()
    with np.errstate(all="ignore"):
        if name in pairs.SHAPES:
            order = 3 if name == "skew" else 4
            varies = xx / n > 1e-30 * a.mean() ** 2
            shape = (d**order).mean() / (xx / n) ** (order / 2) - 3 * (order == 4)
            value = shape if varies or np.isnan(xx) else np.nan
            return value, _near(value)
        if name == "cov":
            ddof = (case.option("finalize_kwargs") or {}).get("ddof", 1)
            value = xy / max(n - ddof, 0)
            return value, _near(value)
        if n < 2 or xx == 0:
            return np.nan, 0.0
        slope, r = xy / xx, np.nan if yy == 0 else np.clip(xy / np.sqrt(xx * yy), -1, 1)
        error = np.sqrt((1 - r) * (1 + r) * yy / xx / (n - 2)) if n > 2 else np.nan
        t = -np.abs(r * np.sqrt((n - 2) / ((1 - r) * (1 + r))))
        p = 2 * stdtr(n - 2.0, float(t)) if n > 2 else np.nan
        value = {
            "corr": r,
            "slope": slope,
            "intercept": b.mean() - slope * a.mean(),
            "pvalue": p,
            "stderr": error,
            "intercept_stderr": error * np.sqrt(xx / n + a.mean() ** 2),
        }[name]
        slack = _near(value) + 1e-12 * np.sqrt(yy / xx) * (1 + np.abs(a.mean()))
        # Nearly straight lines have few digits of 1 - r, whose root is taken.
        gap = max(1 - np.abs(r), 1e-15) if r == r else 1.0
        slack += 1e-15 / gap * (1 + np.abs(value))
        slack += 1e-6 * np.sqrt(yy / xx) * (1 + np.abs(a.mean())) if gap < 1e-12 else 0
        return value, float(np.nan_to_num(slack))


def _near(value: Any) -> float:
    return float(1e-9 * (1 + np.abs(np.nan_to_num(value))))


def _lines(
    x: Array, labels: Array, kept: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Array, Array]]:
    """Yield where each line of elements is, and these with their labels."""
    first = x.ndim - labels.ndim
    for at in itertools.product(*(range(x.shape[d]) for d in kept)):
        place: list[Any] = [slice(None)] * x.ndim
        for d, i in zip(kept, at, strict=True):
            place[d] = i
        yield at, x[tuple(place)].reshape(-1), labels[tuple(place[first:])].reshape(-1)


def _dtype(func: str, dtype: np.dtype[Any], q: Any) -> np.dtype[Any]:
    """Return the dtype of a statistic of elements of a dtype."""
    if func in ("any", "all"):
        return np.dtype("?")
    if "arg" in func or "count" in func:
        return np.dtype("i8")
    one = np.ones(1, dtype)
    if func in _QUANTILES:
        return np.asarray(_find(func, one, one, one, None, q)).dtype
    if func in _SUMS + _SPREADS:
        return np.asarray(getattr(np, func)(one)).dtype
    return dtype


def _find(func: str, part: Array, some: Array, places: Array, nothing: Any, q: Any) -> Any:
    if func == "count":
        return len(some)
    if func.startswith("nan") and not some.size:
        return _OF_NAN.get(func, nothing)
    if func.startswith("nanarg"):
        # NumPy's own takes NaN for an infinity.
        return places[part == part][getattr(np, func[3:])(some)]
    if "arg" in func:
        return places[getattr(np, func)(part)]
    if func.startswith("nan"):
        func, part = func[3:], some
    if func in ("first", "last"):
        return part[0 if func == "first" else -1]
    if func in ("median", "quantile"):
        part = part.astype("i8") if part.dtype.kind == "b" else part
        return _median(part) if func == "median" else np.quantile(part, q)
    if func in _SPREADS:
        with np.errstate(all="ignore"):
            return getattr(np, func)(exact.wide(part))
    if func in ("sum", "mean") and part.dtype.kind == "f":
        return exact.total(part, None, False) / (1 if func == "sum" else len(part))
    return getattr(np, func)(part)


def _median(part: Array) -> Any:
    low, high = np.sort(part)[[(part.size - 1) // 2, part.size // 2]]
    # NumPy adds up the two, which may be more than their dtype holds.
    return (
        np.median(part) if low != high or np.isnan(part).any() else np.median(part[part == low][:1])
    )


def _slack(func: str, some: Array) -> float:
    """Return by how much a sum, a mean or a spread may be off."""
    if func in _SPREADS:
        size, eps = float(exact.sizes(some).max(initial=0)), 8 * max(1, len(some)) * EPS
        with np.errstate(all="ignore"):
            var = float(np.nan_to_num(np.var(exact.wide(some))) if len(some) else 0)
            slack = np.nan_to_num(eps * (var + np.sqrt(var) * size) + np.square(eps * size))
            slack += np.finfo("f8").tiny
        return float(np.sqrt(slack) if func.endswith("std") else slack)
    off = len(some) * EPS * float(exact.sizes(some).sum())
    return off / max(1, len(some)) if func.endswith("mean") else off


def expect_group_scans(case: Case) -> list[Expected]:
    """Return what a loop over the groups of each line finds."""
    x, labels, groups = _arrays(case)
    func, axis = case.option("func"), case.option("axis", x.ndim - 1)
    if not x.ndim - labels.ndim <= axis < x.ndim:
        raise ValueError("labels are not along the axis")
    sizes = tuple(tuple(n for n in own if n) or (0,) for own in case.inputs[0].chunks)
    if func in ("ffill", "bfill") and x.dtype.kind in "biu":
        return [Expected(x)]
    scan: Any = getattr(np, func, _ACCUMULATE.get(func))
    dtype = scan(np.ones(1, x.dtype)).dtype
    adds = func.endswith("sum") and dtype.kind == "f"
    nothing = np.nan if dtype.kind == "f" else lowest(dtype)
    value, slack = np.full(x.shape, nothing, "g" if adds else dtype), np.zeros(x.shape)
    if adds:
        x, scan = (np.where(np.isnan(x), 0, x) if func == "nancumsum" else x), exact.running
    for at, line, codes in _lines(x, labels, tuple(d for d in range(x.ndim) if d != axis)):
        place = (*at[:axis], slice(None), *at[axis:])
        for group in groups:
            here = codes == group
            value[place][here] = scan(line[here])
            if adds:
                slack[place][here] = 2 * x.size * EPS * np.cumsum(exact.sizes(line[here]))
    return [Expected(value, dtype, 1.0 if adds else None, slack, sizes)]


def _filled(line: Array) -> Array:
    valid = np.where(line == line, np.arange(line.size), 0)
    return line[np.maximum.accumulate(valid)]


_ACCUMULATE = {
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "ffill": _filled,
    "bfill": lambda line: _filled(line[::-1])[::-1],
}
