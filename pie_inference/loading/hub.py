"""Models by their id on the Hugging Face hub ("organization/name"). The only importer of huggingface_hub."""

from __future__ import annotations

import json
import os
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..amounts import amount
from ..errors import CheckpointError
from ..options import HUB_ID
from ..options.compiling import telling_time
from .other_formats import SAFETENSORS, refuse_gguf, refuse_other_formats
from .quantized.bitsandbytes import find_packed

if TYPE_CHECKING:
    from huggingface_hub.utils._safetensors import SafetensorsFileMetadata

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
    return _fetch(str(model), _trouble())


@contextmanager
def folder_to_describe(model: Path) -> Iterator[Path]:
    """The same for who reads no weights. Those of a model on the hub are not downloaded: for as long as the block runs,
    the folder has their headers alone where the cache has no file. Raises CheckpointError."""
    name = str(model)
    if model.exists() or not HUB_ID.fullmatch(name):
        yield find_folder(model)
        return
    trouble = _trouble()
    folder = _fetch(name, trouble, UNWANTED if trouble else (*UNWANTED, SAFETENSORS))
    headers = {} if trouble else _headers(name)
    if find_packed(tensor for header in headers.values() for tensor in header.tensors)[0]:
        yield _fetch(name, trouble)  # shapes stand among the numbers
        return
    with tempfile.TemporaryDirectory() as place:
        for one in folder.iterdir():
            Path(place, one.name).symlink_to(one)
        for file, header in headers.items():
            if not (folder / file).exists():
                _write_header(Path(place, file), header)
        yield Path(place)


def _headers(name: str) -> Mapping[str, SafetensorsFileMetadata]:
    """Of the files with weights of a model on the hub, by their names."""
    from huggingface_hub import HfApi

    with _explaining(name, ""):
        return HfApi().get_safetensors_metadata(name).files_metadata


def _write_header(path: Path, header: SafetensorsFileMetadata) -> None:
    """Makes a file that has no weights, and takes no room for them."""
    tensors = {
        name: {"dtype": one.dtype, "shape": one.shape, "data_offsets": one.data_offsets}
        for name, one in header.tensors.items()
    }
    text = json.dumps(tensors).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + max((one.data_offsets[1] for one in header.tensors.values()), default=0))


def _trouble() -> str:
    """Why the hub cannot be reached; "": it answers. The library waits for minutes, also if its cache has the model."""
    from huggingface_hub import constants, get_session

    seconds = constants.HF_HUB_ETAG_TIMEOUT
    said = queue.SimpleQueue[str]()

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=seconds, follow_redirects=False)
        except Exception as error:  # of the HTTP library, which differs between versions
            said.put(str(error) or type(error).__name__)
        else:
            said.put("")

    threading.Thread(target=ask, daemon=True).start()  # to look up a name has no time limit at all
    try:
        return said.get(timeout=seconds)
    except queue.Empty:
        return f"no answer within {seconds} s, which HF_HUB_ETAG_TIMEOUT sets"


def _fetch(name: str, trouble: str, left_out: Sequence[str] = UNWANTED) -> Path:
    """The folder in the cache, downloaded unless there is trouble. It tells how far it is: the library draws bars, and
    but for terminals only when a file is whole."""
    from huggingface_hub import constants, list_repo_files, snapshot_download
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    kept = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"), "blobs")

    def size() -> str:
        with suppress(OSError):  # a file that has just got its name
            return f"{amount(sum(file.stat().st_size for file in kept.glob('*')), 'B')}, "
        return ""

    wanted, unwanted = list(WANTED), list(left_out)
    with _explaining(name, trouble):
        with telling_time(f"fetching {name}", size):
            found = snapshot_download(
                name, allow_patterns=wanted, ignore_patterns=unwanted, local_files_only=bool(trouble)
            )
        folder = Path(found)
        others = [] if trouble or any(folder.glob(SAFETENSORS)) else list_repo_files(name)
    refuse_other_formats(name, others)
    return folder


@contextmanager
def _explaining(name: str, trouble: str) -> Iterator[None]:
    """Errors of the hub say what to do. Raises CheckpointError."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        yield
    except GatedRepoError as error:
        reason = "its owner grants access on request; ask on the model's page, then set HF_TOKEN to your token"
        raise CheckpointError(f"{name}: {reason}") from error
    except RepositoryNotFoundError as error:
        reason = "no such folder here and no such model on the hub; for a private model, set HF_TOKEN"
        raise CheckpointError(f"{name}: {reason}") from error
    except LocalEntryNotFoundError as error:
        reason = f"no such folder here, and the hub cannot be reached ({trouble or error})"
        raise CheckpointError(f"{name}: {reason}; copy the model's folder here and give its path") from error
    except Exception as error:  # from the HTTP library, which differs between versions; or a full disk
        raise CheckpointError(f"{name}: no such folder here, and the hub failed: {error}") from error
