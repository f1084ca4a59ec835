"""What a node tells of launches, whoever else uses its GPUs."""

from __future__ import annotations

import re

import dask_coop as dc


def launches(node: dc.Node) -> str:
    """Return the lines of `Node.explain` but those of GPUs that were short of memory."""
    lines = node.explain().splitlines()
    return "\n".join(line for line in lines if not re.match(r"GPU \d+: ", line))
