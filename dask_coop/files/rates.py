"""Count the bytes that are read and decoded, and the seconds that this takes.

`explain` shows it of an array, and the pages of a cluster show the sums of each worker.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from dask_coop import meters

#: Activities of meters: the seconds and bytes of reading, and those of decoding.
READ, DECODE = meters.PREFIX + "read", meters.PREFIX + "decode"

#: So many arrays are remembered.
_MOST = 1000


@dataclass(slots=True)
class Rate:
    """Bytes and seconds of reading and decoding an array.

    Attributes
    ----------
    stored, decoded : int
        Bytes.
    reading, decoding : float
        Seconds, summed over threads.
    """

    stored: int = 0
    decoded: int = 0
    reading: float = 0.0
    decoding: float = 0.0

    def __str__(self) -> str:
        """Return bytes, speed, and whether reading or decoding takes longer."""
        seconds = self.reading + self.decoding
        if not seconds:
            return "nothing read"
        limit = "decoding" if self.decoding > self.reading else "reading"
        percent = f"{max(self.decoding, self.reading) / seconds:.0%}"
        total = f"{self.decoded / 1e9:.3g} GB, {self.stored / 1e9:.3g} stored"
        return f"{total}, {self.decoded / seconds / 1e9:.2g} GB/s a thread, {percent} {limit}"


_rates: OrderedDict[str, Rate] = OrderedDict()
_lock = threading.Lock()


@contextmanager
def added(name: str) -> Iterator[Rate]:
    """Add the counts of a block to those of an array; seconds not spent reading are decoding."""
    rate, start = Rate(), perf_counter()
    try:
        yield rate
    finally:
        rate.decoding += perf_counter() - start - rate.reading
        meters.count(READ, rate.reading, "seconds")
        meters.count(READ, rate.stored, "bytes")
        meters.count(DECODE, rate.decoding, "seconds")
        meters.count(DECODE, rate.decoded, "bytes")
        with _lock:
            whole = _rates.setdefault(name, Rate())
            whole.stored, whole.decoded = whole.stored + rate.stored, whole.decoded + rate.decoded
            whole.reading += rate.reading
            whole.decoding += rate.decoding
            _rates.move_to_end(name)
            if len(_rates) > _MOST:
                _rates.popitem(last=False)


def of(name: str) -> Rate | None:
    """Return the counts of an array in this process, or None."""
    return _rates.get(name)
