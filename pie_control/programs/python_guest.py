"""The component that runs Python inferlets: CPython and the SDK, built on first use and kept on disk.

Its file name begins with a hash of all its sources and of the tool's version, so a change of either triggers a new
build.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from pie_inference.options import cache_files

from ..errors import ConfigError
from ..sandbox.version import code_version
from . import lasting, native

APPLICATION = "inferlet_sdk.guest.entry"
WORLD = "python-guest"
SUFFIX = ".wasm"
TOOL = "from componentize_py import script; script()"
"""Runs componentize-py where it can be imported; its command need not be on the PATH."""


def sdk_folder() -> Path:
    """Folder of the package inferlet_sdk, found without importing it."""
    spec = importlib.util.find_spec("inferlet_sdk")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the package inferlet_sdk is not installed beside pie_control: reinstall pie")
    return Path(next(iter(spec.submodule_search_locations)))


def _fingerprint(folder: Path) -> str:
    try:
        version = metadata.version("componentize-py")
    except metadata.PackageNotFoundError:
        raise ConfigError("componentize-py is not installed: pip install componentize-py") from None
    digest = hashlib.sha256(version.encode() + Path(lasting.__file__).read_bytes())
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.wit")]):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def guest_hash() -> str:
    """Hash of the guest's sources, as they were when this process asked first. It names the files of the guest and of
    its compiled form."""
    return _fingerprint(sdk_folder())


async def _run_componentize(folder: Path, output: Path) -> None:
    """The tool gets the SDK alone: it reads all folders beside it, of which this user may not read some. It ends when
    this is cancelled."""
    alone = output.with_name("alone")
    shutil.copytree(folder, alone / folder.name, ignore=shutil.ignore_patterns("__pycache__", "rust"))
    command = [
        sys.executable, "-c", TOOL, "-d", str(folder / "wit"), "-w", WORLD,
        "componentize", APPLICATION, "-p", str(alone), "-o", str(output),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ConfigError(f"building the Python guest failed:\n{said.decode(errors='replace')[-4000:]}")


async def compiled_guest(cache_dir: Path) -> Path:
    """The sealed file of the guest's native code, which all hosts map, also those that are started again; built and
    compiled if there is none, by one server at a time. Raises ConfigError."""
    folder, stem = guest_folder(cache_dir), f"{await asyncio.to_thread(guest_hash)}-{code_version()}"
    try:
        found = await asyncio.to_thread(cache_files.find_sealed, folder, stem, native.SUFFIX)
        if found is None:
            with cache_files.queued(folder) as is_my_turn:
                while not is_my_turn():
                    await asyncio.sleep(cache_files.TURN_SECONDS)
                found = await _find_or_compile(folder, stem)
        cache_files.hold(found)
        return found
    except OSError as error:
        raise ConfigError(f"the Python guest cannot be kept in {folder}: {error.strerror}; see --cache-dir") from error
    except (native.Refused, native.CompilerDied) as error:
        raise ConfigError(f"the Python guest cannot be compiled: {error}") from error


async def _find_or_compile(folder: Path, stem: str) -> Path:
    found = await asyncio.to_thread(cache_files.find_sealed, folder, stem, native.SUFFIX)
    return found or await native.compile_to_file(await build_guest(folder), folder, stem)


def guest_folder(cache_dir: Path) -> Path:
    """Where the guest and its compiled form are kept. Raises ConfigError if others can write there."""
    try:
        return cache_files.folder_to_compile_in(cache_dir / "guest")
    except cache_files.NotPrivate as error:
        raise ConfigError(str(error)) from None


async def build_guest(folder: Path) -> bytes:
    """The guest component, from its folder or newly built (5 s). Raises ConfigError with the tool's output. Leaves no
    process and no unfinished file, also when it is cancelled."""
    sources = sdk_folder()
    fingerprint = await asyncio.to_thread(_fingerprint, sources)
    path = await asyncio.to_thread(cache_files.find_sealed, folder, fingerprint, SUFFIX)
    if path is None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            output = Path(scratch) / "guest.wasm"
            await _run_componentize(sources, output)
            path = await asyncio.to_thread(_finish, output, folder, fingerprint)
    return await asyncio.to_thread(cache_files.read_own_file, path)


def _finish(output: Path, folder: Path, fingerprint: str) -> Path:
    output.write_bytes(lasting.made_immortal(output.read_bytes()))
    return cache_files.seal(output, folder, fingerprint, SUFFIX)
