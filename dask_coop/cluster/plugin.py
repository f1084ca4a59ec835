"""CoopPlugin: compile or load a worker's kernels ahead of its tasks."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
from distributed import Worker, WorkerPlugin

from dask_coop.chunks.kept import KEPT_CHUNKS
from dask_coop.cluster.gpus import WorkerGpus
from dask_coop.cluster.monitor import metered
from dask_coop.cluster.versions import Portable, here, mismatch
from dask_coop.cluster.worker import attach
from dask_coop.graph import config
from dask_coop.graph.transfer import configured, take_over

# distributed shows INFO of its own loggers only.
logger: logging.Logger = logging.getLogger("distributed.worker.dask_coop")


class CoopPlugin(Portable, WorkerPlugin):  # type: ignore[misc]
    """Compile or load the kernels of a worker's GPU in the background, from the worker's start.

    The plugin is optional: without it the same calls work, and the first of each kind compiles. On
    every worker it also enables collectives. On a worker with a GPU, ``x.to_backend("cupy")`` and
    ``x.to_backend("numpy")`` copy as `to_gpu` and `to_host` do, until the plugin is removed or the
    worker closes; then their pinned memory is freed. A worker without a GPU logs that it has none.
    A failure to compile or load is a warning in the worker's log.

    If a worker has another version of this library than the client, or none, registering the plugin
    raises RuntimeError with the worker's address and both versions, and registers it nowhere. If
    such a worker joins later, the same message is in its log. A worker without dask_coop closes at
    the first graph task that needs it, because distributed cannot read the task; its log has the
    same message, and other workers run the task.

    Parameters
    ----------
    dtypes : sequence of dtype, optional
        The dtypes of the data to come; float32 and float64 by default.
    all_gpus : bool, optional
        Whether a worker uses all GPUs that its process sees, until it closes, instead of only the
        current one: tasks run where their chunks lie, and a collective is one launch over all GPUs.
        Use it with one worker a host, as ``dask-coop worker`` starts it, and not in a
        LocalCUDACluster, whose workers all see every GPU.

    Raises
    ------
    TypeError
        If there are no kernels for one of `dtypes`, or `all_gpus` is no bool.
    ValueError
        If ``coop.transfer`` or ``coop.barrier-timeout`` has a value that `to_gpu` or `Node` would
        refuse.

    Examples
    --------
    >>> from distributed import Client
    >>> import dask_coop
    >>> client = Client(processes=False, dashboard_address=":0")
    >>> _ = client.register_plugin(dask_coop.CoopPlugin())
    >>> client.close()

    For workers started by hand: ``dask cuda worker --preload dask_coop``.
    """

    name = "dask-coop"
    idempotent = True

    def __init__(self, dtypes: Any = ("float32", "float64"), *, all_gpus: bool = False) -> None:
        if not isinstance(all_gpus, bool):
            raise TypeError(f"all_gpus must be True or False, got {all_gpus!r}")
        self.all_gpus: bool = all_gpus
        self.dtypes: tuple[np.dtype[Any], ...] = tuple(np.dtype(dtype) for dtype in dtypes)
        self._stop: threading.Event | None = None
        for dtype in self.dtypes:
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                raise TypeError(f"dtypes must be bool, integers or floats, got {dtype}")
        self._copies = configured()
        self._timeout = config.get("coop.barrier-timeout", config.SPAN)
        self._give_back: Callable[[], bool] | None = None
        self._asks = here()

    def setup(self, worker: Worker) -> Awaitable[None] | None:
        """Begin to load the kernels; distributed calls this on every worker that starts."""
        attach(worker)
        if reason := mismatch(worker, self._asks):
            return self._refuse(worker, reason)
        missing = _missing_gpu()
        if missing:
            logger.info("dask_coop: no GPU on %s (%s); NumPy chunks only", worker.address, missing)
            return None
        sharing = None
        if WorkerGpus.name in getattr(worker, "plugins", {}):
            # The worker was started so; another CoopPlugin does not change that.
            self.all_gpus = True
        elif self.all_gpus:
            sharing = worker.plugin_add(WorkerGpus(self._timeout), catch_errors=False)
        self._give_back = take_over(self._copies)
        self._stop = threading.Event()
        arguments = worker, self._stop
        threading.Thread(target=self._warm, args=arguments, name="dask_coop-warm").start()
        return sharing

    def teardown(self, worker: Worker) -> None:
        """Stop loading kernels and free pinned memory; distributed calls this at the end."""
        if self._stop is not None:
            self._stop.set()
        give_back, self._give_back = self._give_back, None
        if give_back is not None and give_back():
            _close_rings()

    async def _refuse(self, worker: Worker, reason: str) -> None:
        with suppress(ValueError, AttributeError, KeyError):
            if worker.periodic_callbacks["heartbeat"].is_running():
                # A running worker would keep the plugin and raise again at each registration.
                await worker.scheduler.unregister_worker_plugin(name=self.name)
        raise RuntimeError(reason)

    def _warm(self, worker: Worker, stop: threading.Event) -> None:
        """Compile or load the kernels; log a failure as a warning."""
        address = worker.address
        try:
            with metered(worker):
                self._load(address, stop)
        except Exception as error:
            # Calls that need a kernel that failed will raise.
            logger.warning("dask_coop: %s could not warm its kernels: %s", address, error)

    def _load(self, address: str, stop: threading.Event) -> None:
        from cupy.cuda import Device, runtime

        import dask_coop.chunks.cupy.backend  # noqa: F401  what the first task would import
        from dask_coop.chunks.cupy.program_sets import common
        from dask_coop.cuda.devices import device
        from dask_coop.cuda.launch import load
        from dask_coop.cuda.sharing import for_each

        start = time.perf_counter()
        count = runtime.getDeviceCount()
        ordinals = [*range(count)] if self.all_gpus else [runtime.getDevice()]
        kernels = [(code, gpu) for gpu in ordinals for code in common(self.dtypes, device(gpu))]
        # Workers of one machine share the cache on disk: each compiles in another order.
        random.Random(address).shuffle(kernels)

        def ready(kernel: tuple[str, int]) -> None:
            source, ordinal = kernel
            with Device(ordinal):
                # Loading needs the primary context, which the runtime makes on first use.
                runtime.free(0)
                load(source, ordinal)

        for_each(ready, kernels, stop)
        if stop.is_set():
            return
        names = Counter(
            f"{runtime.getDeviceProperties(gpu)['name'].decode()} ({device(gpu).arch})"
            for gpu in ordinals
        )
        logger.info(
            "dask_coop: %s has %s; %d kernels ready in %.1f s",
            address,
            ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items()),
            len({source for source, _ in kernels}),
            time.perf_counter() - start,
        )
        if reason := self.all_gpus and _objection(ordinals):
            logger.warning(
                "dask_coop: %s does collectives on each of its GPUs by itself, because %s: "
                "`dask cuda worker`, with a worker for each, is faster there",
                address,
                reason,
            )


def _close_rings() -> None:
    """Free the pinned memory of this process, and the chunks that it keeps on GPUs."""
    from dask_coop.cuda import transfer

    KEPT_CHUNKS.clear()
    transfer.close()


def _objection(ordinals: list[int]) -> str:
    """Return why no launch can span these GPUs, or an empty string."""
    from dask_coop.cuda.team import team_of

    team = team_of(ordinals)
    return "" if team is None else team.objection


def _missing_gpu() -> str:
    """Return why CuPy cannot be used here, or an empty string."""
    try:
        from cupy.cuda import runtime
    except ImportError as error:
        return f"CuPy does not import: {error}"
    try:
        return "" if runtime.getDeviceCount() else "no device"
    except runtime.CUDARuntimeError as error:
        return str(error)
