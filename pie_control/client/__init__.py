"""The Python client: upload programs, launch inferlets, talk to them.

    async with Client("http://127.0.0.1:8011") as client:
        program = await client.upload("hello.py")
        running = await client.launch(program, "--name", "Ada")
        async for text in running:
            print(text, end="")

`SyncClient` offers the same without `async`.
"""

from pie_control.errors import InferletEnded

from .client import Client
from .connection import ServerUnavailable
from .running import Running
from .sync import SyncClient, SyncRunning

__all__ = ["Client", "InferletEnded", "Running", "ServerUnavailable", "SyncClient", "SyncRunning"]
