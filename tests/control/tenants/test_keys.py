"""Keys as texts, and what the command line says of them."""

from __future__ import annotations

import pytest

from pie_control.errors import ConfigError
from pie_control.tenants.keys import SHAPE, is_key, make_key, read_capabilities, read_lasting


def test_a_key_has_a_checksum() -> None:
    key = make_key()
    assert SHAPE.fullmatch(key)
    assert len(key) == len("pie_") + 43
    assert is_key(key)
    assert key != make_key()
    changed = key[:10] + ("a" if key[10] != "a" else "b") + key[11:]
    for other in (changed, key[:-1], key + "0", key.upper(), "", "pie_", "pie_" + "é" * 43):
        assert not is_key(other)


def test_capabilities_and_times_are_read() -> None:
    assert read_capabilities("upload, launch") == ("launch", "upload")
    assert read_capabilities("") == ()
    with pytest.raises(ConfigError, match="no capability 'root'; there are: launch, upload, http, adapters, admin"):
        read_capabilities("root")
    assert [read_lasting(text) for text in ("90d", "12h", "5m")] == [90 * 86400, 12 * 3600, 300]
    for text in ("", "90", "0d", "-1d", "1y"):
        with pytest.raises(ConfigError, match="90d, 12h or 30m"):
            read_lasting(text)
