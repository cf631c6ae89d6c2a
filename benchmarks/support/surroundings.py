"""What some calls need beside a model: a LoRA adapter of the demo model, and a server outside."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK, HIDDEN, LAYERS = 8, 256, 5
"""Of the adapter; the others are the demo model's."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nnine\n"


@contextmanager
def demo_adapter() -> Iterator[Path]:
    """The folder of an adapter of the query projections, with random weights."""
    generator = torch.Generator().manual_seed(0)
    layers = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in range(LAYERS)]
    shapes = {"lora_A": (RANK, HIDDEN), "lora_B": (HIDDEN, RANK)}
    tensors = {
        f"{layer}.{name}.weight": 0.01 * torch.randn(*shape, generator=generator)
        for layer in layers
        for name, shape in shapes.items()
    }
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    with tempfile.TemporaryDirectory(prefix="pie-benchmark-adapter-") as name:
        save_file(tensors, Path(name) / "adapter_model.safetensors")
        (Path(name) / "adapter_config.json").write_text(json.dumps(config))
        yield Path(name)


@asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    """A server on this machine that answers every request alike: `127.0.0.1:PORT`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
