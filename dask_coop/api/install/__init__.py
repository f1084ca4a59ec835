"""Replace functions of Dask, xarray and flox by those of this library."""
