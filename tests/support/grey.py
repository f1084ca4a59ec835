"""Pictures printed without colours: what differs in hue only cannot be told apart there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

#: The least difference of two greys, from 0 for black to 1 for white.
LEAST = 0.1


def luminance(colors: Any) -> Any:
    """Return the greys of colours on white paper, by the weights of ITU-R BT.601, as PIL's."""
    from matplotlib.colors import to_rgba_array

    rgba = to_rgba_array(colors)
    return (rgba[:, :3] @ [0.299, 0.587, 0.114]) * rgba[:, 3] + 1 - rgba[:, 3]


def look(drawn: Any) -> tuple[tuple[Any, ...], float]:
    """Return the line style and marker of a line, () for an area, and the grey of either."""
    from matplotlib.collections import Collection
    from matplotlib.container import BarContainer
    from matplotlib.lines import Line2D

    drawn = drawn.patches[0] if isinstance(drawn, BarContainer) else drawn
    style: tuple[Any, ...] = ()
    if isinstance(drawn, Line2D):
        style, color = (drawn.get_linestyle(), drawn.get_marker()), drawn.get_color()
    elif isinstance(drawn, Collection):
        color = drawn.get_facecolor() if len(drawn.get_facecolor()) else drawn.get_edgecolor()
        if not len(drawn.get_facecolor()):
            style = (str(drawn.get_linestyle()),)
    elif drawn.get_fill():
        color = drawn.get_facecolor()
    else:
        style, color = (drawn.get_linestyle(),), drawn.get_edgecolor()
    return style, float(luminance(color)[0])


def alike(figure: Any) -> list[Any]:
    """Return the pairs of labels, and the colour maps, that grey makes indistinguishable."""
    pairs: list[Any] = []
    for axes in figure.axes:
        looks = [
            (label, *look(drawn))
            for drawn, label in zip(*axes.get_legend_handles_labels(), strict=True)
        ]
        for (one, *of_one), (other, *of_other) in itertools.combinations(looks, 2):
            # A line is seen on an area only by its grey.
            differ = of_one[0] and of_other[0] and of_one[0] != of_other[0]
            if not differ and abs(of_one[1] - of_other[1]) < LEAST:
                pairs.append((one, other))
        for drawn in (*axes.images, *axes.collections):
            if drawn.get_array() is not None and drawn.get_array().ndim < 3:
                steps = np.diff(luminance(drawn.get_cmap()(np.linspace(0, 1, 33))))
                if steps.min() < -0.005 and steps.max() > 0.005:
                    pairs.append(drawn.get_cmap().name)
    return pairs


@contextmanager
def checked() -> Iterator[None]:
    """Refuse pictures, while the block runs, that cannot be read in grey."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def check_and_save(figure: Any, *args: Any, **kwargs: Any) -> None:
        assert not alike(figure)
        save(figure, *args, **kwargs)

    with mock.patch.object(Figure, "savefig", check_and_save):
        yield
