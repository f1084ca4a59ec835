"""Names and tracebacks: which names there are, which were meant, and where an error was raised."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import dask_coop as dc
import dask_coop.xarray

PACKAGE = Path(dc.__file__).parent
X = da.ones((4, 4), chunks=2)
T = xr.DataArray(X, dims=("a", "b"))


def test_dir_lists_the_public_names() -> None:
    assert dir(dc) == sorted(dc.__all__)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rolling_mean", "move_mean"),
        ("moving_std", "move_std"),
        ("uniform_filter", "box_filter"),
        ("ewma", "ewm_mean"),
        ("cumtrapz", "cumulative_trapezoid"),
        ("amax", "max"),
        ("hist", "histogram"),
        ("groupby", "groupby_reduce"),
        ("push", "ffill"),
        ("to_numpy", "to_host"),
        ("meen", "mean"),
        ("Histogramm", "histogram"),
        ("nan_mean", "nanmean"),
    ],
)
def test_foreign_and_misspelt_names_are_answered_with_ours(name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(dc, name)
    assert str(raised.value) == (
        f"module 'dask_coop' has no attribute {name!r}; did you mean {meant!r}?"
    )
    # Python would say the same once more.
    assert "Did you mean" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("name", "meant"), [("rolling_mean", "move_mean"), ("nanmean", "mean"), ("quantil", "quantile")]
)
def test_so_are_methods_of_accessors(name: str, meant: str) -> None:
    for x in (T, T.to_dataset(name="t")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did .* '{meant}'"):
            getattr(x.coop, name)


def test_what_has_no_likeness_is_an_attribute_error_as_elsewhere() -> None:
    with pytest.raises(AttributeError, match=r"'zzz'; see dir\(dask_coop\)$"):
        dc.zzz  # noqa: B018
    with pytest.raises(AttributeError, match=r"'nothing'; see dir\(x\.coop\)$"):
        T.coop.nothing  # noqa: B018
    assert not hasattr(dc, "rolling_mean")
    assert not hasattr(dc, "__wrapped__")
    assert getattr(dc, "nothing", None) is None
    with pytest.raises(ImportError, match="rolling_mean"):
        from dask_coop import rolling_mean  # noqa: F401
    from dask_coop import CoopPlugin, cluster, move_mean

    assert CoopPlugin is dc.CoopPlugin
    assert move_mean is dc.move_mean
    assert cluster.__name__ == "dask_coop.cluster"


def test_functions_and_accessors_are_copied_and_pickled() -> None:
    for pickled in (pickle, cloudpickle):
        assert pickled.loads(pickled.dumps(dc.mean)) is dc.mean
        again = pickled.loads(pickled.dumps(T.coop))
        np.testing.assert_array_equal(again.mean("a"), T.coop.mean("a"))
    assert copy.copy(T.coop)._obj is T
    assert not hasattr(T.coop, "__array__")


MESSAGES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: dc.quantile(X, 50),
        r"range \[0, 1\], got 50; take percentile, or divide percentages by 100",
    ),
    (lambda: dc.ewm_mean(X, alpha=2), "alpha of ewm_mean must be above 0 and at most 1, got 2"),
    (lambda: dc.ewm_mean(X, span=0.5), r"span of ewm_mean must be at least 1, got 0\.5"),
    (lambda: dc.ewm_mean(X, com=-1), "com of ewm_mean must be at least 0, got -1"),
    (lambda: dc.ewm_mean(X, halflife=0), "halflife of ewm_mean must be above 0, got 0"),
    (
        lambda: T.coop.quantile(0.5, axis=0),
        r"quantile\(\) .* 'axis'; quantile takes dim=, not axis=",
    ),
    (lambda: T.to_dataset(name="t").coop.mean(axis=0), "mean takes dim=, not axis="),
    (lambda: T.coop.describe(axis=0), "describe takes dim=, not axis="),
    (lambda: T.coop.describe(keepdim=True), "describe takes keepdims=, not keepdim="),
    (lambda: T.coop.quantile(), r"quantile\(\) missing a required argument: 'q'"),
    (
        lambda: dc.bincount(da.from_array([1, -3])).compute(),
        "x of bincount must have no negative elements, got -3",
    ),
    (lambda: dc.describe("hello"), "a of describe must be an array, got the str 'hello'"),
    (lambda: dc.sum(a=b"x"), "a of sum must be an array, got the bytes b'x'"),
    (
        lambda: dc.mean(da.from_array(["a", "b"])),
        r"mean does not take dtype <U1; .* unique and value_counts take strings; \.astype\('f8'\)",
    ),
]


@pytest.mark.parametrize(("call", "message"), MESSAGES)
def test_messages_name_what_was_meant(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def ours(error: BaseException) -> list[str]:
    """Return the functions of ours in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return [
        f"{Path(frame.filename).relative_to(PACKAGE)}: {frame.name}"
        for frame in frames
        if Path(frame.filename).is_relative_to(PACKAGE)
    ]


@pytest.mark.parametrize(
    ("call", "real"),
    [
        (lambda: dc.sum(X, axis=5), "api/sums.py: sum"),
        (lambda: dc.sum(X, axes=5), "api/call/names.py: check_keywords"),
        (lambda: dc.sum(X, engine="foo"), "api/call/public.py: _chosen"),
        (lambda: dc.quantile(X, 50), "api/order.py: quantile"),
        (lambda: dc.cumsum(X, 5), "api/cumulative.py: cumsum"),
        (lambda: dc.sort(X, kind="bubble"), "api/topk.py: sort"),
        (lambda: dc.sum(T, axis=5), "api/sums.py: sum"),
        (lambda: dc.groupby_reduce(X, [0, 1], func="meen"), "api/groups/reduce.py: groupby_reduce"),
        (lambda: dc.histogram(X, "foo"), "api/histograms/histogram.py: histogram"),
        (lambda: T.coop.quantile(50), "api/order.py: quantile"),
        (
            lambda: T.coop.groupby_reduce(np.arange(4), func="meen"),
            "xarray/accessors.py: groupby_reduce",
        ),
        (lambda: T.coop.mean("c"), "xarray/objects.py: find_dims"),
        (lambda: dc.sum(da.from_array(["a"])), "api/call/public.py: _by_dask"),
        (lambda: dc.describe(np.array(["a"])), "api/moments.py: describe"),
    ],
)
def test_tracebacks_reach_the_real_function_within_three_frames(
    call: Callable[[], Any], real: str
) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, np.exceptions.AxisError)) as raised:
        call()
    found = ours(raised.value)
    assert real in found[:3], found
    assert sum(name.startswith("api/call/") for name in found) <= 1, found


def test_so_do_those_of_numpys_functions_under_install() -> None:
    with dc.installed(), pytest.raises(np.exceptions.AxisError) as raised:
        np.sort(X, axis=5)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names[1:4] == ["__array_function__", "handle_nonmatching_names", "sort"]
