"""Virtual address spaces, page and embed pools, quotas, contention: pure, without socket, clock or thread."""

from .contention import ContentionPolicy, Eviction, FirstComeFirstServed, Holding, Shortage
from .pool import Pool, PoolUsage
from .quotas import Quota, Usage

__all__ = [
    "ContentionPolicy",
    "Eviction",
    "FirstComeFirstServed",
    "Holding",
    "Pool",
    "PoolUsage",
    "Quota",
    "Shortage",
    "Usage",
]
