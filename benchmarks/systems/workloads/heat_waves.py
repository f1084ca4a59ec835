"""Heat waves a year, over 30 years: Ouranosinc/xclim#213."""

from typing import Any

from xclim.indices import heat_wave_frequency

from benchmarks.systems.workloads.measured import days, tell


def build(years: int) -> Any:
    size = 150 if years > 10 else 50
    shape, chunks = (years * 365, size, size), (365, 50, 50)
    low, high = (280 + 30 * days(shape, chunks, seed=seed) for seed in (1, 2))
    low.attrs["units"] = high.attrs["units"] = "K"
    return heat_wave_frequency(
        low, high, thresh_tasmin="285 K", thresh_tasmax="290 K", window=3, freq="YS"
    )


if __name__ == "__main__":
    tell(build, 30, 5)
