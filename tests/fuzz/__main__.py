"""A run over several processes, some of them with query planning on; or one case again.

=============== ==================================================================================
FUZZ_SECONDS    how long to draw cases: 60
FUZZ_SEED       by default random; printed
FUZZ_CHUNKS     "numpy", "cupy" or "auto", which is CuPy where there is a GPU
FUZZ_PROCESSES  by default one fewer than there are processors, from 2 to 14 for each GPU; of
                several processes each sees one GPU
FUZZ_ONLY       families to keep to, with commas between them; "files" is damaged files, for which
                tests/fuzz/mutants.py lists what can be set
FUZZ_ENGINES    engines to draw from, with commas between them: "graph,node,collective,dask-array"
FUZZ_LOG        a file that gets every failure in full: build/fuzz.log
FUZZ_REPORT     a file to write the outcome to, which `tools/gpu_run.py --add` takes
FUZZ_COMMIT     what to call the commit there, outside of a repository
=============== ==================================================================================
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dask_coop.cli import info
from fuzz import mutants
from fuzz.engines import ENGINES, engine_of
from fuzz.families import draw_case
from fuzz.judge import judge
from fuzz.shrink import shrink
from fuzz.work import Found, Shown, chunks_of, fails_alike, work

#: Of as many processes one has query planning on, and one that works on NumPy chunks checks the
#: indices of compiled loops.
PLANNING = 4
#: What processes count by family, the last one by engine and family.
COUNTS = ("cases", "failures", "skipped", "engines")
#: How much longer than its time a process may take: it may be cutting down a case.
GRACE = 45


def one(seed: int, index: int) -> int:
    """Judge one case and say what comes of it."""
    xp = chunks_of(os.environ.get("FUZZ_CHUNKS", "auto"))
    case = draw_case(seed, index)
    engine = engine_of(case, seed, index, xp, engines_asked())
    print(f"by {engine}: {case.code(xp)}")
    failure = judge(case, xp, engine)
    if failure is None:
        print("holds")
        return 0
    print(f"{failure.kind}: {failure.details}\n\nthe least such case:")
    least = shrink(case, fails_alike(failure, xp, engine))
    print(f"{(judge(least, xp, engine) or failure).details}\n    {least.code(xp)}")
    return 1


def engines_asked() -> tuple[str, ...]:
    """Return the engines that the environment asks for."""
    asked = tuple(filter(None, os.environ.get("FUZZ_ENGINES", "").split(","))) or ENGINES
    if unknown := {*asked} - {*ENGINES}:
        raise ValueError(f"there is no engine {min(unknown)!r}, only {', '.join(ENGINES)}")
    return asked


def worker(given: dict[str, Any]) -> int:
    """Do one process's share, and write failures and the outcome as lines of JSON."""
    progress = os.open(given.pop("progress"), os.O_WRONLY | os.O_CREAT)

    def say(**line: Any) -> None:
        print(json.dumps(line), flush=True)

    tally = work(
        chunks_of(given.pop("chunks")),
        only=tuple(given.pop("only")),
        engines=tuple(given.pop("engines", ENGINES)),
        started=lambda index: os.pwrite(progress, b"%020d" % index, 0),
        shown=lambda found: say(found=vars(found)),
        **given,
    )
    pace = [tally.pace[i] for i in range(max(tally.pace, default=-1) + 1)]
    counts = {name: getattr(tally, name) for name in COUNTS}
    say(tally=counts, pace=pace)
    return 0


class Run:
    """The processes of a run and what they have said."""

    def __init__(self, seed: int, seconds: float, processes: int, chunks: str, log: Path) -> None:
        self.seed, self.seconds, self.chunks = seed, seconds, chunks
        self.processes, self.log = processes, log
        self.gpus = _visible() if chunks == "cupy" and processes > 1 else []
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        self.counts = {name: Counter[str]() for name in COUNTS}
        self.shown, self.pace = Shown(), Counter[int]()
        self.lock = threading.Lock()

    def go(self) -> None:
        """Run all processes to their ends."""
        with tempfile.TemporaryDirectory() as folder:
            threads = [
                threading.Thread(target=self._watch, args=(k, Path(folder, str(k))))
                for k in range(self.processes)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def environment(self, k: int) -> dict[str, str]:
        """Return the environment of a process."""
        own = {"DASK_ARRAY__QUERY_PLANNING": str(k % PLANNING == 1)}
        if self.chunks == "numpy" and k % PLANNING == PLANNING - 1:
            own["NUMBA_BOUNDSCHECK"] = "1"
        if self.gpus:
            # So that those with query planning are on all GPUs.
            own["CUDA_VISIBLE_DEVICES"] = self.gpus[(k + k // PLANNING) % len(self.gpus)]
        return os.environ | own

    def _watch(self, k: int, progress: Path) -> None:
        only = [name for name in os.environ.get("FUZZ_ONLY", "").split(",") if name]
        given = {
            "seed": self.seed,
            "first": k,
            "step": self.processes,
            "seconds": self.seconds,
            "chunks": self.chunks,
            "only": only,
            "engines": engines_asked(),
            "progress": str(progress),
        }
        environment = self.environment(k)
        command = [sys.executable, "-m", "fuzz", "--worker", json.dumps(given)]
        errors = progress.with_suffix(".errors")
        with (
            errors.open("w") as file,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True
            ) as process,
        ):
            timer = threading.Timer(self.seconds + GRACE, process.kill)
            timer.start()
            finished = False
            assert process.stdout is not None
            for line in process.stdout:
                finished |= line.startswith("{") and self._take(json.loads(line))
            timer.cancel()
        if not finished:
            last = progress.read_text() if progress.exists() else ""
            where = f"{self.seed} {int(last)}" if last else "its start"
            said = errors.read_text().strip()
            how = f"process {k} ended at case {where}: {process.returncode}"
            with self.lock:
                self.counts["failures"]["process"] += 1
                self._note(f"{how}\n{said}")
                print(f"{how} {said.splitlines()[-1] if said else ''}\n", flush=True)

    def _note(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{text}\n\n")

    def _take(self, line: dict[str, Any]) -> bool:
        with self.lock:
            if "found" in line:
                found = Found(**line["found"])
                self._note(str(found))
                if found.first and self.shown.is_new(found.function, found.kind, found.dtype):
                    print(f"{found}\n", flush=True)
                return False
            for name, counts in self.counts.items():
                counts.update(line["tally"][name])
            self.pace.update(dict(enumerate(line["pace"])))
            return True

    def entry(self, seconds: float) -> dict[str, Any]:
        """Return what docs/verified.json says of the run."""
        from gpu_run import commit, machine

        entry = machine() if self.chunks == "cupy" else {}
        return {
            **entry,
            "commit": commit(),
            "seed": self.seed,
            "seconds": round(seconds),
            "processes": self.processes,
            **{name: dict(sorted(counts.items())) for name, counts in self.counts.items()},
            "engines": _nested(self.counts["engines"]),
        }


def _nested(counts: Counter[str]) -> dict[str, dict[str, int]]:
    """Return counts by engine, and then by family."""
    found: dict[str, dict[str, int]] = {}
    for name, count in sorted(counts.items()):
        engine, family = name.split(maxsplit=1)
        found.setdefault(engine, {})[family] = count
    return found


def _visible() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES takes for each GPU that this process sees."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return asked.split(",") if asked else [str(i) for i in range(len(info.cupy_gpus()))]


def main() -> int:
    """Run as the environment says, and say what came of it."""
    get = os.environ.get
    if get("FUZZ_ONLY") == "files":
        return mutants.main()
    seed = int(get("FUZZ_SEED") or secrets.randbelow(10**6))
    seconds = float(get("FUZZ_SECONDS") or 60)
    chunks = chunks_of(get("FUZZ_CHUNKS", "auto")).__name__
    most = 14 * max(1, len(_visible())) if chunks == "cupy" else 14
    processes = int(get("FUZZ_PROCESSES") or max(2, min(most, (os.cpu_count() or 2) - 1)))
    log = Path(get("FUZZ_LOG") or Path(__file__).parents[2] / "build" / "fuzz.log")
    run = Run(seed, seconds, processes, chunks, log)
    print(f"seed {seed}, {seconds:g} s, {processes} processes, {run.chunks} chunks", flush=True)
    start = time.monotonic()
    run.go()
    took = time.monotonic() - start
    cases, failures, skipped, by_engine = (run.counts[name] for name in COUNTS)
    for name in sorted(cases | failures | skipped):
        wrong = f", {failures[name]} wrong" if failures[name] else ""
        without = f", {skipped[name]} not run for want of a library" if skipped[name] else ""
        print(f"{name:10} {cases[name]:8,}{wrong}{without}")
    for engine, counts in _nested(by_engine).items():
        print(f"by {engine:10} {sum(counts.values()):8,}")
    print("every 10 s:", *(run.pace[i] for i in range(max(run.pace, default=-1) + 1)))
    total, wrong = cases.total(), failures.total()
    print(f"{total:,} cases in {took:.0f} s, {wrong:,} wrong (seed {seed})")
    if wrong:
        print(f"all of them: {run.log}")
    if report := get("FUZZ_REPORT"):
        Path(report).write_text(json.dumps(run.entry(took), indent=2) + "\n")
    return int(wrong > 0 or total == 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--worker", given]:
            sys.exit(worker(json.loads(given)))
        case [seed, index]:
            sys.exit(one(int(seed), int(index)))
        case []:
            sys.exit(main())
    sys.exit(__doc__)
