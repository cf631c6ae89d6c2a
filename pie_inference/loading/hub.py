"""Models by their id on the Hugging Face hub ("organization/name"). The only importer of huggingface_hub."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointError
from ..options import HUB_ID
from .other_formats import SAFETENSORS, refuse_gguf, refuse_other_formats

WANTED = (SAFETENSORS, "*.json", "*.jinja", "tokenizer.model")
UNWANTED = ("*/*.safetensors", "*/tokenizer*", "consolidated*")
"""Files that repeat the weights in other layouts, and tokenizers beside them. What else is in folders is wanted, such
as `1_Pooling/config.json` and `additional_chat_templates`."""


def find_folder(model: Path) -> Path:
    """The folder of a checkpoint: `model` itself if it exists; else, if it looks like an id on the hub, the copy in the
    user's cache, which is downloaded first if necessary. Raises CheckpointError."""
    if model.is_dir():
        refuse_other_formats(model, (file.name for file in model.iterdir()))
        return model
    if model.suffix == ".gguf":
        refuse_gguf(str(model))
    if model.exists():
        raise CheckpointError(f"{model}: not a folder; give the folder that has config.json")
    if not HUB_ID.fullmatch(str(model)):
        raise CheckpointError(f"{model}: there is no such folder")
    return _fetch(str(model))


def _fetch(name: str) -> Path:
    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)))
        others = [] if any(folder.glob(SAFETENSORS)) else list_repo_files(name)
    except GatedRepoError as error:
        reason = "its owner grants access on request; ask on the model's page, then set HF_TOKEN to your token"
        raise CheckpointError(f"{name}: {reason}") from error
    except RepositoryNotFoundError as error:
        reason = "no such folder here and no such model on the hub; for a private model, set HF_TOKEN"
        raise CheckpointError(f"{name}: {reason}") from error
    except LocalEntryNotFoundError as error:
        reason = "no such folder here, and the hub cannot be reached; copy the model's folder here and give its path"
        raise CheckpointError(f"{name}: {reason}") from error
    except Exception as error:  # from the HTTP library, which differs between versions; or a full disk
        raise CheckpointError(f"{name}: no such folder here, and the hub failed: {error}") from error
    refuse_other_formats(name, others)
    return folder
