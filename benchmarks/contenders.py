"""The timed libraries, this one included, each imported when a case first needs it.

CUB has no Python interface, so nvcc compiles benchmarks/cub.cu, once for each dtype and all at a
time, to shared libraries that live as long as the process.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dask_coop.errors import pip_install

SOURCE = Path(__file__).with_name("cub.cu")
ELEMENTS = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


class Missing(ImportError):
    """A library is not installed; the message names it."""


class Contenders:
    """The libraries, as attributes, which raise ImportError if a library is not installed.

    Attributes
    ----------
    gpu : bool
        Whether the arrays are on a GPU.
    """

    def __init__(self, gpu: bool) -> None:
        self.gpu = gpu

    @property
    def numpy(self) -> Any:
        """NumPy."""
        return np

    @cached_property
    def cupy(self) -> Any:
        """CuPy."""
        import cupy

        return cupy

    @cached_property
    def torch(self) -> Any:
        """PyTorch, if it can use the GPU."""
        try:
            import torch
        except ModuleNotFoundError:
            raise Missing("PyTorch is not installed") from None
        if not torch.cuda.is_available():
            raise Missing("this PyTorch has no CUDA")
        return torch

    @cached_property
    def bottleneck(self) -> Any:
        """Bottleneck: NumPy's nan functions in C."""
        return _imported("bottleneck")

    @cached_property
    def numbagg(self) -> Any:
        """Numbagg: the same functions compiled by Numba, on one thread."""
        found = _imported("numbagg")
        import numba

        numba.set_num_threads(1)
        return found

    @cached_property
    def boost_histogram(self) -> Any:
        """boost-histogram."""
        return _imported("boost_histogram")

    @cached_property
    def fast_histogram(self) -> Any:
        """fast-histogram: histograms in C of bins of equal width."""
        return _imported("fast_histogram")

    @property
    def processors(self) -> int:
        """The number of processors that this process may use."""
        from dask.system import CPU_COUNT

        return int(CPU_COUNT)

    @cached_property
    def da(self) -> Any:
        """dask.array."""
        import dask.array

        return dask.array

    @cached_property
    def cub(self) -> Cub:
        """CUB, compiled."""
        return Cub()

    def ours(self, primitive: str) -> Any:
        """Return this library's functions on chunks, on a GPU those for one `primitive`."""
        name = f"cupy.{primitive}" if self.gpu else "numpy.backend"
        return import_module(f"dask_coop.chunks.{name}")

    @cached_property
    def cluster(self) -> Any:
        """A client of two worker processes on this machine, which end with this one."""
        from distributed import Client, LocalCluster

        cluster = LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=40)
        return Client(cluster, set_as_default=False)

    def adopt(self, name: str, x: Any, chunks: int = 0, clustered: bool = False) -> Any:
        """Return the array `x` for the library `name`, without a copy unless `clustered`."""
        if clustered:
            return finish(self.cluster, blocks(self.da, x, chunks))
        if chunks:
            return blocks(self.da, x, chunks)
        if name == "PyTorch":
            return self.torch.as_tensor(x, device="cuda")
        return self.da.from_array(x, chunks=-1, name=False) if name == "Dask" else x


class Cub:
    """CUB's functions on CuPy arrays; outputs and temporary storage are allocated on request.

    The constructor starts nvcc, and the first call of a library waits for it.
    """

    def __init__(self) -> None:
        nvcc = find_nvcc()
        if nvcc is None:
            raise Missing("no nvcc, which CUB needs")
        self._folder = tempfile.TemporaryDirectory(prefix="dask_coop-cub-")
        self._runs = {
            dtype: subprocess.Popen(
                build_command(nvcc, element, self._path(dtype)), stderr=subprocess.PIPE, text=True
            )
            for dtype, element in ELEMENTS.items()
        }
        self._libraries: dict[str, Any] = {}

    @property
    def version(self) -> str:
        """The version of the headers."""
        number = self._library("float32").cub_version()
        return f"{number // 100000}.{number // 100 % 1000}.{number % 100}"

    def _path(self, dtype: str) -> Path:
        return Path(self._folder.name) / f"{dtype}.so"

    def _library(self, dtype: str) -> Any:
        if dtype not in self._libraries:
            _, log = self._runs[dtype].communicate()
            if self._runs[dtype].returncode:
                raise Missing(f"nvcc failed on CUB: {[*log.strip().splitlines(), '?'][-1]}")
            self._libraries[dtype] = ctypes.CDLL(str(self._path(dtype)))
        return self._libraries[dtype]

    def __call__(self, name: str, case: Any, out: Any, *extra: Any) -> Callable[[Any], Any]:
        """Return ``cub_<name>`` of cub.cu as a function of an array that returns `out`."""
        import cupy

        function = getattr(self._library(case.dtype), f"cub_{name}")
        size = ctypes.c_size_t()
        stream = cupy.cuda.get_current_stream().ptr
        rest = [ctypes.c_void_p(out.data.ptr), ctypes.c_int(case.size), ctypes.c_void_p(stream)]
        rest += [ctypes.c_double(v) if isinstance(v, float) else ctypes.c_int(v) for v in extra]

        def call(temp: int | None, x: int | None) -> None:
            error = function(ctypes.c_void_p(temp), ctypes.byref(size), ctypes.c_void_p(x), *rest)
            if error:
                raise RuntimeError(f"cub_{name}: CUDA error {error}")

        call(None, None)
        temp = cupy.empty(max(1, size.value), "u1")

        def timed(x: Any) -> Any:
            call(temp.data.ptr, x.data.ptr)
            return out

        return timed


def blocks(da: Any, x: Any, chunks: int) -> Any:
    """Return an array as a Dask array of so many chunks, about evenly along its long axes."""
    split = [n >= chunks for n in x.shape]
    along = round(chunks ** (1 / sum(split)))
    sizes = tuple(math.ceil(n / along) if cut else n for n, cut in zip(x.shape, split, strict=True))
    return da.from_array(x, chunks=sizes, name=False)


def finish(client: Any, x: Any) -> Any:
    """Return a Dask array once all of it is in the memory of a cluster."""
    from distributed import wait

    x = client.persist(x)
    with client.as_current():
        wait(x)
    return x


def _imported(name: str) -> Any:
    """Return the module of that name; raise an error that says how to install a missing one."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        package = name.replace("_", "-")
        raise Missing(f"{package} is not installed; `{pip_install('bench')}`") from None


def find_nvcc() -> str | None:
    """Return the path of nvcc, or None."""
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def build_command(nvcc: str, element: str, target: Path, arch: str = "native") -> list[str]:
    """Return the command that builds the shared library `target` for the C++ type `element`."""
    options = ["-O3", "-std=c++17", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC"]
    return [nvcc, *options, f"-DELEMENT={element}", "-o", str(target), str(SOURCE)]
