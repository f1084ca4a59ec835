"""What `coop` is on xarray's arrays and Datasets: methods of named dimensions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import dask
import numpy as np

import dask_coop
from dask_coop import chunks
from dask_coop.api.call.public import Engine
from dask_coop.api.windows import Mode
from dask_coop.xarray.groups import Asked, reduce_groups, scan_groups
from dask_coop.xarray.histogram import Options, histogram
from dask_coop.xarray.methods import add_methods
from dask_coop.xarray.objects import each_variable, find_dims, finish, leaves_nan_out, xr


class CoopDataArray:
    """Statistics, scans, windows, groups and histograms along named dimensions.

    Names, coordinates and attributes are kept. What is in Dask's chunks stays lazy, and what is
    not is computed.

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
        """Histogram of the array, or the joint one of it and others.

        Parameters
        ----------
        *others : DataArray
            Further variables of a joint histogram. They are broadcast by their dimensions; one of
            all variables has every dimension.
        bins : int or array_like, or list with one for each variable
            The number of bins of equal width, or their edges. Of data that is not lazy also NumPy's
            rule for the number of bins, such as "sturges".
        range : (float, float), or list with one for each variable
            The outer edges; without them and without edges, the least and the greatest sample,
            found in the same graph.
        dim : hashable, iterable of hashable, ... or None
            The dimensions to count over, by default all; there is a histogram for each position
            along the others.
        weights : DataArray, optional
            What each sample adds to its bin, broadcast by its dimensions: the cosine of the
            latitude counts areas.
        density : bool
            Whether the result is the probability density, which integrates to one.
        skipna : bool, optional
            Whether NaN in floats has no part in a range that is found, as by default, or makes
            computing raise. It is counted in no bin in either case.
        reproducible : bool
            Whether sums of weights have the same bits for every chunking.
        bin_dim_suffix : str
            What the names of variables get to name dimensions of bins.
        engine : {"auto", "collective"}
            As for :func:`dask_coop.histogram`.

        Returns
        -------
        DataArray
            Named ``histogram_t2m`` if the variable is ``t2m``, with the dimensions that are left,
            and one of bins for each variable, ``t2m_bin``. Its coordinate has the centres of the
            bins, ``t2m_bin_left`` and ``t2m_bin_right`` their edges, all with the attributes of the
            variable. Where edges are found in lazy data these are lazy, too, and there is no index.

        Raises
        ------
        TypeError
            If weights have no labels, or samples or weights are of another dtype.
        ValueError
            If a variable has no name, there is no such dimension or no such bin, or bins of a joint
            histogram that keeps dimensions are not known.

        See Also
        --------
        dask_coop.histogram, dask_coop.histogramdd : The same of arrays without labels.

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
        leaves = all(one.dtype.kind != "f" or leaves_nan_out(one, skipna) for one in arrays)
        options = Options(density, "omit" if leaves else "raise", reproducible, engine)
        return histogram(arrays, bins, range, dim, weights, options, bin_dim_suffix)

    def describe(
        self,
        dim: Any = None,
        *,
        keepdims: bool = False,
        split_every: int | None = None,
        keep_attrs: bool | None = None,
        engine: Engine = "auto",
    ) -> xr.Dataset:
        """Count, NaN count, minimum, maximum, sum, mean, variance and deviation in one read.

        Parameters
        ----------
        dim : hashable, iterable of hashable, ... or None
            The dimensions to work over; None or ... for all of them.
        keepdims : bool
            Whether these stay, with length one.
        split_every : int, optional
            How many states one task combines.
        keep_attrs : bool, optional
            Whether attributes are kept; by default what xarray's option of that name says.
        engine : {"auto", "collective"}
            As for :func:`dask_coop.describe`.

        Returns
        -------
        Dataset
            With a variable for each: count, nans, min, max, sum, mean, var and std; of dates and
            durations without those that they have not.

        Raises
        ------
        TypeError, ValueError
            As by :func:`dask_coop.describe`, and if there is no such dimension.

        See Also
        --------
        dask_coop.describe : The same of arrays without labels.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([[1.0, 2.0], [3.0, float("nan")]], dims=("time", "lon"))
        >>> x.coop.describe("time")["mean"].values
        array([2., 2.])
        """
        x = self._obj
        axes = tuple(x.dims.index(one) for one in find_dims(x, dim))
        found = dask_coop.describe(x, axes, keepdims, split_every, engine=engine)
        parts = {name: one for name, one in found._asdict().items() if one is not None}
        return finish(x, xr.Dataset(parts), keep_attrs)

    def count(
        self, dim: Any = None, *, keep_attrs: bool | None = None, engine: Engine = "auto"
    ) -> xr.DataArray:
        """Count the elements that are not missing: neither NaN nor NaT.

        Parameters
        ----------
        dim : hashable, iterable of hashable, ... or None
            The dimensions to work over; None or ... for all of them.
        keep_attrs : bool, optional
            Whether attributes are kept; by default what xarray's option of that name says.
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
        axes = tuple(x.dims.index(one) for one in find_dims(x, dim))
        valid = x.notnull().assign_attrs(x.attrs)
        return finish(x, dask_coop.count_nonzero(valid, axes, engine=engine), keep_attrs)

    def groupby_reduce(
        self,
        *by: Hashable | xr.DataArray,
        func: Any,
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
            Labels: names of coordinates, or of parts of dates as in ``"time.month"``, or arrays
            with names. With several there is a group for each combination.
        func : str, Monoid or list of these
            As for :func:`dask_coop.groupby_reduce`: "mean", "std", "first", "quantile" and others.
        dim : hashable, iterable of hashable, ... or None
            The dimensions to reduce, by default those of the labels; ... for all.
        expected_groups : array_like, or tuple with one for each label, optional
            The groups that there may be, or edges of bins. Labels that are lazy need them.
        isbin : bool or sequence of bool
            Whether `expected_groups` are edges of bins, which hold their right edges.
        sort : bool
            Whether groups are in their order, and not in that in which labels have them.
        fill_value, dtype, min_count
            As for :func:`dask_coop.groupby_reduce`.
        skipna : bool, optional
            Whether NaN is left out; by default it is in floats and complex numbers, as xarray's.
        keep_attrs : bool, optional
            Whether attributes are kept; by default what xarray's option of that name says.
        engine : {"auto", "collective"}
            "collective" is declined: groups are reduced by a graph.
        **finalize_kwargs
            What statistics take besides: `ddof` of variances, `q` and `method` of quantiles.

        Returns
        -------
        DataArray or Dataset
            A Dataset with a variable for each where `func` is a list. Dimensions of groups are
            named as labels, or ``name_bins`` for bins, and have the groups as coordinates; that of
            a label of one dimension takes the place of that, and others come last, as those of
            flox. Behind them is "quantile" where there are several.

        Raises
        ------
        KeyError
            If there is no such coordinate.
        TypeError, ValueError
            If labels have no name or a MultiIndex, or do not fit the array; and as by
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
        given = (expected_groups, isbin, sort, fill_value, dtype, min_count)
        asked = Asked(func, *given, finalize_kwargs or None, engine)
        found = reduce_groups(self._obj, by, dim, skipna, asked)
        return finish(self._obj, found, keep_attrs, lazy=True)

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
            Labels as for :meth:`groupby_reduce`, which are known.
        func : str or Monoid
            "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", or a
            :class:`dask_coop.Monoid`.
        dim : hashable
            The dimension to scan along.
        expected_groups : array_like, or tuple with one for each label, optional
            The groups that are scanned, by default all.
        dtype : dtype, optional
            That of the result.
        skipna : bool, optional
            Whether NaN is left out; by default it is in floats and complex numbers, as xarray's.
        keep_attrs : bool, optional
            Whether attributes are kept; by default what xarray's option of that name says.

        Returns
        -------
        DataArray
            With the dimensions and coordinates of the array.

        Raises
        ------
        KeyError, TypeError, ValueError
            As of :meth:`groupby_reduce`, and by :func:`dask_coop.groupby_scan`.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([1, 2, 6, 3], {"zone": ("cell", ["a", "b", "b", "a"])}, "cell")
        >>> x.coop.groupby_scan("zone", func="cumsum", dim="cell").values
        array([1, 2, 8, 4])
        """
        given = {"expected_groups": expected_groups, "dtype": dtype}
        found = scan_groups(self._obj, by, dim, skipna, func, **given)
        return finish(self._obj, found, keep_attrs, lazy=True)

    def cumulative_trapezoid(
        self,
        coord: Hashable,
        *,
        datetime_unit: str | None = None,
        keep_attrs: bool | None = None,
        engine: Engine = "auto",
    ) -> xr.DataArray:
        """Cumulative integral over a coordinate by the trapezoidal rule, beginning with 0.

        Parameters
        ----------
        coord : hashable
            A coordinate of one dimension.
        datetime_unit : str, optional
            The unit of time, such as "h" or "D", of a coordinate of dates; by default its own.
        keep_attrs : bool, optional
            Whether attributes are kept; by default what xarray's option of that name says.
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
            If it has not one dimension.

        See Also
        --------
        xarray.DataArray.cumulative_integrate : The same by Dask.
        """
        x = self._obj
        if coord not in x.coords:
            raise KeyError(f"there is no coordinate {coord!r}; there are {[*x.coords]}")
        places = x.coords[coord]
        if places.ndim != 1:
            raise ValueError(f"coord has one dimension, and {coord!r} has {places.dims}")
        at = places.data
        if places.dtype.kind in "mM":
            unit = datetime_unit or np.datetime_data(places.dtype)[0]
            at = (places - places[0]).data / np.array(1, f"m8[{unit}]")
        axis = x.dims.index(places.dims[0])
        found = dask_coop.cumulative_trapezoid(x, at, axis=axis, initial=0, engine=engine)
        return finish(x, found, keep_attrs)

    def box_filter(
        self,
        size: Mapping[Hashable, int] | None = None,
        *,
        mode: Mode = "reflect",
        keep_attrs: bool | None = None,
        **sizes: int,
    ) -> xr.DataArray:
        """Mean of a box around each element.

        Parameters
        ----------
        size : mapping of hashable to int, optional
            How long the box is along each of its dimensions.
        mode : {"reflect", "nearest", "wrap"}
            What lies outside of the array, as for :func:`dask_coop.box_filter`.
        keep_attrs : bool, optional
            Whether attributes are kept; by default what xarray's option of that name says.
        **sizes : int
            Dimensions and lengths, in the place of `size`.

        Returns
        -------
        DataArray
            With the dimensions and coordinates of the array.

        Raises
        ------
        TypeError, ValueError
            As by :func:`dask_coop.box_filter`, and if there is no such dimension or none is given.

        Examples
        --------
        >>> import xarray as xr
        >>> import dask_coop.xarray
        >>> x = xr.DataArray([0.0, 3.0, 0.0, 0.0], dims="lon")
        >>> x.coop.box_filter(lon=3, mode="wrap").values
        array([1., 1., 1., 0.])
        """
        x = self._obj
        given: dict[Hashable, int] = dict(size or {})
        given.update(sizes)
        if not given:
            raise ValueError("box_filter takes a length along each dimension: box_filter(lat=3)")
        axes = [x.dims.index(one) for one in find_dims(x, list(given))]
        return finish(x, dask_coop.box_filter(x, [*given.values()], axes, mode=mode), keep_attrs)

    def value_counts(
        self,
        *,
        n: int | None = None,
        sort: bool = True,
        ascending: bool = False,
        dropna: bool = True,
        normalize: bool = False,
    ) -> xr.DataArray:
        """Distinct values and how often each occurs, the most frequent first; computed at once.

        Parameters
        ----------
        n, sort, ascending, dropna, normalize
            As for :func:`dask_coop.value_counts`.

        Returns
        -------
        DataArray
            Named "count", or "proportion" where it is normalized, with the values as its only
            coordinate, which is named as the array, or "value" if it has no name. It is computed,
            also of lazy data: how long it is and what its index has is not known before.

        Raises
        ------
        TypeError, ValueError
            As by :func:`dask_coop.value_counts`.

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


class CoopDataset:
    """The methods of arrays for each variable of a Dataset that has the dimensions.

    Variables that have none of them stay as they are, and those that hold no numbers or dates are
    left out.
    """

    def __init__(self, obj: xr.Dataset) -> None:
        self._obj = obj

    def histogram(
        self, *variables: Hashable, weights: Hashable | xr.DataArray | None = None, **options: Any
    ) -> xr.DataArray:
        """Histogram of a variable, or the joint one of several.

        Parameters
        ----------
        *variables : hashable
            Names of variables.
        weights : hashable or DataArray, optional
            What each sample adds to its bin, or the name of a variable or coordinate that has it.
        **options
            As for :meth:`CoopDataArray.histogram`: bins, range, dim and others.

        Returns
        -------
        DataArray
            As of :meth:`CoopDataArray.histogram`.

        Raises
        ------
        KeyError
            If there is no such variable.
        TypeError, ValueError
            As of :meth:`CoopDataArray.histogram`.
        """
        if not variables:
            raise TypeError("histogram takes names of variables: ds.coop.histogram('t2m', bins=20)")
        first, *others = (self._obj[name] for name in variables)
        if weights is not None and not isinstance(weights, xr.DataArray):
            weights = self._obj[weights]
        return CoopDataArray(first).histogram(*others, weights=weights, **options)

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
            own = dims if dims is None else [one for one in dims if one in x.dims]
            return CoopDataArray(x).count(own, keep_attrs=keep_attrs, engine=engine)

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
            Labels: names of coordinates or variables, or of parts of dates as in ``"time.month"``,
            or arrays with names.
        func : str or Monoid
            As for :func:`dask_coop.groupby_reduce`.
        keep_attrs : bool, optional
            Whether attributes are kept; by default what xarray's option of that name says.
        **options
            As for :meth:`CoopDataArray.groupby_reduce`: expected_groups, dim and others.

        Returns
        -------
        Dataset
            Without variables that are labels.

        Raises
        ------
        KeyError, TypeError, ValueError
            As of :meth:`CoopDataArray.groupby_reduce`, and if `func` is a list.
        """
        if isinstance(func, list | tuple):
            raise TypeError("of a Dataset there is one func at a time; a variable takes a list")
        labels = [one if isinstance(one, xr.DataArray) else self._obj[one] for one in by]
        dims = tuple(dict.fromkeys(dim for one in labels for dim in one.dims))
        ds = self._obj.drop_vars([one.name for one in labels if one.name in self._obj.data_vars])

        def reduced(x: xr.DataArray) -> Any:
            return CoopDataArray(x).groupby_reduce(
                *labels, func=func, keep_attrs=keep_attrs, **options
            )

        return each_variable(ds, dims, reduced, keep_attrs)


add_methods(CoopDataArray, CoopDataset)
xr.register_dataarray_accessor("coop")(CoopDataArray)
xr.register_dataset_accessor("coop")(CoopDataset)
