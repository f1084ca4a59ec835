"""Define the accessors ``coop`` of xarray's arrays and Datasets."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import dask
import numpy as np

import dask_coop
from dask_coop import chunks
from dask_coop.api.call.public import Engine
from dask_coop.api.windows import Mode
from dask_coop.xarray.groups import GroupOptions, reduce_groups, scan_groups
from dask_coop.xarray.histogram import HistogramOptions, histogram
from dask_coop.xarray.methods import Named, add_methods, checked
from dask_coop.xarray.objects import (
    as_installed,
    each_variable,
    find_dims,
    finish,
    leaves_nan_out,
    xr,
)


class CoopDataArray(Named):
    """Statistics, scans, windows, groups and histograms along named dimensions.

    Results keep names, coordinates and attributes. Results of lazy arrays are lazy, and others are
    computed.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> import dask_coop.xarray
    >>> t2m = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("time", "lon"), name="t2m")
    >>> t2m.coop.mean("time").values
    array([1.5, 2.5, 3.5])
    """

    def __init__(self, obj: xr.DataArray) -> None:
        self._obj = obj

    @checked
    def histogram(
        self,
        *others: xr.DataArray,
        bins: Any = 10,
        range: Any = None,
        dim: Any = None,
        weights: xr.DataArray | None = None,
        density: bool = False,
        skipna: bool | None = None,
        reproducible: bool = False,
        bin_dim_suffix: str = "_bin",
        engine: Engine = "auto",
    ) -> xr.DataArray:
        """Compute the histogram of the array, or the joint one of it and others.

        Parameters
        ----------
        *others : DataArray
            Further variables of a joint histogram. They are broadcast by their dimensions; one
            variable must have every dimension.
        bins : int or array_like, or list with one for each variable
            The number of bins of equal width, or their edges. For data that is not lazy also the
            name of NumPy's rule for the number of bins, such as "sturges".
        range : (float, float), or list with one for each variable
            The outer edges. Without them and without edges, the least and the greatest sample,
            found in the same graph.
        dim : hashable, iterable of hashable, ... or None
            The dimensions to count over, by default all; there is a histogram for each position
            along the others.
        weights : DataArray, optional
            The amount that each sample adds to its bin, broadcast by its dimensions: the cosine of
            the latitude counts areas.
        density : bool
            Whether the result is the probability density, which integrates to one.
        skipna : bool, optional
            Whether a range found in the samples ignores NaN in floats, as by default, or raises
            when it is computed. NaN is counted in no bin in either case.
        reproducible : bool
            Whether sums of weights have the same bits for every chunking.
        bin_dim_suffix : str
            Appended to the names of variables to name dimensions of bins.
        engine : {"auto", "collective"}
            As for :func:`dask_coop.histogram`.

        Returns
        -------
        DataArray
            Named ``histogram_t2m`` for the variable ``t2m``, with the remaining dimensions, and one
            of bins for each variable, ``t2m_bin``. Its coordinate has the centres of the bins,
            ``t2m_bin_left`` and ``t2m_bin_right`` their edges, all with the attributes of the
            variable. Edges found in lazy data are lazy, too, and have no index.

        Raises
        ------
        TypeError
            If weights have no labels, or the dtype of samples or weights is not supported.
        ValueError
            If a variable has no name, there is no such dimension, bins are not valid, or bins of a
            joint histogram that keeps dimensions are not known.

        See Also
        --------
        dask_coop.histogram, dask_coop.histogramdd : The same for arrays without labels.

        Examples
        --------
        >>> import numpy as np, xarray as xr
        >>> import dask_coop.xarray
        >>> lat = xr.DataArray([0.0, 60.0], dims="lat")
        >>> t2m = xr.DataArray([[1.0, 2.0, 2.0], [2.0, 4.0, 4.0]], dims=("lat", "lon"), name="t2m")
        >>> t2m.coop.histogram(bins=[0, 1.5, 3, 5], weights=np.cos(np.deg2rad(lat))).round(6)
        <xarray.DataArray 'histogram_t2m' (t2m_bin: 3)> Size: 24B
        array([1. , 2.5, 1. ])
        Coordinates:
          * t2m_bin        (t2m_bin) float64 24B 0.75 2.25 4.0
            t2m_bin_left   (t2m_bin) float64 24B 0.0 1.5 3.0
            t2m_bin_right  (t2m_bin) float64 24B 1.5 3.0 5.0
        """
        arrays = (self._obj, *others)
        omits = all(x.dtype.kind != "f" or leaves_nan_out(x, skipna) for x in arrays)
        options = HistogramOptions(density, "omit" if omits else "raise", reproducible, engine)
        return histogram(arrays, bins, range, dim, weights, options, bin_dim_suffix)

    @checked
    def describe(
        self,
        dim: Any = None,
        *,
        keepdims: bool = False,
        split_every: int | None = None,
        keep_attrs: bool | None = None,
        engine: Engine = "auto",
    ) -> xr.Dataset:
        """Compute counts, extrema, sum, mean, variance and deviation in one read.

        Parameters
        ----------
        dim : hashable, iterable of hashable, ... or None
            The dimensions to work over; None or ... for all of them.
        keepdims : bool
            Whether these stay, with length one.
        split_every : int, optional
            The number of states that a task combines.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.
        engine : {"auto", "collective"}
            As for :func:`dask_coop.describe`.

        Returns
        -------
        Dataset
            With the variables count, nans, min, max, sum, mean, var and std; for dates and
            durations without those that are not defined for them.

        Raises
        ------
        TypeError, ValueError
            As for :func:`dask_coop.describe`, and if there is no such dimension.

        See Also
        --------
        dask_coop.describe : The same for arrays without labels.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([[1.0, 2.0], [3.0, float("nan")]], dims=("time", "lon"))
        >>> x.coop.describe("time")["mean"].values
        array([2., 2.])
        """
        x = self._obj
        axes = tuple(x.dims.index(d) for d in find_dims(x, dim))
        fields = dask_coop.describe(x, axes, keepdims, split_every, engine=engine)._asdict()
        variables = {name: field for name, field in fields.items() if field is not None}
        return finish(x, xr.Dataset(variables), keep_attrs)

    @checked
    def count(
        self, dim: Any = None, *, keep_attrs: bool | None = None, engine: Engine = "auto"
    ) -> xr.DataArray:
        """Count the elements that are not missing: neither NaN nor NaT.

        Parameters
        ----------
        dim : hashable, iterable of hashable, ... or None
            The dimensions to work over; None or ... for all of them.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.
        engine : {"auto", "collective"}
            As for :func:`dask_coop.count_nonzero`.

        Returns
        -------
        DataArray
            Of int64.

        Raises
        ------
        ValueError
            If there is no such dimension.
        """
        x = self._obj
        axes = tuple(x.dims.index(d) for d in find_dims(x, dim))
        valid = x.notnull().assign_attrs(x.attrs)
        return finish(x, dask_coop.count_nonzero(valid, axes, engine=engine), keep_attrs)

    def groupby_reduce(
        self,
        *by: Hashable | xr.DataArray,
        func: Any,
        y: xr.DataArray | None = None,
        dim: Any = None,
        expected_groups: Any = None,
        isbin: bool | Sequence[bool] = False,
        sort: bool = True,
        fill_value: Any = None,
        dtype: Any = None,
        min_count: int | None = None,
        skipna: bool | None = None,
        keep_attrs: bool | None = None,
        engine: Engine = "auto",
        **finalize_kwargs: Any,
    ) -> xr.DataArray | xr.Dataset:
        """Reduce the elements of each group, by one statistic or by several in one read.

        Parameters
        ----------
        *by : hashable or DataArray
            Labels: names of coordinates, or of components of dates such as ``"time.month"``, or
            arrays with names. With several labels there is a group for each combination.
        func : str, Monoid or list of these
            As for :func:`dask_coop.groupby_reduce`: "mean", "std", "first", "quantile" and others.
        y : DataArray, optional
            The second variable of "cov", "corr", "slope" and other statistics of pairs. Both arrays
            are broadcast to their dimensions, along which their indexes must be equal.
        dim : hashable, iterable of hashable, ... or None
            The dimensions to reduce, by default those of the labels; ... for all.
        expected_groups : array_like, or tuple with one for each label, optional
            The possible groups, or edges of bins. Lazy labels need them.
        isbin : bool or sequence of bool
            Whether `expected_groups` are edges of bins, which hold their right edges.
        sort : bool
            Whether groups are sorted, or in the order of their first labels.
        fill_value, dtype, min_count
            As for :func:`dask_coop.groupby_reduce`.
        skipna : bool, optional
            Whether to leave NaN out; by default for floats and complex numbers, as in xarray.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.
        engine : {"auto", "collective"}
            As for :func:`dask_coop.groupby_reduce`.
        **finalize_kwargs
            Parameters of statistics: `ddof` of variances and covariances, `q` and `method` of
            quantiles, `alternative` of p-values.

        Returns
        -------
        DataArray or Dataset
            A Dataset with a variable for each statistic if `func` is a list. Dimensions of groups
            are named as labels, or ``name_bins`` for bins, and have the groups as coordinates. If
            there is one label with one dimension, that of the groups takes its place; else
            dimensions of groups come last, as in flox. "quantile" follows if there are several.

        Raises
        ------
        KeyError
            If there is no such coordinate.
        TypeError, ValueError
            If labels have no name, have a MultiIndex or do not fit the array; and as for
            :func:`dask_coop.groupby_reduce`.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([1.0, 2.0, 6.0], {"zone": ("cell", ["a", "b", "b"])}, "cell", "x")
        >>> x.coop.groupby_reduce("zone", func="mean")
        <xarray.DataArray 'x' (zone: 2)> Size: 16B
        array([1., 4.])
        Coordinates:
          * zone     (zone) <U1 8B 'a' 'b'
        """
        options = GroupOptions(
            func,
            y,
            expected_groups,
            isbin,
            sort,
            fill_value,
            dtype,
            min_count,
            finalize_kwargs or None,
            engine,
        )
        result = reduce_groups(self._obj, by, dim, skipna, options)
        return finish(self._obj, result, keep_attrs, lazy=True)

    @checked
    def groupby_scan(
        self,
        *by: Hashable | xr.DataArray,
        func: Any,
        dim: Hashable,
        expected_groups: Any = None,
        dtype: Any = None,
        skipna: bool | None = None,
        keep_attrs: bool | None = None,
    ) -> xr.DataArray:
        """Scan the elements of each group along a dimension.

        Parameters
        ----------
        *by : hashable or DataArray
            Labels as for :meth:`groupby_reduce`, which must not be lazy.
        func : str or Monoid
            "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", or a
            :class:`dask_coop.Monoid`.
        dim : hashable
            The dimension to scan along.
        expected_groups : array_like, or tuple with one for each label, optional
            The groups to scan, by default all.
        dtype : dtype, optional
            The dtype of the result.
        skipna : bool, optional
            Whether to leave NaN out; by default for floats and complex numbers, as in xarray.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.

        Returns
        -------
        DataArray
            With the dimensions and coordinates of the array.

        Raises
        ------
        KeyError, TypeError, ValueError
            As for :meth:`groupby_reduce` and :func:`dask_coop.groupby_scan`.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([1, 2, 6, 3], {"zone": ("cell", ["a", "b", "b", "a"])}, "cell")
        >>> x.coop.groupby_scan("zone", func="cumsum", dim="cell").values
        array([1, 2, 8, 4])
        """
        options = {"expected_groups": expected_groups, "dtype": dtype}
        result = scan_groups(self._obj, by, dim, skipna, func, **options)
        return finish(self._obj, result, keep_attrs, lazy=True)

    @checked
    def cumulative_trapezoid(
        self,
        coord: Hashable,
        *,
        datetime_unit: str | None = None,
        keep_attrs: bool | None = None,
        engine: Engine = "auto",
    ) -> xr.DataArray:
        """Integrate cumulatively over a coordinate by the trapezoidal rule, beginning with 0.

        Parameters
        ----------
        coord : hashable
            A coordinate of one dimension.
        datetime_unit : str, optional
            The unit of time for a coordinate of dates, such as "h" or "D"; by default its own.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.
        engine : {"auto", "collective"}
            As for :func:`dask_coop.cumulative_trapezoid`.

        Returns
        -------
        DataArray
            With the dimensions and coordinates of the array.

        Raises
        ------
        KeyError
            If there is no such coordinate.
        ValueError
            If it does not have exactly one dimension.

        See Also
        --------
        xarray.DataArray.cumulative_integrate : The same by Dask.
        """
        x = self._obj
        if coord not in x.coords:
            raise KeyError(f"there is no coordinate {coord!r}; there are {[*x.coords]}")
        coordinate = x.coords[coord]
        if coordinate.ndim != 1:
            raise ValueError(f"coord has one dimension, and {coord!r} has {coordinate.dims}")
        positions = coordinate.data
        if coordinate.dtype.kind in "mM":
            unit = datetime_unit or np.datetime_data(coordinate.dtype)[0]
            positions = (coordinate - coordinate[0]).data / np.array(1, f"m8[{unit}]")
        axis = x.dims.index(coordinate.dims[0])
        result = dask_coop.cumulative_trapezoid(x, positions, axis=axis, initial=0, engine=engine)
        return finish(x, result, keep_attrs)

    def weighted_quantile(
        self,
        q: float | Sequence[float],
        weights: xr.DataArray,
        dim: Any = None,
        *,
        skipna: bool | None = None,
        keep_attrs: bool | None = None,
    ) -> xr.DataArray:
        """Compute quantiles of weighted elements.

        Parameters
        ----------
        q : float or sequence of float
            From 0 to 1.
        weights : DataArray
            Without NaN; broadcast by their dimensions.
        dim : hashable, iterable of hashable, ... or None
            The dimensions to work over; None or ... for all of them. They may lie in several
            chunks: the other dimensions are cut into smaller ones, and lines are gathered.
        skipna : bool, optional
            Whether to leave NaN out; by default for floats and complex numbers, as in xarray.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.

        Returns
        -------
        DataArray
            That of ``x.weighted(weights).quantile(q, dim)``.

        Raises
        ------
        TypeError, ValueError
            As there, and if there is no such dimension.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([1.0, 2.0, 6.0], dims="lat")
        >>> x.coop.weighted_quantile(0.5, xr.DataArray([1.0, 1.0, 2.0], dims="lat")).values
        array(4.)
        """
        dims, options = find_dims(self._obj, dim), {"skipna": skipna, "keep_attrs": keep_attrs}
        return as_installed(
            self._obj, lambda x: x.weighted(weights).quantile(q, dim=[*dims], **options)
        )

    def box_filter(
        self,
        size: Mapping[Hashable, int] | None = None,
        *,
        mode: Mode = "reflect",
        keep_attrs: bool | None = None,
        **sizes: int,
    ) -> xr.DataArray:
        """Compute the mean of a box around each element.

        Parameters
        ----------
        size : mapping of hashable to int, optional
            The length of the box along each of its dimensions.
        mode : {"reflect", "nearest", "wrap"}
            The elements outside of the array, as for :func:`dask_coop.box_filter`.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.
        **sizes : int
            Dimensions and lengths, in place of `size`.

        Returns
        -------
        DataArray
            With the dimensions and coordinates of the array.

        Raises
        ------
        TypeError, ValueError
            As for :func:`dask_coop.box_filter`, and if there is no such dimension, or no size.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([0.0, 3.0, 0.0, 0.0], dims="lon")
        >>> x.coop.box_filter(lon=3, mode="wrap").values
        array([1., 1., 1., 0.])
        """
        x = self._obj
        lengths: dict[Hashable, int] = dict(size or {})
        lengths.update(sizes)
        if not lengths:
            raise ValueError("box_filter takes a length along each dimension: box_filter(lat=3)")
        axes = [x.dims.index(d) for d in find_dims(x, list(lengths))]
        return finish(x, dask_coop.box_filter(x, [*lengths.values()], axes, mode=mode), keep_attrs)

    @checked
    def value_counts(
        self,
        *,
        n: int | None = None,
        sort: bool = True,
        ascending: bool = False,
        dropna: bool = True,
        normalize: bool = False,
    ) -> xr.DataArray:
        """Count how often each distinct value occurs, the most frequent first; computed at once.

        Parameters
        ----------
        n, sort, ascending, dropna, normalize
            As for :func:`dask_coop.value_counts`.

        Returns
        -------
        DataArray
            Named "count", or "proportion" if `normalize`, with the values as its only coordinate,
            which has the name of the array, or "value" if that has none. It is computed for lazy
            data, too, because its length and its index are not known before.

        Raises
        ------
        TypeError, ValueError
            As for :func:`dask_coop.value_counts`.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> xr.DataArray(["sea", "ice", "sea"], dims="cell", name="cover").coop.value_counts()
        <xarray.DataArray 'count' (cover: 2)> Size: 16B
        array([2, 1])
        Coordinates:
          * cover    (cover) <U3 24B 'sea' 'ice'
        """
        x = self._obj
        values, counts = dask.compute(
            *dask_coop.value_counts(
                x.data, n=n, sort=sort, ascending=ascending, dropna=dropna, normalize=normalize
            )
        )
        name = "value" if x.name is None else x.name
        # An index is always on the host.
        values, counts = chunks.asarray(values, "numpy"), chunks.asarray(counts, "numpy")
        return xr.DataArray(counts, {name: values}, name, "proportion" if normalize else "count")


class CoopDataset(Named):
    """The methods of arrays, for each variable of a Dataset that has the dimensions.

    Variables without any of them stay as they are, and variables without numbers or dates are left
    out.
    """

    def __init__(self, obj: xr.Dataset) -> None:
        self._obj = obj

    def histogram(
        self, *variables: Hashable, weights: Hashable | xr.DataArray | None = None, **options: Any
    ) -> xr.DataArray:
        """Compute the histogram of a variable, or the joint one of several.

        Parameters
        ----------
        *variables : hashable
            Names of variables.
        weights : hashable or DataArray, optional
            The weights of samples, or the name of a variable or coordinate that has them.
        **options
            As for :meth:`CoopDataArray.histogram`: bins, range, dim and others.

        Returns
        -------
        DataArray
            As for :meth:`CoopDataArray.histogram`.

        Raises
        ------
        KeyError
            If there is no such variable.
        TypeError, ValueError
            As for :meth:`CoopDataArray.histogram`.
        """
        if not variables:
            raise TypeError("histogram takes names of variables: ds.coop.histogram('t2m', bins=20)")
        first, *others = (self._obj[name] for name in variables)
        if weights is not None and not isinstance(weights, xr.DataArray):
            weights = self._obj[weights]
        return CoopDataArray(first).histogram(*others, weights=weights, **options)

    @checked
    def count(
        self, dim: Any = None, *, keep_attrs: bool | None = None, engine: Engine = "auto"
    ) -> xr.Dataset:
        """Count the elements of each variable that are not missing: neither NaN nor NaT.

        Parameters
        ----------
        dim, keep_attrs, engine
            As for :meth:`CoopDataArray.count`.

        Returns
        -------
        Dataset
            Of int64.

        Raises
        ------
        ValueError
            If there is no such dimension.
        """
        dims = None if dim is None or dim is ... else find_dims(self._obj, dim)

        def counted(x: xr.DataArray) -> xr.DataArray:
            of_x = dims if dims is None else [d for d in dims if d in x.dims]
            return CoopDataArray(x).count(of_x, keep_attrs=keep_attrs, engine=engine)

        return each_variable(self._obj, (), counted, keep_attrs)

    def groupby_reduce(
        self,
        *by: Hashable | xr.DataArray,
        func: Any,
        keep_attrs: bool | None = None,
        **options: Any,
    ) -> xr.Dataset:
        """Reduce the elements of each group of the variables that have a dimension of the labels.

        Parameters
        ----------
        *by : hashable or DataArray
            Labels: names of coordinates or variables, or of components of dates such as
            ``"time.month"``, or arrays with names.
        func : str or Monoid
            As for :func:`dask_coop.groupby_reduce`.
        keep_attrs : bool, optional
            Whether to keep attributes; by default xarray's option of that name decides.
        **options
            As for :meth:`CoopDataArray.groupby_reduce`: expected_groups, dim and others.

        Returns
        -------
        Dataset
            Without variables that are labels.

        Raises
        ------
        KeyError, TypeError, ValueError
            As for :meth:`CoopDataArray.groupby_reduce`, and if `func` is a list.
        """
        if isinstance(func, list | tuple):
            raise TypeError("a Dataset takes one func at a time; a variable takes a list")
        labels = [label if isinstance(label, xr.DataArray) else self._obj[label] for label in by]
        dims = tuple(dict.fromkeys(dim for label in labels for dim in label.dims))
        ds = self._obj.drop_vars([x.name for x in labels if x.name in self._obj.data_vars])

        def reduced(x: xr.DataArray) -> Any:
            return CoopDataArray(x).groupby_reduce(
                *labels, func=func, keep_attrs=keep_attrs, **options
            )

        return each_variable(ds, dims, reduced, keep_attrs)


add_methods(CoopDataArray, CoopDataset)
xr.register_dataarray_accessor("coop")(CoopDataArray)
xr.register_dataset_accessor("coop")(CoopDataset)
