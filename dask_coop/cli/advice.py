"""Find settings that make this machine slower than necessary, with reasons and remedies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dask_coop.errors import pip_install


def advise(facts: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each slow setting among the `info.facts`."""
    versions, gpus, variables = facts["versions"], facts["gpus"], facts["variables"]
    settings = {key.removeprefix("coop."): value for key, value in facts["configuration"].items()}
    if facts["loops"].startswith("none: no folder"):
        yield (
            "every process compiles its loops again, because no folder for them is writable; "
            "set NUMBA_CACHE_DIR to one"
        )
    elif versions["Numba"] is None:
        yield (
            "NumPy's functions work on each NumPy chunk with one thread, because Numba is not "
            f"installed; run `{pip_install('cpu')}` for compiled loops"
        )
    elif variables.get("NUMBA_DISABLE_JIT", "0") != "0":
        yield ("loops run as plain Python, because NUMBA_DISABLE_JIT is set; unset it")
    if facts["threads"] == 1:
        yield (
            "one chunk is computed after the other, because this process has one processor; "
            "give it more, or use a cluster"
        )
    elif settings["threads"] == 1:
        yield "each chunk is computed by one thread, because coop.threads is 1; set it to auto"
    if facts["scheduler"] in ("sync", "synchronous", "single-threaded"):
        yield (
            f"one chunk is computed after the other, because Dask's scheduler is "
            f"{facts['scheduler']!r}; set it to 'threads'"
        )
    if not gpus:
        return
    if versions["CuPy"] is None:
        yield (
            "the GPU is not used, because CuPy is not installed; run "
            f"`{pip_install('cuda12')}` (or cuda13)"
        )
    if facts["cache"].startswith("none: "):
        yield (
            f"every process compiles its kernels again ({facts['cache'].removeprefix('none: ')}); "
            "set DASK_COOP_CACHE to a folder that only you can write to"
        )
    if variables.get("DASK_COOP_PORTABLE"):
        yield (
            "kernels do not use features of GPUs with compute capability 9.0 or more, because "
            "DASK_COOP_PORTABLE is set; unset it"
        )
    if any(reached is False for row in facts["peers"].get("access", ()) for reached in row):
        yield (
            "some GPUs send data to each other through the host's memory, because they cannot "
            "reach each other's memory; see `nvidia-smi topo -m`"
        )
    if versions["kvikio"] is None:
        yield (
            "Zarr arrays are read through the host's memory, because kvikio is not installed; its "
            "zarr.GDSStore reads them into the GPU directly"
        )
