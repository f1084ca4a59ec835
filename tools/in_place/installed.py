"""Installs this library, and reports at the end which functions were called."""

import gc
import json
import os
from collections import Counter

import dask_coop as dc

dc.install()
# Imported modules stay, and a search for garbage among them takes much of the time.
gc.freeze()
gc.set_threshold(5000, 10, 10)


def pytest_sessionfinish():
    served, refused = Counter(), Counter()
    for row in dc.report():
        if row.served_by == "dask_coop":
            served[row.function] += row.calls
        else:
            refused[f"{row.function}: {row.why}"] += row.calls
    with open(f"report-{os.getpid()}.json", "w") as file:
        json.dump({"served": served, "refused": refused}, file)
