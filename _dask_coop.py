"""Our configuration, registered when Dask is imported.

Dask calls `register` on its own import: it is an entry point of the group ``dask.sizeof``.
"""

from __future__ import annotations

from types import ModuleType

from _dask_coop_early import WhenImported, defaults, wanted_chunks


def register(sizeof: object) -> None:
    """Register the configuration; import dask_coop behind Dask's arrays if DASK_COOP_INSTALL asks.

    So ``dask config get coop.engine`` and whatever else imports Dask alone know of our keys.
    """
    defaults()
    if wanted_chunks() is None:
        return

    def done(module: ModuleType) -> None:
        waiting.stop()
        # Which reads DASK_COOP_INSTALL.
        import dask_coop  # noqa: F401

    waiting = WhenImported(["dask.array"], done)
    waiting.start()
