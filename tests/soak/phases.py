"""The phases, beside that of the random calls (run.py): each deals with a cluster in one way.

What breaks its promise is written down::

    memory     small workers, data beyond their memory     nobody dies, nothing is lost
    callers    clients that leave in the middle of calls   their work ends, others' calls go on
    pool       many callers, few connections               all end, with the right results
    idle       a patience that is shorter than a call      the cluster stays, and closes afterwards
    adaptive   a cluster that closes idle workers          none that is at work is closed

Chunks are NumPy's.
"""

from __future__ import annotations

from soak.callers import CALLERS
from soak.memory import MEMORY
from soak.scheduling import ADAPTIVE, PATIENCE, POOL

PHASES = MEMORY, CALLERS, POOL, PATIENCE, ADAPTIVE

#: What ``SOAK_PHASES`` may have.
NAMES = ("calls", *(phase.name for phase in PHASES))


def chosen(names: str) -> list[str]:
    """Return the phases of a list with commas; all of them if it is empty.

    Raises
    ------
    SystemExit
        If one is none.
    """
    found = [name.strip() for name in names.split(",") if name.strip()]
    if bad := [name for name in found if name not in NAMES]:
        raise SystemExit(f"SOAK_PHASES must be of {', '.join(NAMES)}, got {bad[0]!r}")
    return found or [*NAMES]
