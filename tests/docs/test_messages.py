"""The messages of the source: the page has those with advice, and calls raise no others."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import messages
import numpy as np
import pytest

import dask_coop as dc

X = da.ones((4, 6), chunks=3)

#: Calls that raise, of every section that needs no GPU and no cluster.
CALLS: list[Callable[[], Any]] = [
    lambda: dc.sum(X, axis=(0, 0)),
    lambda: dc.sum(X, engine="quick"),
    lambda: dc.sum(X, where=3.0),
    lambda: dc.max(X[:0]),
    lambda: dc.argmax(X, axis=(0, 1)),
    lambda: dc.norm(X, ord="x"),
    lambda: dc.moment(X, -1),
    lambda: dc.cumulative_sum(X),
    lambda: dc.cumsum(X, axis=0, method="quick"),
    lambda: dc.histogram(X, bins=[1, np.nan]),
    lambda: dc.histogram(X, normed=True),
    lambda: dc.histogram(X.astype("c16")),
    lambda: dc.bincount(X),
    lambda: dc.quantile(X, 0.5, method="best"),
    lambda: dc.quantile(X, 2.0),
    lambda: dc.select(X, X),
    lambda: dc.topk(X, 1.5),
    lambda: dc.searchsorted(X, 1),
    lambda: dc.groupby_reduce(X, [0, 1], func="mean"),
    lambda: dc.groupby_reduce(X, [0] * 6, func="average"),
    lambda: dc.groupby_scan(X, [0] * 6, func="mean"),
    lambda: dc.move_mean(X, 9),
    lambda: dc.move_mean(X, 2.5),
    lambda: dc.box_filter(X, 3, mode="round"),
    lambda: dc.ewm_mean(X),
    lambda: dc.matmul(X, X),
    lambda: dc.matmul(X, X.T, semiring="plus"),
    lambda: dc.transpose(X, (0, 0)),
    lambda: dc.Monoid("two words", np.add, 0, "f8"),
    lambda: dc.reduce(X, np.sin),
    lambda: dc.explain(3),
    lambda: dc.install(chunks="torch"),
    lambda: dc.Node(),
    lambda: dc.to_gpu(da.from_array(np.array([1, "a"], "O"), chunks=2)),
    lambda: dc.sum(X, engine="collective"),
]


@cache
def patterns() -> list[re.Pattern[str]]:
    """Return the messages of the source, each with anything for what stands in braces."""
    texts = dict.fromkeys(message.text for message in messages.collect())
    return [
        re.compile(".*".join(map(re.escape, re.split(r"\{[^{}]*\}", text))), re.DOTALL)
        for text in texts
        # Values alone are no words to find a message by.
        if len(re.sub(r"\{[^{}]*\}", "", text)) > 5
    ]


def test_the_page_is_that_of_the_source() -> None:
    assert messages.page() == messages.PAGE.read_text(), "python tools/messages.py --write"


def test_the_page_is_short_and_has_advice_on_each_of_its_messages() -> None:
    text = messages.PAGE.read_text()
    entries = re.findall(r"^- `.*`  \n  (\w+(?: or \w+)*)\. (.+)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall("^- `", messages.figures(), re.MULTILINE)) > 30
    assert len(text.split()) < 2500


@pytest.mark.parametrize("call", CALLS)
def test_what_is_raised_is_known(call: Callable[[], Any]) -> None:
    with (
        dask.config.set({"coop.fallback": "raise"}),
        pytest.raises(Exception, match=r".") as raised,
    ):
        call()
    said = " ".join(str(raised.value).split())
    assert any(pattern.match(said) for pattern in patterns()), said


def test_the_test_above_finds_what_is_not_there() -> None:
    assert not any(pattern.match("axis is bad") for pattern in patterns())


def test_all_advice_is_on_some_message() -> None:
    texts = [message.text for message in messages.collect()]
    assert not [start for start in messages.ADVICE if not any(t.startswith(start) for t in texts)]


def test_a_message_without_a_section_is_told() -> None:
    with pytest.raises(LookupError, match="music/songs have no section"):
        messages.section_of("music/songs")


def test_messages_are_read_in_all_their_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.py").write_text(
        "TAIL = 'so there'\n"
        "def reason(name: str) -> str:\n    return f'{name} is bad'\n"
        "def f(x):\n"
        "    said = 'first' if x else f'second {x.y}'\n"
        "    raise ValueError(said)\n"
        "def g(name):\n"
        "    raise TypeError(f'{reason(name)}, {TAIL}') from OSError(2, 'no file')\n"
        "def h():\n    warnings.warn('careful', UserWarning)\n    raise KeyError(str(h))\n"
    )
    monkeypatch.setattr(messages, "PACKAGE", tmp_path)
    with pytest.raises(LookupError, match=r"what some raises with str\(h\)"):
        messages.collect()
    monkeypatch.setitem(messages.NOT_WRITTEN, ("some", "str(h)"), ())
    found = {(message.kind, message.text) for message in messages.collect()}
    assert found == {
        ("ValueError", "first"),
        ("ValueError", "second {y}"),
        ("TypeError", "{name} is bad, so there"),
        ("OSError", "no file"),
        ("UserWarning", "careful"),
    }
