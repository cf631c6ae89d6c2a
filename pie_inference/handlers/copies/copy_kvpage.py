"""Copies keys and values from slot to slot."""

from __future__ import annotations

from ...execution.served_model import ServedModel
from ...protocol import CopyKvpage


def copy_kvpage(served: ServedModel, batch: CopyKvpage) -> None:
    served.cache.copy(batch.source, batch.target)
