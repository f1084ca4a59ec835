"""Make sure that all processes of a round have one version of the library.

Every message carries the protocol's number and the sender's version (`signed`), and handlers
decline messages of another version (`same_version`). The plugins that add the handlers also reach
workers and schedulers without dask_coop. There, a pickle that names one of our classes would raise
and keep a worker from starting, so plugins are pickled by value (`Portable`). Where the library
imports, the pickle becomes the plugin; elsewhere a stand-in that reports what is missing::

    client --plugin--> the library imports:  the plugin, which compares versions itself
                       it does not:          handlers that decline; for CoopPlugin, an error, also
                                             when a task of a graph cannot be read

Later versions must keep the modules and names of the plugins, the keyword `asks`, and answers that
decline.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from distributed import Scheduler, SchedulerPlugin, Worker
from distributed.protocol.pickle import dumps

#: The protocol's number; raise it with every change of messages, jobs or answers.
PROTOCOL = 2

Handler = Callable[..., Coroutine[Any, Any, dict[str, Any]]]


def here() -> tuple[int, str]:
    """Return the protocol's number and the version of the library in this process."""
    # By sys.modules, as modules may not import the package above them; it is always loaded.
    return PROTOCOL, sys.modules["dask_coop"].__version__


def difference(place: str, there: Sequence[Any] | str, asks: Sequence[Any]) -> str:
    """Return the message on two versions that do not fit.

    Parameters
    ----------
    place : str
        A worker or the scheduler, with its address.
    there : sequence or str
        The result of `here` at that place, or a text.
    asks : sequence
        The result of `here` at the client.
    """
    has = there if isinstance(there, str) else _named(there)
    return (
        f"{place} has {has}, and the client has {_named(asks)}: "
        "install one version for the client, the scheduler and all workers"
    )


def _named(version: Sequence[Any]) -> str:
    protocol, release = version
    return f"dask_coop {release} (protocol {protocol})"


def where(server: Scheduler | Worker) -> str:
    """Return the role and the address of a server, for messages."""
    role = "the scheduler" if isinstance(server, Scheduler) else "worker"
    return f"{role} {server.address}"


def signed(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the sender's version."""
    return message | {"asks": here()}


def same_version(server: Scheduler | Worker, handler: Handler) -> Handler:
    """Return a handler that declines the messages of another version."""

    async def handle(*, asks: Any, **message: Any) -> dict[str, Any]:
        if reason := mismatch(server, asks):
            return {"status": "declined", "reason": reason}
        return await handler(**message)

    return handle


def mismatch(server: Scheduler | Worker, asks: Any) -> str:
    """Return a message if a server's version is not the sender's, else an empty string."""
    version = here()
    return "" if tuple(asks) == version else difference(where(server), version, asks)


class Portable:
    """A plugin that can be unpickled without this library."""

    #: The names of the handlers of a stand-in.
    handlers: tuple[str, ...] = ()

    def __reduce__(self) -> Any:
        """Return a function that rebuilds the plugin, or a stand-in."""
        plugin = dumps((type(self), self.__dict__))
        # The message travels along: without the library there is no code that could write it.
        text = difference("{}", "{}", here())
        at_scheduler = isinstance(self, SchedulerPlugin)
        call = _maker(), (plugin, text, self.handlers, at_scheduler)
        return pickle.loads, (dumps(_Call(call)),)


class _Call:
    """An object that unpickles as the result of calling a function."""

    def __init__(self, call: tuple[Any, ...]) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        """Return the function and its arguments."""
        return self._call


def _maker() -> Callable[..., Any]:
    """Return the function that makes the plugin or its stand-in during unpickling.

    A nested function is pickled by value, and this one names nothing of the library.
    """

    def make(plugin: bytes, text: str, handlers: tuple[str, ...], at_scheduler: bool) -> Any:
        import pickle

        try:
            kind, attributes = pickle.loads(plugin)
            unpickled = kind.__new__(kind)
            unpickled.__dict__.update(attributes)
            return unpickled
        except Exception as error:
            fault = f"no dask_coop that suits ({type(error).__name__}: {error})"

        import sys
        from contextlib import suppress

        from distributed import SchedulerPlugin, WorkerPlugin

        class Refusal:
            """An import finder that refuses the library to a graph's tasks."""

            def __init__(self, reason: str) -> None:
                self.reason = reason

            def find_spec(self, name: str, *args: Any) -> None:
                if name.partition(".")[0] == "dask_coop":
                    raise ImportError(self.reason)

        def decline(server: Any, where: str) -> None:
            async def handle(**message: Any) -> Any:
                return {"status": "declined", "reason": text.format(where, fault)}

            server.handlers.update((op, handle) for op in handlers if op not in server.handlers)

        class AtScheduler(SchedulerPlugin):  # type: ignore[misc]
            def start(self, scheduler: Any) -> None:
                decline(scheduler, f"the scheduler {scheduler.address}")

        class AtWorker(WorkerPlugin):  # type: ignore[misc]
            async def setup(self, worker: Any) -> None:
                where = f"worker {worker.address}"
                if handlers:
                    return decline(worker, where)
                reason = text.format(where, fault)
                sys.meta_path.insert(0, Refusal(reason))
                with suppress(ValueError, AttributeError, KeyError):
                    if worker.periodic_callbacks["heartbeat"].is_running():
                        # A running worker would keep the plugin and raise again at each
                        # registration.
                        await worker.scheduler.unregister_worker_plugin(name="dask-coop")
                raise RuntimeError(reason)

        return AtScheduler() if at_scheduler else AtWorker()

    return make
