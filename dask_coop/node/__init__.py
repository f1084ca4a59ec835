"""Run the cross-chunk step on the GPUs of one machine: `Node`, a scheduler."""

from dask_coop.node.node import Node

__all__ = ["Node"]
