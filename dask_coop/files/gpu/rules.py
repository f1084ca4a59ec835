"""Decide which cells a GPU decodes.

A warp decodes a frame. So a GPU takes as long for one as for hundreds, and is worth it where a task
has many; a frame that is large takes long.
"""

from __future__ import annotations

from dask_coop.cuda.programs import frames as programs
from dask_coop.files.codecs import Chain

#: The codecs whose frames kernels decode.
CODECS = ("zstd", "lz4", "blosc")

#: The most bytes of a cell: those of a larger one wait too long for one warp. Blosc cuts its cells.
_MOST = {"zstd": 4 << 20, "lz4": 256 << 10, "blosc": 64 << 20}

#: The bytes a second that a thread of the host decodes, the seconds that a GPU takes for any cell,
#: and those for each of its bytes: all cells of a task are decoded at the same time.
_RATES = {
    "zstd": (0.75e9, 5e-3, 4.6e-9),
    "lz4": (1.6e9, 2e-3, 54e-9),
    "blosc": (1.6e9, 15e-3, 0.0),
}

#: The most axes of cells that kernels take.
MOST_AXES = programs.DIMS[-1]


def why_not(chain: Chain) -> str:
    """Return why a GPU does not decode cells; empty if it does.

    Parameters
    ----------
    chain : Chain
        The codecs of the cells.
    """
    names = _checked(chain)
    codec = names[0] if names else ""
    if codec not in CODECS or names[1:] not in ([], ["shuffle"]) or chain.filters:
        return f"no kernel for {chain.names}"
    if names[1:] and (codec == "blosc" or _width(chain) != chain.dtype.itemsize):
        return "elements are shuffled in another way"
    if reason := _variant(chain, codec):
        return reason
    if chain.nbytes > _MOST[codec]:
        return f"frames of {chain.nbytes / 2**20:.3g} MiB are faster on the host"
    is_swapped_complex = chain.dtype.kind == "c" and not chain.dtype.isnative
    if chain.dtype.kind not in "biufc" or is_swapped_complex or len(chain.shape) > MOST_AXES:
        return f"no kernel for {len(chain.shape)} axes of {chain.dtype}"
    return ""


def _checked(chain: Chain) -> list[str]:
    """Return the names of the codecs of a chain, in the order of decoding, behind a checksum."""
    names = [step.name for step in chain.steps]
    return names[1:] if names[:1] == ["crc32c"] else names


def _variant(chain: Chain, codec: str) -> str:
    """Return why kernels do not decode a codec as it is configured; empty if they do."""
    (config,) = [step.config for step in chain.steps if step.name == codec]
    if config.get("checksum"):
        return "frames of Zstd with its checksum"
    if codec == "blosc":
        name = getattr(config.get("cname"), "value", config.get("cname"))
        shuffle = getattr(config.get("shuffle"), "value", config.get("shuffle"))
        # Zarr's format 2 has numbers, of which -1 is for bits of elements of a byte.
        of_bits = shuffle in (2, "bitshuffle") or (shuffle == -1 and chain.dtype.itemsize == 1)
        if name not in ("lz4", "lz4hc", "zstd") or of_bits:
            return f"no kernel for Blosc of {name}{' with bits shuffled' if of_bits else ''}"
    return ""


def _width(chain: Chain) -> int:
    """Return the bytes of the elements that the last codec shuffles."""
    config = chain.steps[-1].config
    return int(config.get("elementsize") or chain.dtype.itemsize)


def fewest_bytes(chain: Chain) -> float:
    """Return how many bytes of cells take as long on a thread of the host as on a GPU.

    Parameters
    ----------
    chain : Chain
        The codecs of the cells, which a GPU decodes.
    """
    rate, fixed, of_bytes = _RATES[_checked(chain)[0]]
    return rate * (fixed + of_bytes * chain.nbytes)
