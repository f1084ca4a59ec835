"""How the lines of an array are scanned: what public functions ask for and every task carries."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sweep:
    """A direction, and what the results include.

    Attributes
    ----------
    axis : int
        The axis that lines run along, not negative.
    exclusive : bool
        Whether a result leaves out its own element.
    reverse : bool
        Whether lines are scanned from their ends.
    initial : bool
        Whether there is one more result, of nothing yet: the first that is made.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False
    initial: bool = False

    def part(self, first: bool) -> Sweep:
        """Return how a chunk is scanned: only the first has the result of nothing yet."""
        return self if first or not self.initial else replace(self, initial=False)
