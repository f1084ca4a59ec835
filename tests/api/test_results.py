"""Results that show themselves: still tuples of lazy arrays, and tables and drawings besides."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from support.calls import refuse

import dask_coop as dc
from dask_coop import chunks
from dask_coop.api.call import drawings

X = np.random.default_rng(0).normal(size=1000)


def parse(html: str) -> ElementTree.Element:
    """Return HTML that is XML, too, as a tree."""
    return ElementTree.fromstring(f"<all>{html}</all>")


def cells(html: str) -> dict[str, list[str]]:
    """Return the rows of the table by their first cell."""
    rows = [["".join(cell.itertext()) for cell in row] for row in parse(html).iter("tr")]
    return {row[0]: row[1:] for row in rows}


def drawn(html: str) -> list[str]:
    """Return the words in drawings."""
    return [
        "".join(text.itertext()) for text in parse(html).iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.fixture
def pyplot() -> Any:
    """Return pyplot, which draws on no screen."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


def test_a_description_is_computed_in_one_go(xp: ModuleType) -> None:
    found = dc.describe(to_chunks(xp, X, 300)).compute(scheduler="synchronous")
    assert type(found) is dc.Description
    assert not any(map(dask.is_dask_collection, found))
    assert float(found.mean) == pytest.approx(X.mean(), abs=1e-15)
    assert int(found.count) == 1000


def test_a_description_becomes_pandas_own(xp: ModuleType) -> None:
    pandas = pytest.importorskip("pandas")
    found = dc.describe(to_chunks(xp, X, 300)).to_series()
    own = pandas.Series(X).describe()
    assert found.dtype == "f8"
    np.testing.assert_allclose(
        found[["count", "min", "max", "mean"]], own[["count", "min", "max", "mean"]]
    )
    assert list(found.index) == list(dc.Description._fields)
    dates = np.array(["2001-01-01", "2001-01-03", "NaT"], "M8[D]")
    series = dc.describe(da.from_array(dates, chunks=2)).to_series()
    assert series["max"] == pandas.Timestamp("2001-01-03")
    assert list(series.index) == ["count", "nans", "min", "max", "mean", "std"]


def test_statistics_along_an_axis_are_no_series() -> None:
    pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"of shape \(3,\); describe without axis="):
        dc.describe(da.ones((2, 3), chunks=2), axis=0).to_series()


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("pandas", lambda: dc.describe(da.ones(3)).to_series()),
        ("matplotlib", lambda: dc.histogram(da.ones(3)).plot()),
    ],
)
def test_what_is_not_installed_is_said(
    monkeypatch: pytest.MonkeyPatch, package: str, use: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"needs {package}.*: pip install {package}"):
        use()


def test_a_lazy_description_is_shown_without_computing_it() -> None:
    with dask.config.set(scheduler=refuse):
        html = dc.describe(da.ones((4, 3), chunks=2), axis=0)._repr_html_()
        rows = cells(html)
        assert dc.histogram(da.ones(4), 5)._repr_html_()
    assert rows["mean"] == ["float64", "(3,)", "yes"]
    assert drawn(html) == []


def test_a_computed_description_is_a_table_and_a_drawing() -> None:
    html = dc.describe(da.from_array(np.array([1.0, np.nan, 4]), chunks=2)).compute()._repr_html_()
    rows = {name: value.strip() for name, (value,) in cells(html).items()}
    assert (rows["count"], rows["nans"], rows["mean"], rows["std"]) == ("2", "1", "2.5", "1.5")
    assert drawn(html) == ["1", "4", "2.5"]


@pytest.mark.parametrize(
    ("x", "row", "words"),
    [
        (np.array(["2001-01-01", "2001-01-04"], "M8[D]"), ("max", "2001-01-04"), 3),
        (np.array([1, 3], "m8[h]"), ("mean", "02:00:00"), 3),
        (np.array([True, False]), ("max", "True"), 3),
        (np.array([np.nan, np.nan]), ("mean", "nan"), 0),
        (np.array([1, np.inf]), ("max", "inf"), 0),
        (np.array([7, 7]), ("min", "7"), 0),
        (np.array(["NaT"], "M8[D]"), ("max", "NaT"), 0),
    ],
)
def test_descriptions_of_all_kinds_are_shown(x: Any, row: tuple[str, str], words: int) -> None:
    html = dc.describe(da.from_array(x, chunks=2)).compute()._repr_html_()
    assert cells(html)[row[0]][0].strip() == row[1]
    assert len(drawn(html)) == words


def test_a_masked_description_is_shown() -> None:
    x = da.from_array(np.ma.masked_all(3), chunks=2)
    rows = cells(dc.describe(x).compute()._repr_html_())
    assert (rows["count"][0].strip(), rows["mean"][0].strip()) == ("0", "masked")


def test_units_are_shown() -> None:
    pint = pytest.importorskip("pint")
    metres = pint.UnitRegistry().Quantity(da.from_array(X, chunks=300), "m")
    rows = cells(dc.describe(metres).compute()._repr_html_())
    assert rows["max"][0].endswith(" meter")
    counts = dc.histogram(metres, 5)
    assert isinstance(counts, dc.Histogram)
    assert "meter" in drawn(dc.Histogram(*dask.compute(*counts))._repr_html_())[0]


def test_labels_are_left_out_of_what_is_shown() -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("pandas")
    t2m = xarray.DataArray(da.from_array(X, chunks=300), dims="time", attrs={"units": "K"})
    with xarray.set_options(keep_attrs=True):
        made = dc.describe(t2m)
    assert made.to_series()["mean"] == pytest.approx(X.mean(), abs=1e-15)
    rows = cells(made.compute()._repr_html_())
    assert "K" not in str(rows)
    assert (rows["max"][0].strip(), rows["count"][0].strip()) == (f"{X.max():.9g}", "1000")


def test_a_histogram_is_the_tuple_that_it_was(xp: ModuleType) -> None:
    x = to_chunks(xp, X, 300)
    made = dc.histogram(x, 7, (-3, 3))
    counts, edges = made
    assert isinstance(made, tuple)
    assert made == (counts, edges)
    assert (made[0], made[1], len(made)) == (counts, edges, 2)
    assert counts is made.counts
    (computed,) = dask.compute(made, scheduler="synchronous")
    expected = np.histogram(X, 7, (-3, 3))
    assert type(computed) is dc.Histogram
    np.testing.assert_array_equal(to_numpy(xp, made[0]), expected[0])
    assert type(computed[0]) is xp.ndarray
    np.testing.assert_array_equal(computed[1], expected[1])
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is dc.Histogram
    assert again.counts.name == counts.name
    # With edges that are found, too.
    lazy = dc.histogram(x, 7)
    np.testing.assert_array_equal(dask.compute(*lazy)[1], np.histogram(X, 7)[1])


def test_histograms_of_several_coordinates_are_tuples_too() -> None:
    x = da.from_array(X, chunks=300)
    hist, edges = made = dc.histogramdd([x, x, x], 4)
    assert type(made) is dc.Histogram
    assert len(edges) == 3
    _, xedges, yedges = pair = dc.histogram2d(x, x + 1, 4)
    assert type(pair) is dc.Histogram2D
    assert (pair.xedges, pair.yedges) == (xedges, yedges)
    assert [one.shape for one in dask.compute(*pair)] == [(4, 4), (5,), (5,)]
    assert hist.shape == (4, 4, 4)


def test_dasks_own_histograms_are_of_the_same_type() -> None:
    x = da.from_array(X.astype("f16"), chunks=300)
    assert type(dc.histogram(x, 5, (0, 1))) is dc.Histogram


def test_histograms_at_once_are_of_the_same_type() -> None:
    from distributed import Client

    with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
        x = client.persist(da.from_array(X, chunks=300))
        made = dc.histogram(x, 7, (-3, 3), engine="collective")
    assert type(made) is dc.Histogram
    np.testing.assert_array_equal(made.counts, np.histogram(X, 7, (-3, 3))[0])


def test_a_histogram_is_drawn(xp: ModuleType, pyplot: Any) -> None:
    made = dc.histogram(to_chunks(xp, X, 300), 7)
    axes = made.plot(color="red", label="all")
    (stairs,) = axes.patches
    values, edges, _ = stairs.get_data()
    expected = np.histogram(X, 7)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(edges, expected[1])
    assert (stairs.get_label(), axes.get_ylabel()) == ("all", "values per bin")
    # What lies outside has no place.
    other = pyplot.figure().subplots()
    assert dc.histogram(to_chunks(xp, X, 300), 7, (-1, 1), flow=True).plot(other) is other
    np.testing.assert_array_equal(
        other.patches[0].get_data().values, np.histogram(X, 7, (-1, 1))[0]
    )


def test_a_histogram_of_pairs_is_drawn(pyplot: Any) -> None:
    x = da.from_array(X, chunks=300)
    expected, *_ = np.histogram2d(X, X**2, 4)
    for made in (dc.histogram2d(x, x**2, 4), dc.histogramdd([x, x**2], 4)):
        axes = made.plot(pyplot.figure().subplots(), cmap="gray")
        (mesh,) = axes.collections
        np.testing.assert_array_equal(mesh.get_array().reshape(4, 4), expected.T)
        assert len(axes.figure.axes) == 2


def test_several_histograms_are_no_drawing() -> None:
    pytest.importorskip("matplotlib")
    x = da.from_array(X.reshape(10, 100), chunks=7)
    with pytest.raises(ValueError, match=r"have the shape \(10, 5\) for 1 coordinate; draw a part"):
        dc.histogram(x, 5, (0, 1), axis=1).plot()
    y = x.ravel()
    with pytest.raises(ValueError, match=r"the shape \(2, 2, 2\) for 3 coordinates"):
        dc.histogramdd([y, y, y], 2).plot()


def test_a_computed_histogram_is_shown() -> None:
    made = dc.Histogram(*dask.compute(*dc.histogram(da.from_array(X, chunks=300), 400, (-3, 3))))
    html = made._repr_html_()
    assert cells(html)["counts"] == ["int64", "(400,)", "no"]
    assert drawn(html) == ["-3 ", "3 "]
    (bars,) = [p.get("d") for p in parse(html).iter("{http://www.w3.org/2000/svg}path")][:1]
    # Three bins are one bar.
    assert bars.count("V") == 134 + 1


def test_histograms_are_computed_in_one_go(xp: ModuleType) -> None:
    x = to_chunks(xp, X, 300)
    made = dc.histogram(x, 7).compute(scheduler="synchronous")
    assert type(made) is dc.Histogram
    for found, wanted in zip(made, np.histogram(X, 7), strict=True):
        np.testing.assert_array_equal(chunks.asarray(found, "numpy"), wanted)
    pairs = dc.histogram2d(x, x, 5).compute(scheduler="synchronous")
    assert type(pairs) is dc.Histogram2D
    for found, wanted in zip(pairs, np.histogram2d(X, X, 5), strict=True):
        np.testing.assert_array_equal(chunks.asarray(found, "numpy"), wanted)
    assert all(type(edges) is np.ndarray for edges in dc.histogramdd([x, x], 3).compute().edges)


def test_a_histogram_of_pairs_is_shown() -> None:
    x, y = (da.from_array(each, chunks=300) for each in (X, X[::-1].copy()))
    lazy = dc.histogram2d(x, y, (100, 5), ((-3, 3), (-3, 3)))
    assert cells(lazy._repr_html_())["counts"] == ["float64", "(100, 5)", "yes"]
    assert not drawn(lazy._repr_html_())
    html = lazy.compute()._repr_html_()
    assert cells(html)["xedges"] == ["float64", "(101,)", "no"]
    rectangles = [*parse(html).iter("{http://www.w3.org/2000/svg}rect")]
    counts = np.histogram2d(X, X[::-1], (100, 5), ((-3, 3), (-3, 3)))[0]
    # Three bins along x are one cell.
    merged = np.add.reduceat(counts, np.arange(0, 100, 3), 0)
    assert len(rectangles) == np.count_nonzero(merged) + 1
    assert max(float(each.get("fill-opacity", 0)) for each in rectangles) == 1


def test_reports_and_explanations_are_tables_of_html() -> None:
    lazy = dc.cumsum(da.ones(8, chunks=2))
    assert cells(dc.explain(lazy)._repr_html_())["cumsum"][0] == "dask_coop"
    assert "cumsum" in cells(dc.report()._repr_html_())


def test_drawings_leave_the_style_of_a_page_alone() -> None:
    html = dc.describe(da.from_array(X, chunks=300)).compute()._repr_html_()
    assert not [*parse(html).iter("style"), *parse(html).iter("{http://www.w3.org/2000/svg}style")]


def test_what_is_shown_is_escaped() -> None:
    html = drawings.table([("<b>", "&"), ("<script>", "x")])
    assert cells(html) == {"<b>": ["&"], "<script>": ["x"]}


def test_descriptions_print_as_tables() -> None:
    lazy = dc.describe(da.from_array(np.array([1.0, np.nan, 4]), chunks=2))
    lines = str(lazy).splitlines()
    assert lines[0].split() == ["name", "dtype", "shape", "lazy"]
    assert lines[1].split() == ["count", "int64", "()", "yes"]
    assert len(lines) == 9
    table = dict(line.split() for line in repr(lazy.compute()).splitlines())
    assert table["statistic"] == "value"
    assert (table["count"], table["nans"], table["max"], table["mean"]) == ("2", "1", "4", "2.5")
    rows = dc.describe(da.ones((4, 3), chunks=2), axis=0).compute()
    assert str(rows).splitlines()[3].split() == ["min", "float64", "(3,)", "no"]
    metres = dc.describe(da.arange(3, chunks=2).astype("M8[D]")).compute()
    assert "var" not in str(metres)
