"""Results with tables and drawings: named tuples of lazy arrays for statistics and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.base import is_dask_collection

from dask_coop import chunks
from dask_coop.api.call import drawings
from dask_coop.api.call.drawings import readable
from dask_coop.api.call.labelled import is_labelled
from dask_coop.api.call.report import as_table


class LinregressResult(NamedTuple):
    """The result of :func:`linregress`: one lazy array for each of SciPy's fields."""

    slope: Any  #: the slope of each line
    intercept: Any  #: the line's value at 0
    rvalue: Any  #: the correlation coefficient
    pvalue: Any  #: the probability of such a coefficient, were the slope 0
    stderr: Any  #: the standard error of the slope
    intercept_stderr: Any  #: that of the intercept


class Description(NamedTuple):
    """The result of :func:`describe`: one lazy array for each statistic.

    ``dask.compute(*description)`` and :meth:`compute` compute all statistics in one read of the
    data. It prints as a table; notebooks add a drawing once it is computed.
    """

    count: Any  #: elements that are not NaN (or NaT), int64
    nans: Any  #: NaN (or NaT) elements, int64
    min: Any  #: the minimum
    max: Any  #: the maximum
    sum: Any  #: with the dtype of :func:`sum`; None for datetime64, whose sum is no date
    mean: Any  #: with the dtype of :func:`mean`; for dates, with their dtype
    var: Any  #: the population variance (``ddof=0``), with the dtype of the mean; None for dates
    #: and durations, whose squares have no dtype
    std: Any  #: the square root of the variance; timedelta64 for dates

    def compute(self, **options: Any) -> Description:
        """Compute all statistics in one read of the data.

        Parameters
        ----------
        **options
            Options of :func:`dask.compute`, such as ``scheduler``.

        Returns
        -------
        Description
            The computed statistics.

        Examples
        --------
        >>> import dask.array as da
        >>> import dask_coop as dc
        >>> float(dc.describe(da.arange(5, chunks=2)).compute().mean)
        2.0
        """
        return Description(*dask.compute(*self, **options))

    def to_series(self) -> Any:
        """Return the statistics of a whole array as a series; compute them if they are lazy.

        Returns
        -------
        pandas.Series
            Its index holds the names of the statistics. float64, as in `Series.describe`; object
            for dates and durations, without the statistics that are None.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ValueError
            If the statistics are arrays, because `describe` reduced only some axes.
        """
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError(
                "to_series needs pandas, which is not installed here: pip install pandas"
            ) from error
        if shape := _shape(self.count):
            raise ValueError(
                f"to_series takes the statistics of a whole array, and these are of shape {shape}; "
                "describe without axis=, or take what .compute() returns"
            )
        arrays = self._arrays()
        return pandas.Series(dict(zip(arrays, _on_host(*arrays.values()), strict=True)))

    def _arrays(self) -> dict[str, Any]:
        """Return the statistics that are not None, by name."""
        return {name: array for name, array in self._asdict().items() if array is not None}

    def __repr__(self) -> str:
        """Return a table: of values, or of the dtypes and shapes of arrays."""
        arrays = self._arrays()
        if _is_lazy(self) or _shape(self.count):
            return as_table(_rows_of(arrays))
        return as_table(self._rows_of_values(_on_host(*arrays.values())))

    def _rows_of_values(self, values: list[Any]) -> list[tuple[str, str]]:
        """Return a table of the statistics that are not None, computed, with its head."""
        arrays = self._arrays().items()
        words = (
            (name, f"{_word(value)} {_units(array)}".rstrip())
            for (name, array), value in zip(arrays, values, strict=True)
        )
        return [("statistic", "value"), *words]

    def _repr_html_(self) -> str:
        arrays = self._arrays()
        if _is_lazy(self) or _shape(self.count):
            return drawings.table(_rows_of(arrays))
        computed = _on_host(*arrays.values())
        values = dict(zip(arrays, computed, strict=True))
        words = {name: _word(value) for name, value in values.items()}
        shown = drawings.table(self._rows_of_values(computed))
        low, mean, high, std = (_position(values[name]) for name in ("min", "mean", "max", "std"))
        positions = low, mean - std, mean, mean + std, high
        if not np.isfinite(positions).all() or low == high:
            return shown
        ends = [words[name] for name in ("min", "mean", "max")]
        return drawings.side_by_side(shown, drawings.spread(positions, ends))


class Descriptions(dict[Any, Description]):
    """The result of :func:`describe` for the columns of a frame: a dict of their descriptions.

    :meth:`compute` computes all of them at once. It prints as a table.
    """

    def compute(self, **options: Any) -> Descriptions:
        """Compute the statistics of all columns at once.

        Parameters
        ----------
        **options
            Options of :func:`dask.compute`, such as ``scheduler``.

        Returns
        -------
        Descriptions
            The computed statistics.

        Examples
        --------
        >>> import dask.array as da
        >>> import dask_coop as dc
        >>> columns = {"x": da.arange(5, chunks=2), "y": da.ones(5, chunks=2)}
        >>> float(dc.describe(columns).compute()["x"].mean)
        2.0
        """
        (computed,) = dask.compute(list(self.values()), **options)
        return Descriptions(zip(self, computed, strict=True))

    def to_frame(self) -> Any:
        """Return the statistics as a frame, a column for each; compute them if they are lazy.

        Returns
        -------
        pandas.DataFrame
            Its index holds the names of the statistics; those that a column does not have are NaN.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        series = {name: column.to_series() for name, column in self.compute().items()}
        import pandas

        return pandas.DataFrame(series, index=list(Description._fields))

    def _rows(self) -> list[tuple[str, ...]]:
        """Return a table: of values, or of the dtypes of lazy statistics."""
        rows: list[tuple[str, ...]] = [("statistic", *map(str, self))]
        lazy = any(_is_lazy(column) for column in self.values())
        for name in Description._fields:
            arrays = [getattr(column, name) for column in self.values()]
            values = arrays if lazy else [x if x is None else _on_host(x)[0] for x in arrays]
            words = (
                "" if array is None else str(array.dtype) if lazy else _word(value)
                for array, value in zip(arrays, values, strict=True)
            )
            rows.append((name, *words))
        return rows

    def __repr__(self) -> str:
        """Return a table with a column for each."""
        return as_table(self._rows())

    def _repr_html_(self) -> str:
        return drawings.table(self._rows())


class RunEvents(NamedTuple):
    """The result of :func:`run_events`: lazy arrays in the shape of the mask."""

    start: Any  #: bool, true at the first element of each run that counts
    length: Any  #: the length of the run there, else 0, int64
    sum: Any  #: the sum of values over the run there, else 0; None without values


class CrosstabResult(NamedTuple):
    """The result of :func:`crosstab`, lazy arrays; ``dask.compute(*result)`` computes them."""

    elements: tuple[Any, Any]  #: the distinct values of both arrays, sorted
    count: Any  #: how often they are at the same place, int64


class QuantileEstimate(NamedTuple):
    """The result of :func:`quantile` with an error: two lazy arrays, in the shape of `q`."""

    quantile: Any  #: the estimates
    rank_error: Any  #: how far their ranks are off at most, as a fraction of all elements, float64


class ModeResult(NamedTuple):
    """The result of :func:`mode`: two lazy arrays, which ``dask.compute(*result)`` computes."""

    mode: Any  #: the least of the most frequent elements, of the array's dtype
    count: Any  #: how often it occurs, int64


class Histogram(NamedTuple):
    """The result of :func:`histogram` and :func:`histogramdd`: a tuple of counts and edges.

    ``dask.compute(*histogram)`` and :meth:`compute` compute both in one read of the data. Notebooks
    show it as a table, with a drawing once it is computed.
    """

    counts: Any  #: a lazy array: counts, sums of weights, or densities
    edges: Any  #: the edges of the bins, or a list of the edges along each coordinate

    def compute(self, **options: Any) -> Histogram:
        """Compute counts and edges in one read of the data.

        Parameters
        ----------
        **options
            Options of :func:`dask.compute`, such as ``scheduler``.

        Returns
        -------
        Histogram
            The computed counts and edges.

        Examples
        --------
        >>> import dask.array as da
        >>> import dask_coop as dc
        >>> dc.histogram(da.arange(6, chunks=2), 3).compute().counts
        array([2, 2, 2])
        """
        return Histogram(*dask.compute(*self, **options))

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the histogram with matplotlib; compute it if it is lazy.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes to draw on; by default pyplot's current ones.
        **options
            Options of `Axes.stairs`, such as ``color`` and ``label``; for two coordinates, of
            `Axes.pcolormesh`, such as ``norm`` and ``cmap``.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If there are several histograms, or more than two coordinates.

        Notes
        -----
        The entries before and after the bins, from ``flow=True``, are not drawn.
        """
        edges = self.edges if isinstance(self.edges, list | tuple) else [self.edges]
        return _plot(self.counts, edges, ax, options)

    def _repr_html_(self) -> str:
        parts = {"counts": self.counts}
        if isinstance(self.edges, list | tuple):
            parts |= {f"edges[{i}]": edges for i, edges in enumerate(self.edges)}
        else:
            parts["edges"] = self.edges
        shown = drawings.table(_rows_of(parts))
        if _is_lazy(self) or len(parts) > 2 or len(_shape(self.counts)) != 1:
            return shown
        counts, edges = _on_host(self.counts, self.edges)
        if counts.dtype.kind == "c":
            return shown
        ends = [f"{_word(edge)} {_units(self.edges)}" for edge in edges[[0, -1]]]
        return drawings.side_by_side(shown, drawings.bars(_inside(counts, edges), edges, ends))


class Histogram2D(NamedTuple):
    """The result of :func:`histogram2d`: a tuple of counts and the edges along x and y."""

    counts: Any  #: a lazy array of shape ``(bins along x, bins along y)``
    xedges: Any  #: the edges along x
    yedges: Any  #: the edges along y

    def compute(self, **options: Any) -> Histogram2D:
        """Compute counts and edges in one read of the data.

        Parameters
        ----------
        **options
            Options of :func:`dask.compute`, such as ``scheduler``.

        Returns
        -------
        Histogram2D
            The computed counts and edges.

        Examples
        --------
        >>> import dask.array as da
        >>> import dask_coop as dc
        >>> x = da.arange(4, chunks=2)
        >>> dc.histogram2d(x, x, 2).compute().counts
        array([[2., 0.],
               [0., 2.]])
        """
        return Histogram2D(*dask.compute(*self, **options))

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the histogram with matplotlib; compute it if it is lazy.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes to draw on; by default pyplot's current ones.
        **options
            Options of `Axes.pcolormesh`, such as ``norm`` and ``cmap``.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        return _plot(self.counts, [self.xedges, self.yedges], ax, options)

    def _repr_html_(self) -> str:
        shown = drawings.table(_rows_of(self._asdict()))
        if _is_lazy(self) or len(_shape(self.counts)) != 2:
            return shown
        counts, *edges = _on_host(*self)
        if counts.dtype.kind == "c":
            return shown
        for axis, along in enumerate(edges):
            counts = np.moveaxis(_inside(np.moveaxis(counts, axis, 0), along), 0, axis)
        return drawings.side_by_side(shown, drawings.cells(counts))


def _plot(counts: Any, edges: Sequence[Any], ax: Any, options: dict[str, Any]) -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib, which is not installed here: pip install matplotlib"
        ) from error
    shape, ndim = _shape(counts), len(edges)
    if len(shape) != ndim or ndim > 2:
        raise ValueError(
            f"plot draws one histogram of one or two coordinates, and these counts have the shape "
            f"{shape} for {ndim} coordinate{'s' * (ndim > 1)}; draw a part of them, as "
            "Histogram(counts[0], edges).plot()"
        )
    heights, *cuts = _on_host(counts, *edges)
    ax = pyplot.gca() if ax is None else ax
    if ndim == 1:
        ax.stairs(_inside(heights, cuts[0]), cuts[0], **{"fill": True, **options})
        if heights.dtype.kind in "iu" and not ax.get_ylabel():
            ax.set_ylabel("values per bin")
    else:
        ax.figure.colorbar(ax.pcolormesh(*cuts, heights.T, **options), ax=ax)
    for along, axis in zip(edges, (ax.xaxis, ax.yaxis), strict=False):
        if unit := _units(along):
            axis.set_label_text(unit)
    return ax


def _inside(counts: Any, edges: Any) -> Any:
    """Return counts without the entries before and after the bins."""
    return counts[1:-1] if len(counts) == len(edges) + 1 else counts


def _is_lazy(parts: Any) -> bool:
    if isinstance(parts, list | tuple):
        return any(map(_is_lazy, parts))
    return bool(is_dask_collection(parts))


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(getattr(x, "shape", ()))


def _units(x: Any) -> str:
    # xarray's attributes hold the units of the data, which are wrong for a variance.
    return "" if is_labelled(x) else str(getattr(x, "units", ""))


def _on_host(*parts: Any) -> list[Any]:
    """Return computed values as NumPy's, without labels and units; None for masked ones."""
    return [_plain(value) for value in dask.compute(*parts)]


def _plain(x: Any) -> Any:
    x = x.data if is_labelled(x) else getattr(x, "magnitude", x)
    x = chunks.asarray(x, "numpy") if hasattr(x, "__cuda_array_interface__") else x
    if not np.ndim(x):
        return None if np.ma.is_masked(x) else np.asarray(x)[()]
    return x


def _word(value: Any) -> str:
    if value is None:
        return "masked"
    return readable(value if isinstance(value, np.datetime64 | np.timedelta64) else value.item())


def _position(value: Any) -> float:
    """Return the position of a number, date or duration on a scale; NaN if it is missing."""
    if value is None:
        return np.nan
    if not isinstance(value, np.datetime64 | np.timedelta64):
        return float(value)
    return np.nan if np.isnat(value) else float(value.view("i8"))


def _rows_of(parts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a table with the name, dtype and shape of each array, and whether it is lazy."""
    rows = [
        (name, str(getattr(x, "dtype", "")), str(_shape(x)), "yes" if _is_lazy(x) else "no")
        for name, x in parts.items()
    ]
    return [("name", "dtype", "shape", "lazy"), *rows]
