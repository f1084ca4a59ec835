"""Programs compiled together, and what came out remembered until something changes that counts."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dask_coop.cuda import compiler

#: Whether every program is compiled by itself, as it is when it runs, and nothing is remembered.
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

#: Where the compiler's words are kept: git ignores it, and `make clean` removes it.
FOLDER = Path(__file__).parents[2] / "build" / "kernels"


def join(sources: list[str]) -> list[tuple[str, dict[str, str]]]:
    """Return translation units with the kernels of `sources`, and each one's source by its name.

    Each program gets a namespace, and its `entry` a number. Programs share a unit only if they have
    the same directives, so that none gets by with what another included.
    """
    units: dict[str, list[str]] = {}
    names: dict[str, dict[str, str]] = {}
    for number, source in enumerate(dict.fromkeys(sources)):
        lines = source.splitlines(keepends=True)
        directives = "".join(line for line in lines if line.startswith("#"))
        body = "".join(line for line in lines if not line.startswith("#"))
        body, entries = re.subn(r"\bentry\b", f"entry_{number}", body)
        assert entries == 1
        unit = units.setdefault(directives, [directives])
        unit.append(f"namespace program_{number} {{\n{body}}}\n")
        names.setdefault(directives, {})[f"entry_{number}"] = source
    return [("".join(unit), names[directives]) for directives, unit in units.items()]


def remember(key: bytes, make: Callable[[], str], folder: Path = FOLDER) -> str:
    """Return what `make` returned for the same key before, or returns now.

    Where it raises an error, such as for what does not compile, nothing is remembered.
    """
    path = folder / hashlib.sha256(key).hexdigest()
    if path.is_file() and not THOROUGH:
        return path.read_text()
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    mine = path.with_suffix(f".{os.getpid()}")
    mine.write_text(made)
    mine.replace(path)
    return made


def report_of(unit: str, options: Any, folder: Path = FOLDER) -> str:
    """Compile a unit, unless it was compiled before, and return what the compiler said."""
    from cuda.core import Program

    def compile_unit() -> str:
        report = io.StringIO()
        code = Program(unit, "c++", options=options).compile("cubin", logs=report).code
        assert code.startswith(b"\x7fELF")
        return report.getvalue()

    return remember(compiler.key_of(unit, options), compile_unit, folder)


def compile_all(sources: list[str], arch: str) -> None:
    """Compile `sources` together and with less optimisation, which takes less time."""
    options = replace(compiler._options(arch), ofast_compile="max")
    for unit, _ in join(sources):
        report_of(unit, options)


def spills(sources: Iterable[str], arch: str) -> dict[str, list[str]]:
    """Return what keeps something in local memory, with the bytes that it keeps.

    These are programs, or by their mangled names functions that they call. They are optimised in
    full, and together get the registers that each gets by itself.
    """
    units = join(list(sources))
    if THOROUGH:
        units = [unit for source in sources for unit in join([source])]
    found = {}
    for unit, names in units:
        report = report_of(unit, replace(compiler._options(arch), ptxas_options="-v"))
        kept = re.findall(
            r"Function properties for (\w+)\s+\S.*?(\d+) bytes stack frame, "
            r"(\d+) bytes spill stores, (\d+) bytes spill loads",
            report,
        )
        told = {name: sizes for name, *sizes in kept}
        assert told.keys() >= names.keys()
        # Functions that kernels call are told of besides.
        found |= {
            names.get(name, name): sizes for name, sizes in told.items() if set(sizes) != {"0"}
        }
    return found
