"""Implement the command line: ``dask-coop``, or ``python -m dask_coop``."""
