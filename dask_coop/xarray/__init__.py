"""Register xarray's accessor ``coop``, with our functions along named dimensions.

::

    import dask_coop.xarray

    t2m.coop.histogram(bins=50, range=(220, 320), weights=np.cos(np.deg2rad(t2m.lat)))
    t2m.coop.quantile([0.1, 0.9], "time")
    t2m.coop.groupby_reduce("time.month", func=["mean", "std"])
"""

from dask_coop.errors import pip_install

try:
    from dask_coop.xarray.accessors import CoopDataArray, CoopDataset
except ModuleNotFoundError as _error:
    if _error.name not in ("xarray", "pandas"):
        raise
    raise ImportError(
        f"dask_coop.xarray needs xarray, which cannot be imported; run `{pip_install('xarray')}`"
    ) from _error

__all__ = ["CoopDataArray", "CoopDataset"]
