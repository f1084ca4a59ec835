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
            "every process compiles its loops anew, because no folder can be written to keep them; "
            "set NUMBA_CACHE_DIR to one"
        )
    elif versions["Numba"] is None:
        yield (
            "NumPy chunks are worked on by NumPy's functions on one thread each, because Numba is "
            f"not installed; run `{pip_install('cpu')}` for compiled loops"
        )
    elif variables.get("NUMBA_DISABLE_JIT", "0") != "0":
        yield ("loops run as plain Python, because NUMBA_DISABLE_JIT is set; unset it")
    if facts["threads"] == 1:
        yield (
            "chunks are worked on one after the other, because this process has one processor; "
            "give it more, or use a cluster"
        )
    elif settings["threads"] == 1:
        yield "a chunk is worked on by one thread, because coop.threads is 1; set it to auto"
    if facts["scheduler"] in ("sync", "synchronous", "single-threaded"):
        yield (
            f"chunks are worked on one after the other, because Dask's scheduler is "
            f"{facts['scheduler']!r}; set it to 'threads'"
        )
    if not gpus:
        return
    if versions["CuPy"] is None:
        yield (
            "the GPU is left alone, because CuPy is not installed; run "
            f"`{pip_install('cuda12')}` (or cuda13)"
        )
    if facts["cache"].startswith("none: "):
        yield (
            f"every process compiles its kernels anew ({facts['cache'].removeprefix('none: ')}); "
            "set DASK_COOP_CACHE to a folder that only you can write to"
        )
    if variables.get("DASK_COOP_PORTABLE"):
        yield (
            "kernels leave out what GPUs have from compute capability 9.0 on, because "
            "DASK_COOP_PORTABLE is set; unset it"
        )
    if any(reached is False for row in facts["peers"].get("access", ()) for reached in row):
        yield (
            "what some GPUs send each other goes through the host's memory, because these cannot "
            "reach each other's; see `nvidia-smi topo -m`"
        )
    if versions["kvikio"] is None:
        yield (
            "Zarr arrays come to the GPU through the host's memory, because kvikio is not "
            "installed; its zarr.GDSStore reads them there at once"
        )
