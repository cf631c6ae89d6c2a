"""Where models, adapters and tenants are found that the settings name."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pie_control.errors import ConfigError
from pie_control.services.http.rules import AllowList
from pie_inference.options import HUB_ID

if TYPE_CHECKING:
    from pie_control.tenants.accounts import Accounts

NAMED_ADAPTER = re.compile(r"(?:([\w.-]+)/)?([\w.-]{1,64})=(.+)")
"""An adapter with its name, and perhaps that of its model."""

SHIPPED = {"demo": "demo_model", "demo-reasoner": "demo_reasoner"}
"""Models of the package by their names, with their folders."""
GGUF = ".gguf"
"""Models of this format are left to the worker, which says what to take in their place."""
NAMED_MODEL = re.compile(r"([\w.-]+)=(.+)")
"""A model with the name that it has in the API."""


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model to be served: its name in the API, and the folder of its checkpoint or its id on the hub."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class AdapterPath:
    """A LoRA adapter to be loaded at start: its name, the model, and its folder."""

    name: str
    model: str
    path: str


def model_paths(given: Sequence[str]) -> tuple[ModelPath, ...]:
    """The models that these texts name, each by a name that requests can give; raises ConfigError."""
    models = tuple(find_model(text) for text in given)
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models are called {name!r}: rename one, as in --model NAME=MODEL")
        if "+" in name:
            raise ConfigError(f"no request can name a model {name!r}, as a program stands behind +: --model NAME=MODEL")
    if not models:
        raise ConfigError("no model: give at least one, as in --model demo")
    return models


def find_model(text: str) -> ModelPath:
    """The model that [NAME=]MODEL says; raises ConfigError."""
    named = NAMED_MODEL.fullmatch(text)
    name, model = (named[1], named[2]) if named else ("", text)
    path = _shipped_model(SHIPPED[model]) if model in SHIPPED else _real_path(model)
    try:
        if not path.exists() and HUB_ID.fullmatch(model):
            return ModelPath(name or model.rpartition("/")[2], model)  # the worker fetches it
        if not (path / "config.json").is_file() and path.suffix != GGUF and not any(path.glob("*" + GGUF)):
            raise ConfigError(f"no model at {path}: {_what_instead(path)}")
    except OSError as error:
        raise ConfigError(f"no model at {path}: {error.strerror}") from None
    return ModelPath(name or (model if model in SHIPPED else path.name), str(path))


def _real_path(text: str) -> Path:
    """The path behind symlinks, also where they lead in a circle, at which `Path.resolve` fails before Python 3.13."""
    return Path(os.path.realpath(Path(text).expanduser()))


def _what_instead(path: Path) -> str:
    if path.is_file() and (path.parent / "config.json").is_file():
        return f"that is a file of one; give its folder, {path.parent}"
    if (path / "adapter_config.json").is_file():
        return f"that is an adapter; give it with its model, as in --model MODEL --adapter {path.name}={path}"
    own = " or ".join(SHIPPED)
    return (
        "a folder with config.json, tokenizer.json and *.safetensors is needed, or an id of the hub as in "
        f"--model Qwen/Qwen3-0.6B, or {own}"
    )


def find_accounts(file: str) -> Accounts:
    """The tenants in a file; raises ConfigError."""
    from pie_control.tenants.accounts import read_accounts  # `pie --help` needs no msgspec

    accounts = read_accounts(Path(file).expanduser())
    for tenant in accounts.tenants:
        try:
            AllowList(tenant.http_allow or ())
        except ConfigError as error:
            raise ConfigError(f"{file}: tenant {tenant.name}: {error}") from None
    return accounts


def find_adapter(text: str, models: Sequence[ModelPath], others: bool) -> AdapterPath:
    """The adapter that [MODEL/]NAME=FOLDER says; raises ConfigError.

    `others`: workers of other machines may serve more models, and read folders of their own.
    """
    found = NAMED_ADAPTER.fullmatch(text)
    if found is None:
        raise ConfigError(f"adapter must be [MODEL/]NAME=FOLDER, not {text!r}")
    model = found[1] or (models[0].name if models else "")
    name, folder = found[2], _real_path(found[3])
    if not model:
        raise ConfigError(f"adapter {name}: say for which model, as in --adapter MODEL/{name}={found[3]}")
    if others and model not in [one.name for one in models]:
        return AdapterPath(name, model, found[3])
    if model not in [one.name for one in models]:
        raise ConfigError(f"adapter {name}: no model {model!r}; there are: {', '.join(one.name for one in models)}")
    if not os.path.isdir(folder):
        raise ConfigError(f"adapter {name}: no folder {folder}")
    return AdapterPath(name, model, str(folder))


def find_adapter_dir(given: str) -> str:
    """The folder whose subfolders clients may load as adapters; raises ConfigError."""
    if given and not os.path.isdir(Path(given).expanduser()):
        raise ConfigError(f"adapter-dir: no folder {given}: make it, or give another one")
    return str(Path(given).expanduser()) if given else ""


def _shipped_model(folder: str) -> Path:
    # Found without importing the package, so that the control process never loads torch.
    spec = importlib.util.find_spec("pie_inference")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the package pie_inference is not installed, so there is no demo model; give --model PATH")
    return Path(next(iter(spec.submodule_search_locations))) / folder
