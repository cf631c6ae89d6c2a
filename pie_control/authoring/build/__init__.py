"""Builds components of programs that are not in Python."""

from __future__ import annotations

from pathlib import Path

from ...client.packages import BUILT, read_file
from ...errors import BadProgram, BadRequest
from ...host_api import wit_files
from ...sandbox.encoding.component import encode
from ...sandbox.engine import LinkError


def build(path: Path, output: Path | None = None) -> Path:
    """Makes a component of a core module, beside it unless `output` is given; returns its file. Raises BadProgram if
    the module is wrong, and BadRequest."""
    component = component_of(path)
    output = output or path.with_name(path.stem + BUILT + path.suffix)
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
        raise BadProgram(f"{path} {error}") from None
