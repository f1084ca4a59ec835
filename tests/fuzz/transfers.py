"""Cases of arrays that go to the GPUs and back, in pieces of any size; of NumPy chunks, neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np

import dask_coop as dc
from dask_coop.graph.transfer import take_over
from fuzz import draw
from fuzz.case import Case
from fuzz.exact import Expected

#: What is done there, exact in every dtype, and the code that does so.
WORKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "": (lambda x: x, "{}"),
    "T": (lambda x: x.T, "{}.T"),
    "every other": (lambda x: x[::2] if x.ndim else x, "(lambda x: x[::2] if x.ndim else x)({})"),
    # No arithmetic: CuPy's takes subnormal float32 for zero.
    "copy": (
        lambda x: x if isinstance(x, np.ndarray) else x.map_blocks(np.copy),
        "{}.map_blocks(np.copy)",
    ),
}


@dataclass(frozen=True)
class Transfer(Case):
    """There, some work, and back.

    Its options are ``by_backend``, whether Dask's functions are called; ``work``, a key of `WORKS`;
    ``piece``, the bytes of a buffer; ``small``, those below which none is needed; ``keep``, that of
    `to_gpu`, with True after a call that has kept the chunks.
    """

    @property
    def backend(self) -> bool:
        """Whether Dask's functions are called; its arrays of expressions have none."""
        return bool(self.option("by_backend", False)) and not da.array_expr_enabled()

    def call(self, xp: Any) -> tuple[Any, ...]:
        """Return the array as it comes back."""
        x, backend = self.inputs[0].build(np), self.backend
        if xp is not np:
            keep = self.option("keep", None)
            if keep and not backend:
                dc.to_gpu(x, keep=True).compute()
            x = x.to_backend("cupy") if backend else dc.to_gpu(x, keep=keep)
        x = WORKS[self.option("work", "")][0](x)
        return (x.to_backend("numpy") if backend else dc.to_host(x),)

    def code(self, xp: Any) -> str:
        """Return that as a line of Python."""
        x, on_gpu, backend = self.inputs[0].code(np), xp is not np, self.backend
        if on_gpu:
            keep = self.option("keep", None)
            x = f"{x}.to_backend('cupy')" if backend else f"dc.to_gpu({x}, keep={keep})"
        x = WORKS[self.option("work", "")][1].format(x)
        line = f"{x}.to_backend('numpy')" if backend else f"dc.to_host({x})"
        if not on_gpu:
            return line
        sizes = f"ring.BUFFER_BYTES, ring.SMALL_BYTES = {self.option('piece', 16)}, "
        sizes += f"{self.option('small', 1)}"
        if backend:
            sizes += "; from dask_coop.graph.transfer import take_over; take_over()"
        return f"from dask_coop.cuda import transfer as ring; {sizes}; {line}"

    @contextmanager
    def setting(self, xp: Any) -> Iterator[None]:
        """Have rings of small buffers, and Dask's functions use them."""
        if xp is np:
            yield
            return
        from dask_coop.cuda import transfer as ring

        before = ring.BUFFER_BYTES, ring.SMALL_BYTES
        give_back = take_over()
        # Buffers keep the size that they were made with.
        ring.close()
        try:
            ring.BUFFER_BYTES, ring.SMALL_BYTES = self.option("piece", 16), self.option("small", 1)
            yield
        finally:
            ring.close()
            ring.BUFFER_BYTES, ring.SMALL_BYTES = before
            give_back()


def draw_transfer(rng: draw.Generator) -> Case:
    """Draw an array, and how it goes."""
    sides = draw.large_shape(rng) if draw.chance(rng, 0.1) else draw.shape(rng)
    array = draw.values(rng, draw.pick(rng, draw.NUMBERS), sides)
    options: dict[str, Any] = {"work": draw.pick(rng, [*WORKS])}
    # An element has up to 16 bytes, and an array without any is small.
    options["piece"] = draw.pick(rng, [16, 24, 64, 1000, 4096, 1 << 16])
    nbytes = array.nbytes
    options["small"] = draw.pick(rng, [1, 1, 17, max(nbytes - 1, 1), max(nbytes, 1), nbytes + 1])
    options["keep"] = draw.pick(rng, [None, True, True, False])
    operand = draw.operand(rng, array)
    if draw.chance(rng, 0.4):
        options["by_backend"] = True
        # Dask hands on what chunks are.
        operand = replace(operand, layout="C") if operand.layout == "undeclared" else operand
    return Transfer("transfer", "to_gpu", (operand,), {}, options)


def expect_transfer(case: Case) -> list[Expected]:
    """Return what NumPy makes of it, where it is."""
    return [Expected(WORKS[case.option("work", "")][0](case.x), host=True)]
