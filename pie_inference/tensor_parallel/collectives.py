"""Collective operations of ranks, through torch.distributed. Its only importer."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stub does not export it

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
LOOPBACK = "127.0.0.1"
LEADER = 0


class DistributedRanks:
    """Implements `Ranks` for one process of a group; there is one group in a process."""

    def __init__(self, store: TCPStore, rank: int, size: int, device: torch.device) -> None:
        """Waits for all ranks. Raises RuntimeError if they do not come."""
        self.rank = rank
        self.size = size
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # only this machine may connect to a rank
            os.environ.setdefault(variable, _loopback_interface())
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            BACKENDS[device.type],
            store=store,
            rank=rank,
            world_size=size,
            device_id=device if device.type == "cuda" else None,  # connects now, not within a recorded graph
        )
        self._smallest = torch.zeros((), dtype=torch.int64, device=device)  # is there also when memory is short

    def all_reduce(self, partial: Tensor) -> Tensor:
        whole = partial.contiguous()
        dist.all_reduce(whole)
        return whole

    def all_gather(self, share: Tensor) -> Tensor:
        own = share.contiguous()
        shares = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(shares, own)
        return torch.cat(shares, -1)

    def broadcast(self, values: Tensor) -> Tensor:
        dist.broadcast(values, LEADER)
        return values

    def all_reduce_min(self, number: int) -> int:
        self._smallest.fill_(number)
        dist.all_reduce(self._smallest, dist.ReduceOp.MIN)
        return int(self._smallest)

    def close(self) -> None:
        """Leaves the group. Call it once."""
        dist.destroy_process_group()


def listen() -> socket.socket:
    """Opens a free port, which only this machine can reach, where the ranks will find each other."""
    return socket.create_server((LOOPBACK, 0))


def lead(listener: socket.socket, size: int, device: torch.device) -> DistributedRanks:
    """Joins the group as its leader; takes ownership of `listener`."""
    port = listener.getsockname()[1]
    store = TCPStore(LOOPBACK, port, size, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return DistributedRanks(store, LEADER, size, device)


def follow(port: int, rank: int, size: int, device: torch.device) -> DistributedRanks:
    """Joins the group whose leader listens at `port`."""
    store = TCPStore(LOOPBACK, port, size, is_master=False, wait_for_workers=False)
    return DistributedRanks(store, rank, size, device)


def _loopback_interface() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
