"""Models by their id on the Hugging Face hub ("organization/name"). The only importer of huggingface_hub."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointError
from ..options import HUB_ID

WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
UNWANTED = ("*/*", "consolidated*")
"""Second copies of the weights in other layouts."""


def find_folder(model: Path) -> Path:
    """The folder of a checkpoint: `model` itself where it exists; else, if it reads like an id of the hub, the copy of
    that in the user's cache, fetched first if need be. Raises CheckpointError."""
    if model.is_dir():
        return model
    if model.exists():
        raise CheckpointError(f"{model}: not a folder; name the folder that holds config.json")
    if not HUB_ID.fullmatch(str(model)):
        raise CheckpointError(f"{model}: there is no such folder")
    return _fetch(str(model))


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)))
    except GatedRepoError as error:
        reason = "its owner grants access on request: ask on its page, then set HF_TOKEN to a token of yours"
        raise CheckpointError(f"{name}: {reason}") from error
    except RepositoryNotFoundError as error:
        reason = "no such folder here and no such model on the hub; of a private one, set HF_TOKEN"
        raise CheckpointError(f"{name}: {reason}") from error
    except LocalEntryNotFoundError as error:
        reason = "no such folder here, and the hub cannot be reached; copy the model's folder here and give its path"
        raise CheckpointError(f"{name}: {reason}") from error
    except Exception as error:  # of the HTTP library, and which that is changes with the version; a full disk
        raise CheckpointError(f"{name}: no such folder here, and the hub failed: {error}") from error
