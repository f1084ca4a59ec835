"""CuPy in the memory of the host, which counts what calls of it cost; kernels only leave zeros.

Import `installed` in a process that has not imported CuPy. Control that depends on values takes the
way of zeros, so that calls whose next steps depend on counts are out of its reach.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

#: Synchronisations with the GPU, allocations of its memory, and kernels or copies that are queued.
WAITS, ALLOCATIONS, QUEUED = "waits", "allocations", "queued"

counts: Counter[str] = Counter()

#: Functions whose results have a length that the GPU finds.
_OF_ANY_LENGTH = {"argwhere", "compress", "extract", "flatnonzero", "nonzero", "unique"}


class Pointer:
    """An address in memory that `of` keeps."""

    device_id = 0

    def __init__(self, ptr: int, of: Any) -> None:
        self.ptr, self.mem = ptr, of

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.ptr + int(offset), self.mem)

    def memset_async(self, value: int, nbytes: int, stream: Any = None) -> None:
        counts[QUEUED] += 1
        ctypes.memset(self.ptr, value, nbytes)

    def copy_from_device_async(self, source: Pointer, nbytes: int, stream: Any = None) -> None:
        counts[QUEUED] += 1
        ctypes.memmove(self.ptr, source.ptr, nbytes)


class Device:
    """The only GPU."""

    id = 0
    mem_info = (64 << 30, 80 << 30)

    def __init__(self, ordinal: int = 0) -> None:
        assert ordinal == 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device)

    def __hash__(self) -> int:
        return 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        counts[WAITS] += 1


class Stream:
    """The default stream."""

    ptr = 0
    null: Stream

    def use(self) -> Stream:
        return self

    def synchronize(self) -> None:
        counts[WAITS] += 1


Stream.null = Stream()


def plain(value: Any) -> Any:
    """Return arguments of a function with NumPy's arrays in the place of ours."""
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value.values if isinstance(value, ndarray) else value


def on_gpu(value: Any) -> Any:
    """Return results of a function of NumPy, with arrays on the GPU."""
    if isinstance(value, list | tuple):
        return type(value)(map(on_gpu, value))
    if not isinstance(value, np.ndarray | np.generic):
        return value
    x = object.__new__(ndarray)
    x.values = np.asarray(value)
    return x


def computed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of NumPy as one kernel, which allocates its result unless it is a view."""
    kwargs = {name: plain(value) for name, value in kwargs.items()}
    result = function(*plain(args), **kwargs)
    owned = isinstance(result, np.generic) or getattr(result, "base", None) is None
    counts[ALLOCATIONS] += owned and kwargs.get("out") is None
    counts[QUEUED] += owned or kwargs.get("out") is not None
    return on_gpu(result)


class ndarray(NDArrayOperatorsMixin):
    """An array in memory that stands for the GPU's."""

    __module__ = "cupy"
    values: Any
    device = Device()

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: Pointer | None = None,
        strides: Any = None,
        order: Any = "C",
    ) -> None:
        if memptr is None:
            counts[ALLOCATIONS] += 1
            self.values = np.zeros(shape, dtype, order)
            return
        whole = tuple(shape) if np.ndim(shape) else (shape,)
        itemsize = np.dtype(dtype).itemsize
        extent = itemsize * math.prod(whole)
        if strides is not None and extent:
            extent = sum((n - 1) * s for n, s in zip(whole, strides, strict=True)) + itemsize
        memory = (ctypes.c_char * extent).from_address(memptr.ptr)
        memory.keeps = memptr.mem  # type: ignore[attr-defined]
        self.values = np.ndarray(whole, dtype, memory, 0, strides)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "values":
            raise AttributeError(name)
        value = getattr(self.values, name)
        if not callable(value):
            return on_gpu(value)

        def method(*args: Any, **kwargs: Any) -> Any:
            counts[WAITS] += name in _OF_ANY_LENGTH
            return computed(getattr(np.ndarray, name), self, *args, **kwargs)

        return method

    @property
    def data(self) -> Any:
        return Pointer(self.values.ctypes.data, self)

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        result = computed(getattr(ufunc, method), *inputs, **kwargs)
        return kwargs["out"][0] if "out" in kwargs else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        counts[WAITS] += func.__name__ in _OF_ANY_LENGTH
        return computed(func, *args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        several = index if isinstance(index, tuple) else (index,)
        # The shape of the result is that of the true ones.
        counts[WAITS] += any(getattr(each, "dtype", "") == np.dtype("?") for each in several)
        return on_gpu(computed(np.ndarray.__getitem__, self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        counts[QUEUED] += 1
        self.values[plain(index)] = plain(value)

    def astype(self, dtype: Any, order: Any = "K", copy: bool = True, **_: Any) -> Any:
        return self if self.dtype == dtype and not copy else computed(np.array, self, dtype)

    def get(self, *_: Any, **__: Any) -> Any:
        return asnumpy(self)

    def set(self, host: Any, *_: Any) -> None:
        self[...] = host


def _waiting(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        counts[WAITS] += 1
        return getattr(self.values, name)(*args)

    return method


for _name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"):
    setattr(ndarray, _name, _waiting(_name))


def asnumpy(x: Any, *_: Any, **__: Any) -> Any:
    """Return a copy on the host, after a wait for the GPU."""
    if not isinstance(x, ndarray):
        return np.asarray(x)
    counts[WAITS] += 1
    return x.values.copy()


def asarray(x: Any, dtype: Any = None, **_: Any) -> Any:
    if isinstance(x, ndarray):
        return x if dtype is None else x.astype(dtype, copy=False)
    counts[ALLOCATIONS] += 1
    counts[QUEUED] += 1
    return on_gpu(np.array(x, dtype))


class ElementwiseKernel:
    """A kernel of C, which leaves zeros."""

    def __init__(self, inputs: str, outputs: str, *_: Any, **__: Any) -> None:
        self._inputs, self._outputs = (
            [each.split()[-2] for each in several.split(",")] for several in (inputs, outputs)
        )

    def __call__(self, *args: Any, size: int | None = None, **_: Any) -> Any:
        counts[QUEUED] += 1
        n = len(self._inputs)
        if len(args) > n:
            return args[n]
        kinds = dict(zip(self._inputs, args[:n], strict=True))
        kind = self._outputs[0]
        dtype = kinds[kind].dtype if kind in kinds else np.dtype(kind)
        shape: Any = size
        if size is None:
            shape = np.broadcast_shapes(*(np.shape(x) for x in args[:n]))
        return ndarray(shape, dtype)


def _filled(value: Any) -> Callable[..., Any]:
    def make(shape: Any, dtype: Any = float, order: Any = "C", **_: Any) -> Any:
        counts[QUEUED] += 1
        x = ndarray(shape, dtype, order=order)
        x.values[...] = value
        return x

    return make


def _full(shape: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    return _filled(plain(value))(shape, np.asarray(value).dtype if dtype is None else dtype)


def _of_numpy(name: str) -> Any:
    found = getattr(np, name)
    if not callable(found) or isinstance(found, type):
        return found

    def function(*args: Any, **kwargs: Any) -> Any:
        counts[WAITS] += name in _OF_ANY_LENGTH
        return computed(found, *args, **kwargs)

    return function


def _copy(to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    counts[QUEUED] += 1
    ctypes.memmove(to, source, nbytes)


def _pinned(nbytes: int) -> Any:
    memory = (ctypes.c_char * max(1, nbytes))()
    memory.ptr = ctypes.addressof(memory)  # type: ignore[attr-defined]
    return memory


def installed() -> None:
    """Let this process import the stand-ins as CuPy, and launch kernels that do nothing."""
    runtime = ModuleType("cupy.cuda.runtime")
    runtime.__dict__.update(
        CUDARuntimeError=RuntimeError,
        getDevice=lambda: 0,
        setDevice=lambda ordinal: None,
        getDeviceCount=lambda: 1,
        memcpyAsync=_copy,
        memcpyDefault=4,
        memcpyDeviceToHost=2,
        memGetInfo=lambda: Device.mem_info,
    )
    cuda = ModuleType("cupy.cuda")
    cuda.__dict__.update(
        Device=Device,
        Event=SimpleNamespace,
        MemoryHook=object,
        MemoryPointer=lambda memory, offset: Pointer(memory.ptr + offset, memory),
        Stream=Stream,
        UnownedMemory=lambda ptr, nbytes, owner: Pointer(ptr, owner),
        alloc_pinned_memory=_pinned,
        driver=SimpleNamespace(),
        get_allocator=lambda: None,
        get_current_stream=lambda *_: Stream.null,
        nvtx=SimpleNamespace(available=False),
        runtime=runtime,
        set_allocator=lambda allocator: None,
    )
    cupy = ModuleType("cupy")
    pool = SimpleNamespace(free_all_blocks=lambda: None, malloc=None)
    cupy.__dict__.update(
        ElementwiseKernel=ElementwiseKernel,
        __getattr__=_of_numpy,
        __path__=[],
        asarray=asarray,
        asnumpy=asnumpy,
        cuda=cuda,
        empty=lambda shape, dtype=float, order="C": ndarray(shape, dtype, order=order),
        empty_like=lambda x, dtype=None, **_: ndarray(x.shape, dtype or x.dtype),
        full=_full,
        get_default_memory_pool=lambda: pool,
        ndarray=ndarray,
        zeros=_filled(0),
        ones=_filled(1),
    )
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": runtime})
    from dask_coop.cuda import devices, launch

    usual = devices.usual("sm_90")
    facts = {
        "COMPUTE_CAPABILITY_MAJOR": 9,
        "COMPUTE_CAPABILITY_MINOR": 0,
        "MULTIPROCESSOR_COUNT": usual.processors,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": usual.shared_bytes,
    }
    devices.attribute = lambda ordinal, name: facts[name]
    launch.__dict__.update(
        LaunchConfig=SimpleNamespace,
        _stream=lambda *_: None,
        launch_kernel=lambda *_: counts.update([QUEUED]),
        load=lambda *_: None,
        prepare=lambda *_: None,
    )
