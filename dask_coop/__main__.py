"""Run the command line: ``python -m dask_coop``."""

import sys

from dask_coop.cli.main import main

# The guard matters: processes of a LocalCluster import this module.
if __name__ == "__main__":
    sys.exit(main())
