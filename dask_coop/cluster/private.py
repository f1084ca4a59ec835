"""List the private names of distributed and Dask that the package uses, and the effects of a loss.

A later release may drop or change one. A collective notices before it begins (`require`) or where
it uses the name (`relying`), and then runs as a graph::

    distributed raises --relying--> Incompatible --answer--> client: a graph, and a warning
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import dask
import distributed

from dask_coop.errors import Absent, Declined, Incompatible, Refused

#: Named so because distributed shows only its own loggers.
logger: logging.Logger = logging.getLogger("distributed.dask_coop")

Asynchronous = Callable[..., Coroutine[Any, Any, dict[str, Any]]]

#: Exceptions that do not come from a changed name.
_EXPECTED = (Absent, Declined, OSError, CancelledError, MemoryError, Refused)


GRAPH = "calls run as graphs, with a warning"
IMPORTED = "dask_coop does not import"
UNSEEN = "that is not shown, with a warning in the log"


class Private(NamedTuple):
    """A private name.

    Attributes
    ----------
    of : str
        The class or module that has it.
    name : str
    users : str
        Modules that use it, separated by blanks.
    why : str
        Its purpose, as the end of a sentence on the name.
    without : str
        The effect of its loss.
    """

    of: str
    name: str
    users: str
    why: str
    without: str = GRAPH


_CLIENT, _FUTURE = "distributed.client.Client", "distributed.client.Future"
_SCHEDULER, _WORKER = "distributed.scheduler.Scheduler", "distributed.worker.Worker"
_PAGE, _SPEC = "distributed.dashboard", "dask._task_spec"

PRIVATE: tuple[Private, ...] = (
    Private(_CLIENT, "_scatter", "cluster/client", "which sends labels to several workers at once"),
    Private(_CLIENT, "_refcount_lock", "cluster/client", "under which many results are released"),
    Private(_CLIENT, "refcount", "cluster/client", "which counts the futures of a result"),
    Private(_CLIENT, "futures", "cluster/client", "the states of futures"),
    Private(_CLIENT, "generation", "cluster/client", "one more with every restart"),
    Private(_CLIENT, "_send_to_scheduler", "cluster/client", "which releases many results at once"),
    Private(_FUTURE, "_state", "cluster/client", "which says that a result is there"),
    Private(
        _FUTURE,
        "_verify_initialized",
        "cluster/client",
        "which a future calls before its result is released",
    ),
    Private(_FUTURE, "_cleared", "cluster/client", "whether a result was released"),
    Private(_FUTURE, "_generation", "cluster/client", "that of the client when it was made"),
    Private(
        "distributed.client",
        "_wait",
        "cluster/futures",
        "which waits for futures of any client",
        "distributed.wait does so, and changes the current client meanwhile",
    ),
    Private("distributed.core", "clean_exception", "cluster/client", "which unpacks exceptions"),
    Private("distributed.core", "error_message", "cluster/worker", "which packs exceptions"),
    Private("distributed.core", "Status", "cluster/scheduler", "in which workers are"),
    Private(
        "distributed.protocol.pickle",
        "dumps",
        "cluster/client cluster/versions",
        "which pickles jobs",
    ),
    Private("distributed.protocol", "deserialize", "cluster/worker", "which unpacks arrays"),
    Private("distributed.protocol", "Serialize", "cluster/worker", "which packs arrays"),
    Private("distributed.protocol", "Serialized", "cluster/worker", "a packed array"),
    Private(
        "distributed.protocol.compression", "decompress", "cluster/worker", "which unpacks arrays"
    ),
    Private(_SCHEDULER, "handlers", "cluster/scheduler", "by which clients ask for rounds"),
    Private(_SCHEDULER, "rpc", "cluster/scheduler", "its connections to workers, and how many"),
    Private(_SCHEDULER, "clients", "cluster/scheduler", "the clients to which results belong"),
    Private(_SCHEDULER, "new_task", "cluster/scheduler", "by which results of scans are known"),
    Private(_SCHEDULER, "add_replica", "cluster/scheduler", "which says where a result lies"),
    Private(
        _SCHEDULER,
        "client_releases_keys",
        "cluster/scheduler",
        "which releases results of calls that end early",
    ),
    Private(_SCHEDULER, "worker_ttl", "cluster/silence", "after which silent workers are lost"),
    Private(
        _SCHEDULER,
        "stream_handlers",
        "cluster/scheduler",
        "which releases many keys without a search for garbage",
        "releasing many results takes longer",
    ),
    Private(
        _SCHEDULER,
        "idle_timeout",
        "cluster/calls",
        "how long it may be idle",
        "an idle scheduler may close in a call, with a warning in its log",
    ),
    Private(
        _SCHEDULER,
        "idle_since",
        "cluster/calls",
        "which a call sets back",
        "an idle scheduler may close in a call",
    ),
    Private("distributed.scheduler.TaskState", "set_nbytes", "cluster/scheduler", "of a result"),
    Private("distributed.scheduler.TaskState", "who_wants", "cluster/scheduler", "its client"),
    Private("distributed.scheduler.ClientState", "wants_what", "cluster/scheduler", "its results"),
    Private("distributed.scheduler.WorkerState", "last_seen", "cluster/silence", "in a heartbeat"),
    Private("distributed.scheduler", "heartbeat_interval", "cluster/silence", "between heartbeats"),
    Private(_WORKER, "handlers", "cluster/worker", "by which the scheduler asks for rounds"),
    Private(_WORKER, "executors", "cluster/worker", "whose threads end with the worker"),
    Private(_WORKER, "rpc", "cluster/worker", "its connections to other workers"),
    Private(_WORKER, "state", "cluster/worker cluster/memory", "its threads, and sizes of chunks"),
    Private(_WORKER, "update_data", "cluster/worker", "which keeps the results of a scan"),
    Private(_WORKER, "batched_send", "cluster/worker", "which reports the results of a scan"),
    Private(_WORKER, "memory_manager", "cluster/memory", "which has the limit of its memory"),
    Private(_WORKER, "monitor", "cluster/memory", "which measures the memory of its process"),
    Private(
        "distributed.worker_state_machine",
        "AddKeysMsg",
        "cluster/worker",
        "which reports the results of a scan",
    ),
    Private(
        "distributed.worker_memory.WorkerMemoryManager",
        "memory_limit",
        "cluster/memory",
        "of the worker",
    ),
    Private(
        "distributed.worker_memory.WorkerMemoryManager",
        "memory_pause_fraction",
        "cluster/memory",
        "at which the worker pauses",
    ),
    Private(
        "distributed.worker_memory.WorkerMemoryManager",
        "memory_spill_fraction",
        "cluster/memory",
        "at which the worker spills",
    ),
    Private(
        "distributed.system_monitor.SystemMonitor",
        "get_process_memory",
        "cluster/memory",
        "the memory of the worker",
    ),
    Private(
        "distributed.spill.SpillBuffer",
        "fast",
        "cluster/memory",
        "the chunks in memory",
        "chunks are looked up where spilled ones are, too",
    ),
    Private(
        "distributed.spill.SpillBuffer",
        "slow",
        "cluster/memory",
        "the chunks that are spilled",
        "spilled chunks come to memory when they are read",
    ),
    Private(
        "distributed.spill.SpillBuffer",
        "evict",
        "cluster/memory",
        "which spills a chunk",
        "calls without room for their results run as graphs",
    ),
    Private(
        _WORKER,
        "periodic_callbacks",
        "cluster/plugin",
        "whether it has started",
        "a plugin of another version is not unregistered",
    ),
    Private(
        _WORKER,
        "plugins",
        "cluster/plugin",
        "whether it uses all GPUs",
        "CoopPlugin() has a worker with all GPUs use one for collectives",
    ),
    Private(
        _WORKER,
        "plugin_add",
        "cluster/plugin cluster/preload",
        "by which it uses all GPUs",
        "`dask-coop worker` does not start",
    ),
    Private(
        "distributed.worker_state_machine.TaskState",
        "run_spec",
        "cluster/gpus",
        "which is put on one of several GPUs",
        "tasks run on the first GPU, with a line in the log",
    ),
    Private(
        "distributed.metrics.ContextMeter",
        "digest_metric",
        "meters",
        "by which tasks count",
        "counts of tasks are not shown",
    ),
    Private(_SCHEDULER, "digest_metric", "cluster/monitor", "by which it counts", UNSEEN),
    Private(_WORKER, "digest_metric", "cluster/monitor", "by which it counts", UNSEEN),
    Private(_SCHEDULER, "digests_total", "cluster/counts", "what it has counted", UNSEEN),
    Private(
        _SCHEDULER,
        "cumulative_worker_metrics",
        "cluster/counts",
        "counts of workers",
        "counts of workers are not shown",
    ),
    Private(
        _SCHEDULER, "get_events", "cluster/counts cluster/monitor", "calls and fallbacks", UNSEEN
    ),
    Private(_SCHEDULER, "plugins", "cluster/scheduler", "among which is the monitor", UNSEEN),
    Private(_SCHEDULER, "http_application", "cluster/page", "which has the pages", UNSEEN),
    Private("distributed.metrics", "context_meter", "cluster/monitor", "of a round", UNSEEN),
    Private("distributed.metrics", "time", "cluster/monitor", "that of the task stream", UNSEEN),
    Private("distributed.utils", "nbytes", "cluster/monitor", "of what is sent", UNSEEN),
    Private(
        "distributed.diagnostics.task_stream", "colors", "cluster/monitor", "of rounds", UNSEEN
    ),
    Private(
        "distributed.diagnostics.task_stream.TaskStreamPlugin",
        "transition",
        "cluster/monitor",
        "which draws rounds",
        UNSEEN,
    ),
    Private(
        "distributed.http.prometheus", "PrometheusCollector", "cluster/monitor", "/metrics", UNSEEN
    ),
    Private(f"{_PAGE}.components", "DashboardComponent", "cluster/page", "the page", UNSEEN),
    Private(f"{_PAGE}.components", "add_periodic_callback", "cluster/page", "the page", UNSEEN),
    Private(f"{_PAGE}.components.scheduler", "BOKEH_THEME", "cluster/page", "its looks", UNSEEN),
    Private(f"{_PAGE}.components.scheduler", "env", "cluster/page", "its template", UNSEEN),
    Private(f"{_PAGE}.core", "BokehApplication", "cluster/page", "which serves it", UNSEEN),
    Private(f"{_PAGE}.scheduler", "template_variables", "cluster/page", "the navigation", UNSEEN),
    Private(
        _SPEC,
        "convert_legacy_graph",
        "graph/fusion api/explain node/run",
        "which makes tasks of tuples",
        IMPORTED,
    ),
    Private(_SPEC, "cull", "graph/fusion node/run", "which leaves out unneeded tasks", IMPORTED),
    Private(_SPEC, "NestedContainer", "graph/inputs", "a container with tasks", IMPORTED),
    Private(
        "dask.blockwise", "blockwise_token", "graph/fusion", "which names inputs of tasks", IMPORTED
    ),
    Private("dask.base", "clone_key", "graph/fusion", "which names copies of chunks", IMPORTED),
    Private("dask.array.core", "new_da_object", "graph/layers", "which makes arrays", IMPORTED),
    Private(
        "dask.array.core", "load_store_chunk", "graph/transfer", "which stores chunks", IMPORTED
    ),
    Private(
        "dask.array.core",
        "finalize",
        "node/inline graph/transfer",
        "which joins chunks",
        IMPORTED,
    ),
    Private(
        "dask.array.core",
        "_HANDLED_FUNCTIONS",
        "api/install/substitutes",
        "by which NumPy calls functions of arrays",
        IMPORTED,
    ),
    Private("dask.local", "get_async", "node/node", "which runs the tasks of a Node", IMPORTED),
    Private(
        "dask._expr",
        "HLGExpr",
        "node/inline",
        "a graph that Dask has yet to optimize",
        "a Node has Dask optimize it, which takes longer",
    ),
    Private(
        "dask._expr",
        "_HLGExprSequence",
        "node/inline",
        "several of them",
        "a Node has Dask optimize them, which takes longer",
    ),
    Private(
        "dask.array._array_expr._expr",
        "ArrayExpr",
        "api/call/expressions",
        "an array where queries are planned",
        "functions raise ImportError where Dask plans queries",
    ),
    Private(
        "dask._collections",
        "new_collection",
        "api/call/expressions",
        "which makes one",
        "functions raise ImportError where Dask plans queries",
    ),
)


@contextmanager
def relying() -> Iterator[None]:
    """Turn unexpected exceptions within into `Incompatible`; no user's job may run within."""
    try:
        yield
    except _EXPECTED:
        raise
    except Exception as error:
        raise Incompatible(said(error)) from None


def relied_on(handler: Asynchronous) -> Asynchronous:
    """Return a handler that declines where the original raises an unexpected exception."""

    @wraps(handler)
    async def handle(**message: Any) -> dict[str, Any]:
        try:
            return await handler(**message)
        except _EXPECTED:
            raise
        except Exception as error:
            return _refusal(said(error))

    return handle


def refusing(server: Any, handlers: Iterable[str], reason: Incompatible) -> None:
    """Make a server decline all rounds, and log why."""
    logger.warning("no collectives on %s: %s", server, reason)

    async def handle(**message: Any) -> dict[str, Any]:
        return _refusal(str(reason))

    if hasattr(server, "handlers"):
        server.handlers.update(dict.fromkeys(handlers, handle))


def _refusal(reason: str) -> dict[str, Any]:
    return {"status": "declined", "reason": reason, "is_incompatible": True}


def said(error: Exception) -> str:
    """Return a message with the exception, its place, and the versions that may not fit."""
    stack = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in stack if frame.filename.startswith(_FOLDER)] or stack[-1:]
    where = "".join(f", {Path(frame.filename).name}:{frame.lineno}" for frame in ours[-1:])
    return (
        f"distributed {distributed.__version__} or Dask {dask.__version__} may not be as this "
        f"dask_coop expects: {error!r}{where}"
    )


_FOLDER = str(Path(__file__).parents[1])


def require(thing: Any) -> None:
    """Raise AttributeError if a client or server lacks a name that every collective needs."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(thing).__mro__}
    for row in PRIVATE:
        if row.of in kinds and row.without == GRAPH and not hasattr(thing, row.name):
            raise AttributeError(f"{row.of} has no {row.name}, {row.why}")
