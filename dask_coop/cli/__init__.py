"""The command line: ``python -m dask_coop``."""
