"""Functions of one chunk; backend.py defines them and chooses the backend of a chunk."""

from dask_coop.chunks.backend import (
    ChunkBackend,
    asarray,
    backend_of,
    can_lend,
    can_move,
    empty_on_host,
    is_common,
    is_mapped,
    keeper,
    kind,
    lend,
    only_reads,
    put_into,
    read_onto,
)
from dask_coop.chunks.masks import is_masked, keeps_mask, refuse_masked, unmasked, zeros_like

__all__ = [
    "ChunkBackend",
    "asarray",
    "backend_of",
    "can_lend",
    "can_move",
    "empty_on_host",
    "is_common",
    "is_mapped",
    "is_masked",
    "keeper",
    "keeps_mask",
    "kind",
    "lend",
    "only_reads",
    "put_into",
    "read_onto",
    "refuse_masked",
    "unmasked",
    "zeros_like",
]
