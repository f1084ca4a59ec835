"""What tools/sanitize.py runs: all families, in little memory."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sanitize
from fuzz import work
from fuzz.families import FAMILIES


def test_states_of_groups_fit_a_small_gpu() -> None:
    cases = [*sanitize.group_cases()]
    assert {n for _, _, n in cases} == {*sanitize.GROUPS}
    # In one line, in several that lie behind one another, and in some that lie across.
    many = {(shape, transposed) for shape, transposed, n in cases if n == max(sanitize.GROUPS)}
    assert many == {((70_003,), False), ((3, 30_011), False), ((30_011, 3), True)}
    for shape, transposed, n in cases:
        lines = math.prod(shape[:0:-1] if transposed else shape[:-1])
        # SUM, MEAN, VAR, MAX and ARGMAX of float64.
        assert lines * n * (8 + 16 + 24 + 8 + 16) < sanitize.MOST_BYTES


def test_every_family_of_random_cases_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    wrong: list[str] = []

    def note(xp: Any, seed: int, *, only: tuple[str, ...], **_: Any) -> Any:
        drawn.extend(only)
        return SimpleNamespace(found=wrong)

    monkeypatch.setattr(work, "work", note)
    parts = [part for name, part in sanitize.ONCE.items() if name.startswith("random")]
    for part in parts:
        part(np, np.random.default_rng(0))
    assert sorted(drawn) == sorted(n for n, f in FAMILIES.items() if not f.of_numpy_chunks)
    wrong.append("3 is not 4")
    with pytest.raises(SystemExit, match="3 is not 4"):
        parts[0](np, np.random.default_rng(0))


def test_a_process_allocates_no_more_than_its_share() -> None:
    class Memory:
        size = 0

        def __init__(self, size: int) -> None:
            self.size = size

    cuda = SimpleNamespace(Memory=Memory, MemoryPointer=lambda memory, offset: memory)
    allocate = sanitize.modest(SimpleNamespace(cuda=cuda))
    half = sanitize.MOST_BYTES // 2
    kept = [allocate(half)]
    for _ in range(3):
        allocate(half)
    kept.append(allocate(half))
    with pytest.raises(MemoryError, match="at most 1,073,741,824"):
        allocate(1)
