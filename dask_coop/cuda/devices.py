"""Query the capabilities of GPUs, once each."""

from __future__ import annotations

import os
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
        Number of streaming multiprocessors.
    shared_bytes : int
        Shared memory that one block may opt in to, in bytes.
    hopper : bool
        Whether kernels may use thread block clusters and the bulk copy engine. It is False for
        every GPU if the environment variable DASK_COOP_PORTABLE is set and not empty.
    """

    arch: str
    processors: int
    shared_bytes: int
    hopper: bool


#: Processors and bytes of a block's shared memory of a typical GPU of each architecture with
#: clusters; programs for other architectures do not depend on them.
_USUAL = {"sm_90": (132, 232_448), "sm_100": (148, 232_448), "sm_120": (170, 101_376)}


def usual(arch: str) -> Device:
    """Return the facts about a typical GPU of an architecture, such as "sm_90"; needs no GPU."""
    return Device(arch, *_USUAL.get(arch, (132, 232_448)), int(arch.removeprefix("sm_")) >= 90)


@cache
def device(ordinal: int) -> Device:
    """Return the facts about the GPU with this ordinal in this process."""
    major = attribute(ordinal, "COMPUTE_CAPABILITY_MAJOR")
    minor = attribute(ordinal, "COMPUTE_CAPABILITY_MINOR")
    return Device(
        f"sm_{major}{minor}",
        attribute(ordinal, "MULTIPROCESSOR_COUNT"),
        attribute(ordinal, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        major >= 9 and not os.environ.get("DASK_COOP_PORTABLE"),
    )


def attribute(ordinal: int, name: str) -> int:
    """Return an attribute of a GPU from the driver, by its name without CU_DEVICE_ATTRIBUTE_."""
    from cuda.bindings import driver

    driver.cuInit(0)
    key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    error, value = driver.cuDeviceGetAttribute(key, driver.CUdevice(ordinal))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"device {ordinal} does not tell its {name}: {error}")
    return int(value)
