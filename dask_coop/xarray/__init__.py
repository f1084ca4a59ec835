"""Register xarray's accessor ``coop``, with our functions along named dimensions.

::

    import dask_coop.xarray

    t2m.coop.histogram(bins=50, range=(220, 320), weights=np.cos(np.deg2rad(t2m.lat)))
    t2m.coop.quantile([0.1, 0.9], "time")
    t2m.coop.groupby_reduce("time.month", func=["mean", "std"])
"""

from dask_coop.xarray.accessors import CoopDataArray, CoopDataset

__all__ = ["CoopDataArray", "CoopDataset"]
