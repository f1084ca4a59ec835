"""The sample of combinations that tests marked ``each(n)`` run has all values of each parameter."""

from __future__ import annotations

from typing import Any

import pytest
from support.compiled import THOROUGH

SHAPES = [((3, 4), 0), ((3, 4), 1), ((5,), 0), ((), None)]
DTYPES = ["f4", "f8", "i2"]


@pytest.mark.each(3)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_has_every_value(
    request: pytest.FixtureRequest, shape: tuple[int, ...], axis: int | None, dtype: str
) -> None:
    items: list[Any] = request.session.items
    drawn = [item.callspec.params for item in items if item.path == request.path]
    named = any("[" in argument for argument in request.config.args)
    assert len(drawn) == (12 if THOROUGH else 4) or named
    assert {case["dtype"] for case in drawn} == {*DTYPES} or named
    assert {(case["shape"], case["axis"]) for case in drawn} == {*SHAPES} or named
