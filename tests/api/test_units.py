"""Quantities of pint over Dask: what keeps units, what changes them, and what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import dask
import dask.array as da
import numpy as np
import pint
import pytest
from pint.errors import DimensionalityError, OffsetUnitCalculusError

import dask_coop as dc
from dask_coop.api.call.units import REFUSED, UNITS, with_units

UREG: Any = pint.UnitRegistry()
HOST = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
OTHER: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(["quantile", "nanquantile"], (0.3,)),
    **dict.fromkeys(["percentile", "nanpercentile"], (30,)),
    **dict.fromkeys([name for name in dc.__all__ if name.startswith("move_")], (3,)),
    **dict.fromkeys(["topk", "argtopk", "box_filter"], (3,)),
}


def quantity(units: str = "m", host: Any = HOST) -> Any:
    return UREG.Quantity(da.from_array(np.asarray(host), chunks=3), units)


def call(name: str, x: Any) -> Any:
    """Return what the public function `name` makes of an array or a quantity."""
    function = getattr(dc, name)
    if name in ("compress", "extract"):
        return function(np.arange(8) % 2 == 0, x)
    more: dict[str, Any] = {"axes": ()} if name == "integral_image" else {}
    if name == "box_filter":
        more = {"axes": (0,)}
    if name.startswith("ewm_"):
        more = {"alpha": 0.5}
    if name == "move_quantile":
        more = {"q": 0.5}
    if name == "select":
        return function(x, np.arange(8) % 2 == 0)
    return function(x, *OTHER.get(name, ()), **more)


def magnitudes(result: Any) -> Any:
    """Return computed values without their units."""
    return dask.compute(getattr(result, "magnitude", result))[0]


def test_every_public_function_says_what_becomes_of_units() -> None:
    functions = {name for name in dc.__all__ if inspect.isfunction(getattr(dc, name))}
    functions -= {"explain", "install", "installed", "report", "uninstall", "from_npy"}
    functions -= {"from_zarr", "combine"}
    functions -= {"histogram", "cumulative_trapezoid", "moment"}
    assert not UNITS.keys() & REFUSED.keys()
    assert functions == UNITS.keys() | REFUSED.keys()


def named(rule: str, *without: str) -> list[str]:
    return sorted(name for name, rules in UNITS.items() if rules == (rule,) and name not in without)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        *((name, "m") for name in named("same", "to_gpu") + named("sum") + named("difference")),
        *((name, "m**2") for name in named("square")),
    ],
)
def test_units_of_results(name: str, units: str) -> None:
    x = quantity()
    result = call(name, x)
    assert isinstance(result, UREG.Quantity)
    assert isinstance(result.magnitude, da.Array)
    assert result.units == UREG.Unit(units)
    plain = call(name, x.magnitude)
    assert result.magnitude.name == plain.name
    np.testing.assert_array_equal(magnitudes(result), plain.compute())


@pytest.mark.parametrize(
    "name",
    [
        *named("place", "percentileofscore", "searchsorted", "isin", "digitize"),
        *named("truth"),
    ],
)
def test_places_and_numbers_of_elements_have_no_units(name: str) -> None:
    x = quantity()
    result, plain = call(name, x), call(name, x.magnitude)
    pairs = zip(result, plain, strict=True) if isinstance(plain, tuple) else [(result, plain)]
    for found, expected in pairs:
        assert isinstance(found, da.Array)
        assert found.name == expected.name


def test_several_results_have_units_each_of_its_own() -> None:
    x = quantity()
    described = dc.describe(x)
    assert isinstance(described, dc.Description)
    found = {key: getattr(value, "units", None) for key, value in described._asdict().items()}
    metre = UREG.m
    assert found == {
        **{"count": None, "nans": None, "min": metre, "max": metre, "sum": metre, "mean": metre},
        **{"var": metre**2, "std": metre},
    }
    values, counts = dc.unique(x, return_counts=True)
    assert (values.units, isinstance(counts, da.Array)) == (metre, True)
    assert dc.unique(x).units == metre
    common, shares = dc.value_counts(x, normalize=True)
    assert (common.units, isinstance(shares, da.Array)) == (metre, True)
    (where,) = dc.nonzero(x)
    assert isinstance(where, da.Array)
    assert isinstance(dc.norm(x, 0), da.Array)
    assert dc.norm(x, 2).units == metre


# What sums, differences and truths are of degrees, and of logarithms.


@pytest.mark.parametrize("name", named("same", "to_gpu"))
def test_what_adds_nothing_up_takes_units_with_an_offset(name: str) -> None:
    result = call(name, quantity("degC"))
    assert result.units == UREG.degC


@pytest.mark.parametrize("name", named("difference"))
def test_differences_of_temperatures_are_differences(name: str) -> None:
    assert call(name, quantity("degC")).units == UREG.delta_degC


@pytest.mark.parametrize("name", named("square"))
def test_squares_of_differences_are_of_differences(name: str) -> None:
    assert call(name, quantity("degC")).units == UREG.delta_degC**2


@pytest.mark.parametrize("name", [*named("sum"), "describe"])
def test_sums_of_units_with_an_offset_are_refused_as_by_pint(name: str) -> None:
    with pytest.raises(OffsetUnitCalculusError) as ours:
        call(name, quantity("degC"))
    with pytest.raises(OffsetUnitCalculusError) as theirs:
        np.sum(UREG.Quantity(HOST, "degC"))
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("name", named("truth"))
def test_zero_degrees_are_not_false(name: str) -> None:
    with pytest.raises(ValueError, match="offset unit is ambiguous"):
        call(name, quantity("degC"))


@pytest.mark.parametrize("name", ["sum", "std", "var", "cumsum"])
def test_logarithms_do_not_add_up(name: str) -> None:
    registry: Any = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
    x = registry.Quantity(da.ones(4, chunks=2), "dBm")
    with pytest.raises(dc.Refused, match=rf"{name} .* decibelmilliwatt.*\.to_base_units"):
        getattr(dc, name)(x)
    assert dc.max(x).units == registry.dBm


@pytest.mark.parametrize("name", named("pure"))
def test_products_are_of_numbers(name: str) -> None:
    with pytest.raises(dc.Refused, match=f"{name} does not take quantities in meter: .*magnitude"):
        call(name, quantity())
    result = call(name, quantity("percent"))
    assert result.units == UREG.dimensionless
    np.testing.assert_allclose(magnitudes(result), call(name, HOST / 100).compute(), rtol=1e-14)


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_no_quantities_says_why(name: str) -> None:
    parameters = inspect.signature(getattr(dc, name)).parameters
    wanted = [p for p in parameters.values() if p.default is p.empty and p.kind != p.VAR_POSITIONAL]
    given: dict[str, Any] = {p.name: 1 for p in wanted}
    given[wanted[0].name] = [quantity()] if name == "histogramdd" else quantity()
    with pytest.raises(dc.Refused, match=f"{name} does not take quantities: {REFUSED[name]}"):
        getattr(dc, name)(**given)


def test_a_function_that_says_nothing_of_units_takes_none() -> None:
    def own(x: Any) -> Any:
        return x

    with pytest.raises(dc.Refused, match=r"own .*: it does not say what becomes of units; give"):
        with_units(own)(quantity())
    assert with_units(own)(3) == 3


# Arguments.


def test_what_elements_are_compared_with_is_converted() -> None:
    x = quantity()
    cm = UREG.Quantity
    assert dc.isin(x, cm([300, 150], "cm")).compute().sum() == 1
    np.testing.assert_array_equal(
        dc.digitize(x, cm([150, 450.0], "cm")).compute(), np.digitize(HOST, [1.5, 4.5])
    )
    assert dc.percentileofscore(x, cm([250.0], "cm")).compute() == 37.5
    np.testing.assert_array_equal(dc.searchsorted(dc.sort(x), cm([250.0], "cm")).compute(), [3])
    assert magnitudes(dc.max(x, initial=cm(1, "km"))) == 1000
    assert magnitudes(dc.sum(x, initial=cm(1, "km"))) == 1031
    assert magnitudes(dc.sum(x, where=x > cm(300, "cm"))) == 24


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda x: dc.digitize(x, [1, 2]), dc.Refused, r"bins of digitize .* Quantity\(bins, 'me"),
        (lambda x: dc.max(x, initial=3), dc.Refused, "initial of max has no units"),
        (lambda x: dc.isin(x, x / UREG.s), DimensionalityError, r"'meter / second'.* to 'meter'"),
        (lambda x: dc.isin(HOST, x), dc.Refused, "test_elements of isin has units"),
        (lambda x: dc.quantile(HOST, 0.5, weights=x), dc.Refused, "give weights.magnitude"),
        (lambda x: dc.sum(x, where=x), dc.Refused, "where of sum takes no quantity"),
        (lambda x: dc.sum(x, colour=1), TypeError, r"sum\(\) got .* 'colour'"),
        (lambda x: dc.topk(x), TypeError, "'k'"),
    ],
)
def test_arguments_that_do_not_go_with_units(wrong: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        wrong(quantity())


def test_results_are_of_the_registry_of_the_array() -> None:
    mine, applications = quantity(), pint.Quantity(da.ones(4, chunks=2), "m")
    assert dc.sum(mine)._REGISTRY is UREG
    assert dc.var(mine)._REGISTRY is UREG
    assert dc.sum(applications) + pint.Quantity(1, "m") == pint.Quantity(5, "m")


def test_a_collective_gives_quantities_of_values() -> None:
    with dask.config.set({"coop.fallback": "allow"}):
        total = dc.sum(quantity(), engine="collective")
    assert isinstance(total.magnitude, np.float64)
    assert total == UREG.Quantity(31.0, "m")


# Histograms and integrals.


def test_edges_come_back_with_units() -> None:
    x = quantity()
    counts, edges = dc.histogram(x, 4)
    assert isinstance(counts, da.Array)
    assert edges.units == UREG.m
    expected, expected_edges = np.histogram(HOST, 4)
    np.testing.assert_array_equal(counts.compute(), expected)
    np.testing.assert_array_equal(magnitudes(edges), expected_edges)
    assert dc.histogram(x, "sturges")[1].units == UREG.m


@pytest.mark.parametrize(
    "given",
    [
        {"bins": UREG.Quantity([100.0, 300, 900], "cm")},
        {"bins": [UREG.Quantity(1, "m"), UREG.Quantity(300, "cm"), UREG.Quantity(0.009, "km")]},
        {"bins": 2, "range": UREG.Quantity([100, 900], "cm")},
        {"bins": 2, "range": (UREG.Quantity(1, "m"), UREG.Quantity(900, "cm"))},
        {"bins": da.from_array(np.array(2)), "range": UREG.Quantity([100, 900], "cm")},
    ],
)
def test_edges_and_ranges_are_converted(given: Any) -> None:
    counts, edges = dc.histogram(quantity(), **given)
    assert edges.units == UREG.m
    values = magnitudes(edges)
    np.testing.assert_allclose(values[[0, -1]], [1, 9], rtol=1e-15)
    np.testing.assert_array_equal(counts.compute(), np.histogram(HOST, values)[0])


def test_weights_and_densities_have_units_of_their_own() -> None:
    x, w = quantity(), quantity("kg")
    counts, edges = dc.histogram(x, 4, weights=w)
    assert (counts.units, edges.units) == (UREG.kg, UREG.m)
    np.testing.assert_allclose(magnitudes(counts), np.histogram(HOST, 4, weights=HOST)[0])
    counts, edges = dc.histogram(HOST, 4, weights=w)
    assert (counts.units, isinstance(edges, da.Array)) == (UREG.kg, True)
    assert dc.histogram(x, 4, weights=w, density=True)[0].units == 1 / UREG.m
    assert dc.histogram(quantity("degC"), 4, density=True)[0].units == 1 / UREG.delta_degC
    assert dc.histogram(quantity("degC"), 4)[1].units == UREG.degC
    assert isinstance(dc.histogram(HOST, 4, weights=w, density=True)[0], da.Array)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"bins": [1.0, 2.0]}, dc.Refused, r"bins of histogram has no units, .*\(bins, 'meter'\)"),
        ({"range": (0, 1)}, dc.Refused, "range of histogram has no units"),
        ({"range": UREG.Quantity([0, 1], "s")}, DimensionalityError, "'second'.* to 'meter'"),
        ({"weights": UREG.Quantity(HOST, "degC")}, OffsetUnitCalculusError, "offset unit"),
    ],
)
def test_what_histograms_of_quantities_refuse(given: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        dc.histogram(quantity(), **given)


def test_edges_with_units_are_of_samples_with_units() -> None:
    with pytest.raises(dc.Refused, match="bins of histogram has units, and the array has none"):
        dc.histogram(HOST, UREG.Quantity([1, 2], "m"))


def test_integrals_have_the_units_of_products() -> None:
    speed, time = quantity("m/s"), quantity("min", np.arange(8.0))
    assert dc.cumulative_trapezoid(speed).units == UREG.Unit("m/s")
    assert dc.cumulative_trapezoid(speed, time).units == UREG.Unit("m/s*min")
    assert dc.cumulative_trapezoid(speed, dx=UREG.Quantity(2.0, "s")).units == UREG.m
    assert dc.cumulative_trapezoid(HOST, time).units == UREG.min
    total = dc.cumulative_trapezoid(speed, time, initial=0)
    np.testing.assert_allclose(
        magnitudes(total.to("m")), 60 * np.append(0, np.cumsum((HOST[1:] + HOST[:-1]) / 2))
    )


def test_moments_are_powers_of_differences() -> None:
    assert dc.moment(quantity(), 3).units == UREG.m**3
    assert dc.moment(quantity("degC"), order=2).units == UREG.delta_degC**2
    fourth = dc.moment(HOST, 4).compute()
    assert magnitudes(dc.moment(quantity(), 4)) == pytest.approx(fourth, rel=1e-15)


def test_numpys_functions_of_quantities_are_pints() -> None:
    total = np.sum(quantity())
    assert total.units == UREG.m
    assert isinstance(total.magnitude, da.Array)
