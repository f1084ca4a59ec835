"""Anomalies of hours from days' climatology: pangeo-data/distributed-array-examples#4."""

from typing import Any

from benchmarks.systems.workloads.measured import days, tell


def build(years: int) -> Any:
    y, x = (721, 1440) if years > 1 else (36, 72)
    hours = days((years * 8760, y, x), (310, y, x), freq="h")
    mean = hours.groupby("time.dayofyear").mean()
    anomaly = hours - mean.sel(dayofyear=hours.time.dt.dayofyear)
    return abs(anomaly).max("time")


if __name__ == "__main__":
    tell(build, 3, 1)
