"""Stands in for compiled modules that packages import at their top and hardly use: they fail when they are called."""

from __future__ import annotations

import struct
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

CONSTANTS = (
    *("CHECK_NONE", "CHECK_CRC32", "CHECK_CRC64", "CHECK_SHA256", "CHECK_ID_MAX", "CHECK_UNKNOWN", "FILTER_LZMA1"),
    *("FILTER_LZMA2", "FILTER_DELTA", "FILTER_X86", "FILTER_IA64", "FILTER_ARM", "FILTER_ARMTHUMB", "FILTER_SPARC"),
    *("FILTER_POWERPC", "FORMAT_AUTO", "FORMAT_XZ", "FORMAT_ALONE", "FORMAT_RAW", "MF_HC3", "MF_HC4", "MF_BT2"),
    *("MF_BT3", "MF_BT4", "MODE_FAST", "MODE_NORMAL", "PRESET_DEFAULT", "PRESET_EXTREME"),
)
"""Names of numbers of `lzma`, which are defaults of its functions."""

TYPES = {
    "c_bool": "?", "c_char": "c", "c_byte": "b", "c_ubyte": "B", "c_short": "h", "c_ushort": "H", "c_int": "i",
    "c_uint": "I", "c_long": "l", "c_ulong": "L", "c_longlong": "q", "c_ulonglong": "Q", "c_size_t": "N",
    "c_ssize_t": "n", "c_float": "f", "c_double": "d", "c_void_p": "P", "c_char_p": "P", "c_wchar_p": "P",
}  # fmt: skip
"""Types of `ctypes`, with their sizes as of `struct`."""


class Missing:
    """A class or function that the sandbox lacks."""

    why = "the sandbox compresses with zlib only: no bz2, no lzma"

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(self.why)


class NoLibrary(Missing):
    why = "the sandbox has no shared libraries, so `ctypes` tells the sizes of types, and nothing else"


def install() -> None:
    """Puts them where `import` finds them."""
    compressors = dict.fromkeys(("LZMACompressor", "LZMADecompressor", "is_check_supported"), Missing)
    filters = dict.fromkeys(("_encode_filter_properties", "_decode_filter_properties"), Missing)
    numbers = {name: number for number, name in enumerate(CONSTANTS)}
    _add("_lzma", LZMAError=type("LZMAError", (Exception,), {}), **compressors, **filters, **numbers)
    _add("_bz2", BZ2Compressor=Missing, BZ2Decompressor=Missing)
    types = {name: type(name, (NoLibrary,), {"size": struct.calcsize(code)}) for name, code in TYPES.items()}
    calls = ("CDLL", "PyDLL", "CFUNCTYPE", "POINTER", "byref", "cast", "create_string_buffer", "Structure", "Union")
    util = _add("ctypes.util", find_library=lambda name: None)
    loader = SimpleNamespace(LoadLibrary=NoLibrary)
    found = dict.fromkeys(calls, NoLibrary)
    _add("ctypes", __path__=[], sizeof=lambda kind: kind.size, cdll=loader, util=util, **found, **types)


def _add(name: str, **names: Any) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package="__path__" in names)
    vars(module).update(names)
    return module
