"""Collect facts on this machine: GPUs, the links between them, versions and settings.

Facts are plain dicts, lists, strings and numbers, ready for JSON; `as_text` makes them readable.
Those of GPUs come from the driver, which has attributes that CuPy lacks.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import dask
from dask.system import CPU_COUNT

from _dask_coop_early import VARIABLES
from dask_coop.cli.advice import advise
from dask_coop.errors import pip_install
from dask_coop.graph import config

Facts = dict[str, Any]

# The facts of a GPU, and the driver's names for them.
ATTRIBUTES = {
    "multiprocessors": "MULTIPROCESSOR_COUNT",
    "shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "l2_cache": "L2_CACHE_SIZE",
    "cooperative_launch": "COOPERATIVE_LAUNCH",
    "cooperative_multi_device_launch": "COOPERATIVE_MULTI_DEVICE_LAUNCH",
    "thread_block_clusters": "CLUSTER_LAUNCH",
}
SIZES = ("memory", "shared_memory_per_block", "l2_cache")
PACKAGES: dict[str, tuple[str, ...]] = {
    "CuPy": ("cupy-cuda12x", "cupy-cuda13x", "cupy"),
    "cuda-core": ("cuda-core",),
    "cuda-bindings": ("cuda-bindings",),
    "Dask": ("dask",),
    "distributed": ("distributed",),
    "dask-cuda": ("dask-cuda",),
    "NumPy": ("numpy",),
    "Numba": ("numba",),
    "kvikio": ("kvikio-cu12", "kvikio-cu13", "kvikio"),
    "xarray": ("xarray",),
}
#: Variables of other libraries that change the speed of loops.
OTHERS = ("NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT")
NEEDED = (
    "  needed for one: compute capability 7.0 (CUDA 12) or 7.5 (CUDA 13) or newer, NVIDIA's\n"
    f"  driver, and `{pip_install('cuda12')}` (or cuda13); without, NumPy does the work"
)


def facts() -> Facts:
    """Return everything that ``python -m dask_coop info`` prints.

    Returns
    -------
    dict
        ``gpus``: one dict each, sizes in bytes; ``no_gpu``: why no GPU is usable, or None;
        ``peers``: by name of a property, a matrix with ``[i][j]`` for GPU i reaching GPU j's
        memory, None on the diagonal; ``versions``: None for an absent package; ``cache``: the
        folder of compiled kernels, or why it is missing;
        ``loops``: the same for the loops that Numba compiles;
        ``threads``: number of processors of this process; ``scheduler``: Dask's, None for that of
        each collection; ``configuration``: the keys of this library and their values;
        ``unread``: a message on a key of it that nothing reads, or None; ``variables``: the
        environment variables that are set; ``slow``: lines on slow settings, why, and what to do.
    """
    from dask_coop.cli import loops
    from dask_coop.cuda import disk_cache

    gpus, why = _gpus()
    result = {
        "gpus": gpus,
        "no_gpu": why,
        "peers": _peers(len(gpus)) if gpus else {},
        "versions": _versions(bool(gpus)),
        "cache": disk_cache.describe(),
        "loops": loops.folder(),
        "threads": CPU_COUNT,
        "scheduler": dask.config.get("scheduler", None),
        "configuration": config.in_force(),
        "unread": config.unread(),
        "variables": {
            name: os.environ[name] for name in (*VARIABLES, *OTHERS) if name in os.environ
        },
    }
    return result | {"slow": [*advise(result)]}


def cupy_gpus() -> list[str]:
    """Return the names of the GPUs that CuPy can use; none if CuPy cannot be imported."""
    try:
        import cupy  # noqa: F401
    except ImportError:
        return []
    return [gpu["name"] for gpu in _gpus()[0]]


def package_version(name: str) -> str | None:
    """Return the version of one of `PACKAGES` without importing it, or None if it is absent."""
    for distribution in PACKAGES[name]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def as_text(facts: Facts) -> str:
    """Return the facts as lines for people."""
    lines = []
    for number, gpu in enumerate(facts["gpus"]):
        lines.append(f"GPU {number}: {gpu['name']}")
        lines += [
            _line(key.replace("_", " "), _value(key, gpu[key])) for key in gpu if key != "name"
        ]
    if facts["no_gpu"]:
        lines += [f"GPUs: none ({facts['no_gpu']})", NEEDED]
    if len(facts["gpus"]) > 1:
        for name, matrix in facts["peers"].items():
            lines.append(f"peer {name.replace('_', ' ')} (row reaches column):")
            lines.append("  " + "".join(f"{j:>5}" for j in range(len(matrix))))
            for i, row in enumerate(matrix):
                lines.append(f"{i:>2}" + "".join(f"{_yes(cell):>5}" for cell in row))
    lines.append("versions:")
    lines += [_line(key, value or "not installed") for key, value in facts["versions"].items()]
    lines.append(f"compiled kernels: {facts['cache']}")
    lines.append(f"compiled loops over NumPy chunks: {facts['loops']}")
    lines.append(f"processors: {facts['threads']}")
    lines.append("configuration:")
    for key, value in facts["configuration"].items():
        default = config.DEFAULTS[key]
        lines.append(_line(key, value if value == default else f"{value} (default: {default})"))
    lines += [_line(name, value) for name, value in facts["variables"].items()]
    if facts["unread"]:
        lines.append(f"  {facts['unread']}")
    lines.append("what is slow here:" if facts["slow"] else "what is slow here: nothing")
    lines += [f"  - {line}" for line in facts["slow"]]
    return "\n".join(lines)


def _line(key: str, value: Any) -> str:
    return f"  {key:<32} {value}"


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return _yes(value)
    if key in SIZES:
        return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**10:.0f} KiB"
    return str(value)


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _gpus() -> tuple[list[Facts], str | None]:
    """Return the GPUs, or an empty list and the reason."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return [], "the package cuda-bindings is not installed"
    try:
        (error,) = driver.cuInit(0)
    except RuntimeError:  # cuda-bindings raises it if libcuda cannot be loaded
        return [], "there is no NVIDIA driver"
    if error != driver.CUresult.CUDA_SUCCESS:
        return [], f"the NVIDIA driver says {error.name}"
    gpus = [_gpu(driver, device) for device in range(_call(driver.cuDeviceGetCount))]
    return gpus, None if gpus else "the NVIDIA driver sees none"


def _gpu(driver: Any, device: int) -> Facts:
    def attribute(name: str) -> int:
        code = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call(driver.cuDeviceGetAttribute, code, device))

    major, minor = (attribute(f"COMPUTE_CAPABILITY_{end}") for end in ("MAJOR", "MINOR"))
    gpu = {
        "name": _call(driver.cuDeviceGetName, 128, device).split(b"\0")[0].decode(),
        "compute_capability": f"{major}.{minor}",
        "memory": int(_call(driver.cuDeviceTotalMem, device)),
    }
    for key, name in ATTRIBUTES.items():
        value = attribute(name)
        gpu[key] = bool(value) if key.endswith(("launch", "clusters")) else value
    return gpu


def _peers(n: int) -> Facts:
    from cuda.bindings import driver

    kinds = driver.CUdevice_P2PAttribute
    attributes = {
        "access": kinds.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
        "native_atomics": kinds.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
    }
    return {
        name: [
            [
                None if i == j else bool(_call(driver.cuDeviceGetP2PAttribute, kind, i, j))
                for j in range(n)
            ]
            for i in range(n)
        ]
        for name, kind in attributes.items()
    }


def _versions(gpu: bool) -> dict[str, str | None]:
    from dask_coop import __version__

    versions: dict[str, str | None] = {
        "dask_coop": __version__,
        "driver": None,
        "CUDA runtime": None,
        "NVRTC": None,
    }
    if gpu:
        from cuda.bindings import driver

        # The driver's version is the newest CUDA that it runs.
        versions["driver"] = "CUDA " + _cuda_version(_call(driver.cuDriverGetVersion))
    try:
        import cupy

        versions["CUDA runtime"] = _cuda_version(cupy.cuda.runtime.runtimeGetVersion())
    except ImportError:
        pass
    try:
        from cuda.bindings import nvrtc

        versions["NVRTC"] = ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
    except (ImportError, RuntimeError):  # no cuda-bindings, or no NVRTC for it to load
        pass
    versions |= {name: package_version(name) for name in PACKAGES}
    versions["Python"] = f"{platform.python_version()} ({sys.platform})"
    return versions


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _call(function: Any, *arguments: Any) -> Any:
    """Call a function of the driver, and return its only result."""
    error, result = function(*arguments)
    if error:
        raise RuntimeError(f"{function.__name__}: {error.name}")
    return result
