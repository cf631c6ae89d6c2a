"""The LoRA adapters of a server: those it was started with, and those that clients load and drop.

A client is not the operator, and must not make the server read any folder: it may load what is inside `--adapter-dir`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from .config import ServerConfig
from .engine.adapters import AdapterInfo
from .engine.model import Model
from .errors import ClientError, ConfigError, Forbidden, UnknownName


class AdapterLibrary:
    """All methods belong to the thread of one event loop. `tell` is called when the adapters have changed."""

    def __init__(self, config: ServerConfig, models: Mapping[str, Model], tell: Callable[[], None]) -> None:
        self._config = config
        self._models = models
        self._tell = tell

    async def start(self) -> None:
        """Loads the adapters that the operator has named; raises ConfigError, WorkerUnavailable."""
        for given in self._config.adapters:
            if given.model not in self._models:
                known = ", ".join(self._models)
                raise ConfigError(f"--adapter {given.name}: no model {given.model!r}; there are: {known}")
            try:
                await self._models[given.model].adapters.load(given.name, given.path)
            except ClientError as error:
                raise ConfigError(f"--adapter {given.name}={given.path}: {error}") from None

    def all(self) -> tuple[AdapterInfo, ...]:
        """The adapters of all models."""
        return tuple(info for model in self._models.values() for info in model.adapters.all())

    async def load(self, name: str, folder: str, model: str = "") -> AdapterInfo:
        """Loads an adapter for a model, by default the first, on all of its workers. `folder`: inside --adapter-dir.
        Raises Forbidden (there is no such setting), UnknownName (no such model or folder), BadRequest (a name that
        cannot be), Conflict (the name is taken), BadAdapter, WorkerUnavailable."""
        adapters = self._find(model).adapters
        info = await adapters.load(name, *await asyncio.to_thread(self._path, folder))
        self._tell()
        return info

    def drop(self, name: str, model: str = "") -> AdapterInfo:
        """Forgets an adapter: calls that name it are refused from now on, and commands that are under way fail. Raises
        UnknownName."""
        info = self._find(model).adapters.drop(name)
        self._tell()
        return info

    def _find(self, name: str) -> Model:
        if not name:
            return next(iter(self._models.values()))
        if name not in self._models:
            raise UnknownName(f"no model {name[:80]!r}; the server has: {', '.join(self._models)}")
        return self._models[name]

    def _path(self, folder: str) -> tuple[str, str]:
        """Where the folder lies, and inside of which one its files must lie. Raises Forbidden,
        UnknownName."""
        allowed = self._config.adapter_dir
        if not allowed:
            raise Forbidden("adapters cannot be loaded from here: start the server with --adapter-dir FOLDER")
        root = Path(allowed).resolve()
        try:
            path = (root / folder).resolve()
            found = path.is_relative_to(root) and path.is_dir()
        except (OSError, ValueError):
            found = False
        if not found:
            raise UnknownName(
                f"{folder[:200]!r} is no folder inside --adapter-dir of the server: adapters are not uploaded, copy it "
                "there first"
            )
        return str(path), str(root)
