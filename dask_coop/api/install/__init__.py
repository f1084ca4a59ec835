"""Put these functions in the place of those of Dask, xarray and flox."""
