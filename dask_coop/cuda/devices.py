"""What a GPU can do, asked once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Device:
    """The facts about one GPU that decide grids and strategies.

    Attributes
    ----------
    arch : str
        The architecture that kernels are compiled for, such as "sm_90".
    processors : int
        Streaming multiprocessors.
    shared_bytes : int
        Shared memory that one block may opt in to, in bytes.
    """

    arch: str
    processors: int
    shared_bytes: int


@cache
def device(ordinal: int) -> Device:
    """Return the facts about the GPU that this process calls `ordinal`."""
    from cupy.cuda import runtime

    def attribute(name: str) -> int:
        return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), ordinal))

    major = attribute("ComputeCapabilityMajor")
    minor = attribute("ComputeCapabilityMinor")
    return Device(
        f"sm_{major}{minor}",
        attribute("MultiProcessorCount"),
        attribute("MaxSharedMemoryPerBlockOptin"),
    )
