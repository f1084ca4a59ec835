"""A run, or the page of what the last one found.

=============== ==================================================================================
SOAK_CALLS      how many calls: 2,000
SOAK_SEED       by default random; printed
SOAK_DEADLINE   seconds that a call may take: 120
SOAK_CHUNKS     "numpy", "cupy" or "auto", which is CuPy where there is a GPU
SOAK_REPORT     the file to write; by default the one that docs/reliability.md is made of
=============== ==================================================================================
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

from fuzz.work import chunks_of

from soak.page import FAULTS, RESULTS, machine, summary, write
from soak.run import DEADLINE, Hung, soak


def main() -> int:
    """Run as the environment says, and say what came of it."""
    get = os.environ.get
    seed = int(get("SOAK_SEED") or secrets.randbelow(10**6))
    calls = int(get("SOAK_CALLS") or 2000)
    xp = chunks_of(get("SOAK_CHUNKS", "auto"))
    target = Path(get("SOAK_REPORT") or RESULTS[xp.__name__])
    print(f"{calls:,} calls, seed {seed}, {xp.__name__} chunks", flush=True)
    hung = False
    try:
        report = soak(calls, seed, float(get("SOAK_DEADLINE") or DEADLINE), xp=xp)
    except Hung as error:
        (report,), hung = error.args, True
    report = {**machine(xp), **report}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(summary(report), flush=True)
    if target in RESULTS.values():
        write()
    status = int(any(report[fault] for fault in FAULTS))
    if hung:
        # What hangs is not waited for; workers end with this process.
        os._exit(status)
    return status


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write"]:
            sys.exit(write())
        case []:
            sys.exit(main())
    sys.exit(__doc__)
