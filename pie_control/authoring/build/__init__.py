"""Builds components of programs that are not in Python."""

from __future__ import annotations

from pathlib import Path

from ...client.programs.packages import BUILT, read_file
from ...errors import BadProgram, BadRequest
from ...host_api import wit_files
from ...programs.compile_child import MOST_REASON
from ...sandbox.encoding.component import encode
from ...sandbox.engine import LinkError
from ...texts import cut_middle
from .cargo import built_module


def build(path: Path, output: Path | None = None) -> Path:
    """Makes a component of a core module, or of the crate in a folder, which is built first. It gets beside the module
    unless `output` is given. Returns its file. Raises BadProgram if the program is wrong, and BadRequest."""
    module = built_module(path) if path.is_dir() else path
    component = component_of(module)
    output = output or module.with_name(module.stem + BUILT + module.suffix)
    try:
        output.write_bytes(component)
    except OSError as error:
        raise BadRequest(f"cannot write {output}: {error.strerror}") from None
    return output


def component_of(path: Path) -> bytes:
    """The component of the core module in a file. Raises BadProgram, BadRequest."""
    try:
        return encode(read_file(path), wit_files.current())
    except LinkError as error:
        raise BadProgram(f"{path} {cut_middle(str(error), MOST_REASON)}") from None
