"""A run, or the page of what the last one found.

=============== ==================================================================================
SOAK_CALLS      how many random calls: 2,000
SOAK_PHASES     some of "calls,memory,callers,pool,idle,adaptive"; by default all of them, with
                CuPy chunks "calls"
SOAK_SEED       by default random; printed
SOAK_DEADLINE   seconds that a call may take: 120
SOAK_CHUNKS     "numpy", "cupy" or "auto", which is CuPy where there is a GPU
SOAK_REPORT     the file to write; by default the one that docs/reliability.md is made of, or
                build/soak.json where phases are left out
=============== ==================================================================================
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from fuzz.work import chunks_of

from soak.page import REPOSITORY, RESULTS, faults, machine, summary, write
from soak.phase import run as phase_of
from soak.phases import NAMES, PHASES, chosen
from soak.run import DEADLINE, Hung, soak


def main() -> int:
    """Run as the environment says, and say what came of it."""
    get = os.environ.get
    xp = chunks_of(get("SOAK_CHUNKS", "auto"))
    whole = NAMES if xp.__name__ == "numpy" else NAMES[:1]
    names = chosen(get("SOAK_PHASES") or ",".join(whole))
    deadline = float(get("SOAK_DEADLINE") or DEADLINE)
    target = RESULTS[xp.__name__] if {*whole} <= {*names} else REPOSITORY / "build" / "soak.json"
    target = Path(get("SOAK_REPORT") or target)
    report, hung = machine(xp), False
    if "calls" in names:
        hung = random_calls(report, deadline, xp)
    for phase in PHASES:
        if phase.name in names and not hung:
            print(f"{phase.name}: {phase.promise}", flush=True)
            found, hung = phase_of(phase, deadline)
            report.setdefault("phases", {})[phase.name] = found
            print(
                f"{found['seconds']} s: {found['counts']}", *found["faults"], sep="\n", flush=True
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(report), flush=True)
    if target in RESULTS.values():
        write()
    status = int(any(faults(report).values()))
    if hung:
        # What hangs is not waited for; workers end with this process.
        os._exit(status)
    return status


def random_calls(report: dict[str, Any], deadline: float, xp: Any) -> bool:
    """Make random calls, add what came of them to a report, and tell whether one hangs."""
    seed = int(os.environ.get("SOAK_SEED") or secrets.randbelow(10**6))
    calls = int(os.environ.get("SOAK_CALLS") or 2000)
    print(f"{calls:,} calls, seed {seed}, {xp.__name__} chunks", flush=True)
    try:
        report |= soak(calls, seed, deadline, xp=xp)
    except Hung as error:
        report |= error.args[0]
        return True
    return False


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write"]:
            sys.exit(write())
        case []:
            sys.exit(main())
    sys.exit(__doc__)
