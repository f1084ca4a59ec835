"""Versions: who takes part in a round has the same one, and who does not says so.

Every message carries the protocol's number and the version of the library (`signed`), and a handler
declines what another version asks (`same_version`). The plugins that bring the handlers also go to
workers, and to a scheduler, that have no dask_coop: a pickle that names a class of ours would raise
there, and keep a worker from starting. So a plugin travels by value (`Portable`). Where the library
can be imported it is the plugin; elsewhere it is a stand-in, which says what is missing::

    client --plugin--> the library imports:  the plugin, which compares versions itself
                       it does not:          handlers that decline; of CoopPlugin, an error, and
                                             the same where a task of a graph cannot be read

A later version keeps the modules and names of the plugins, the keyword `asks`, and answers that
decline.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from distributed import Scheduler, SchedulerPlugin, Worker
from distributed.protocol.pickle import dumps

#: What a round's messages are: one more with every change of their fields, of jobs or of answers.
PROTOCOL = 2

Handler = Callable[..., Coroutine[Any, Any, dict[str, Any]]]


def here() -> tuple[int, str]:
    """Return what a message says of its sender: the protocol, and the version of the library."""
    # The package's face is above, and is imported before what it is made of.
    return PROTOCOL, sys.modules["dask_coop"].__version__


def difference(place: str, found: Sequence[Any] | str, asks: Sequence[Any]) -> str:
    """Return the sentence on two versions that do not go together.

    Parameters
    ----------
    place : str
        A worker or the scheduler, with its address.
    found : sequence or str
        What `here` returns there, or what is there instead.
    asks : sequence
        What it returns where the call comes from.
    """
    has = found if isinstance(found, str) else _named(found)
    return (
        f"{place} has {has}, and the client has {_named(asks)}: "
        "install one version for the client, the scheduler and all workers"
    )


def _named(version: Sequence[Any]) -> str:
    protocol, release = version
    return f"dask_coop {release} (protocol {protocol})"


def where(server: Scheduler | Worker) -> str:
    """Return what a server is, and its address."""
    role = "the scheduler" if isinstance(server, Scheduler) else "worker"
    return f"{role} {server.address}"


def signed(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that says which version it is of."""
    return message | {"asks": here()}


def same_version(server: Scheduler | Worker, handler: Handler) -> Handler:
    """Return a handler that declines the messages of another version."""

    async def handle(*, asks: Any, **message: Any) -> dict[str, Any]:
        if reason := mismatch(server, asks):
            return {"status": "declined", "reason": reason}
        return await handler(**message)

    return handle


def mismatch(server: Scheduler | Worker, asks: Any) -> str:
    """Say that a server has another version than who asks; "" if it has the same."""
    found = here()
    return "" if tuple(asks) == found else difference(where(server), found, asks)


class Portable:
    """A plugin that can be unpickled where this library is not."""

    #: The names of the handlers that a stand-in has.
    handlers: tuple[str, ...] = ()

    def __reduce__(self) -> Any:
        """Return what makes it again, or a stand-in."""
        plugin = dumps((type(self), self.__dict__))
        # There is nothing there that could tell it.
        told = difference("{}", "{}", here())
        at_scheduler = isinstance(self, SchedulerPlugin)
        made = _maker(), (plugin, told, self.handlers, at_scheduler)
        return pickle.loads, (dumps(_Call(made)),)


class _Call:
    """Is unpickled as what a function returns."""

    def __init__(self, made: tuple[Any, ...]) -> None:
        self._made = made

    def __reduce__(self) -> Any:
        """Return the function and its arguments."""
        return self._made


def _maker() -> Callable[..., Any]:
    """Return what makes the plugin, or its stand-in, where it is unpickled.

    A function within a function is pickled by value, and this one names nothing of the library.
    """

    def make(plugin: bytes, told: str, handlers: tuple[str, ...], at_scheduler: bool) -> Any:
        import pickle

        try:
            kind, attributes = pickle.loads(plugin)
            made = kind.__new__(kind)
            made.__dict__.update(attributes)
            return made
        except Exception as error:
            found = f"no dask_coop that suits ({type(error).__name__}: {error})"

        import sys
        from contextlib import suppress

        from distributed import SchedulerPlugin, WorkerPlugin

        class Refusal:
            """Refuses to import the library for a graph's tasks."""

            def __init__(self, reason: str) -> None:
                self.reason = reason

            def find_spec(self, name: str, *args: Any) -> None:
                if name.partition(".")[0] == "dask_coop":
                    raise ImportError(self.reason)

        def decline(server: Any, where: str) -> None:
            async def handle(**message: Any) -> Any:
                return {"status": "declined", "reason": told.format(where, found)}

            server.handlers.update((op, handle) for op in handlers if op not in server.handlers)

        class AtScheduler(SchedulerPlugin):  # type: ignore[misc]
            def start(self, scheduler: Any) -> None:
                decline(scheduler, f"the scheduler {scheduler.address}")

        class AtWorker(WorkerPlugin):  # type: ignore[misc]
            async def setup(self, worker: Any) -> None:
                where = f"worker {worker.address}"
                if handlers:
                    return decline(worker, where)
                reason = told.format(where, found)
                sys.meta_path.insert(0, Refusal(reason))
                with suppress(ValueError, AttributeError, KeyError):
                    if worker.periodic_callbacks["heartbeat"].is_running():
                        # It was there before: to register the plugin again is to say so again.
                        await worker.scheduler.unregister_worker_plugin(name="dask-coop")
                raise RuntimeError(reason)

        return AtScheduler() if at_scheduler else AtWorker()

    return make
