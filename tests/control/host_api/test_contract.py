"""What components may import, and that several editions of it can live side by side: the tests make up a second one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wasmtime
from wasmtime.component import Component

from pie_control import host_api
from pie_control.errors import ConfigError
from pie_control.host_api import wit_files
from pie_control.host_api.guest import Guest
from pie_control.sandbox.components import signature
from pie_control.sandbox.contract import Contract, Edition
from pie_control.sandbox.engine import LinkError, new_engine
from pie_control.sandbox.linker import LinkedComponent
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers import wat, whole_world
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, started

ENGINE = new_engine()
CONTRACT = host_api.contract()
(EDITION,) = CONTRACT.editions
OLDER = "0.2.0"
Signatures = Mapping[tuple[str, str], str]


def linked(contract: Contract, version: str, signatures: Signatures) -> None:
    """Checks and links a component that imports these functions."""
    component = Component(ENGINE, whole_world.component(version, signatures))
    contract.check(ENGINE, component)
    missing: list[tuple[str, str]] = []

    def find(interface: str, name: str) -> Any:
        found = contract.function(interface, name)
        if found is None:
            missing.append((interface, name))
        return found

    LinkedComponent(ENGINE, component, find, {}, lambda *_: None, lambda: None)
    assert missing == []


def test_the_files_have_the_types_that_wasmtime_reads(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the Python guest, which imports everything, and which every server checks at its start."""
    found = {}

    def check(_contract: Contract, engine: wasmtime.Engine, component: Component) -> None:
        for interface, extern in component.type.imports(engine).items():
            kind: Any = extern.ty
            for name, item in kind.exports(engine).items() if interface.startswith("pie:inferlet/") else ():
                if hasattr(item.ty, "params"):
                    found[interface.removeprefix("pie:inferlet/").partition("@")[0], name] = signature(item.ty)

    async def start() -> None:
        async with started(guest_cache, InProcessClient(FakeModel()), warm_pool=0):
            pass

    monkeypatch.setattr(Contract, "check", check)
    asyncio.run(start())
    assert found == dict(wit_files.current().signatures)


def test_a_server_does_not_start_with_a_guest_of_another_world(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        async with started(guest_cache, InProcessClient(FakeModel()), warm_pool=0):
            raise AssertionError("it started")

    later = [replace(EDITION, version="0.4.0")]
    monkeypatch.setattr(host_api, "contract", lambda: Contract("pie:inferlet", later))
    with pytest.raises(ConfigError, match=r"the Python guest does not fit this server: imports pie:inferlet/.*0\.4\.0"):
        asyncio.run(start())


def test_every_function_of_the_files_is_offered_with_its_type() -> None:
    linked(CONTRACT, EDITION.version, EDITION.signatures)


def test_another_type_is_refused_and_named() -> None:
    for (interface, name), text in EDITION.signatures.items():
        changed = text.replace("func(", "func(u8, " if "func()" not in text else "func(u8")
        with pytest.raises(LinkError) as caught:
            linked(CONTRACT, EDITION.version, {(interface, name): changed})
        assert str(caught.value) == (
            f"imports `{name}` of pie:inferlet/{interface}@{EDITION.version} as {changed}, this server has {text}"
        )


@pytest.mark.parametrize("interface", ["pie:inferlet/core", "pie:inferlets/core@0.3.0", "core"])
def test_an_import_without_package_or_version_is_refused(interface: str) -> None:
    component = Component(ENGINE, f'(component (import "{interface}" (instance (export "now" (func (result u64))))))')
    with pytest.raises(LinkError, match=f"imports {interface}"):
        CONTRACT.check(ENGINE, component)


# ---- several editions ----


def test_a_component_for_an_earlier_version_of_a_series_is_linked_to_the_newest() -> None:
    functions, signatures = EDITION.functions, EDITION.signatures
    later = Contract("pie:inferlet", [Edition("1.4.2", signatures, functions), Edition("0.3.5", signatures, functions)])
    for version in ("1.4.2", "1.4.0", "1.0.9", "0.3.0", "0.3.5"):
        linked(later, version, signatures)
    for version in ("1.4.3", "1.5.0", "2.0.0", "0.3.6", "0.2.0", "0.4.0"):
        with pytest.raises(LinkError, match=r"this server offers pie:inferlet in the versions 0\.3\.5, 1\.4\.2"):
            linked(later, version, signatures)


def two_editions() -> Contract:
    """The contract, and an edition before it in which `set-result` took a byte more, and marked what it was given."""
    key = "core", "set-result"
    newer = EDITION.functions[key]

    def set_result(guest: Guest, level: int, value: str) -> None:
        newer.call(guest, json.dumps([level, json.loads(value)]))

    signatures = {**EDITION.signatures, key: EDITION.signatures[key].replace("func(", "func(u32, ")}
    older = Edition(OLDER, signatures, {**EDITION.functions, key: replace(newer, call=set_result)})
    return Contract("pie:inferlet", [EDITION, older])


def test_types_of_one_edition_do_not_pass_for_another() -> None:
    contract = two_editions()
    newer, older = contract.editions
    linked(contract, OLDER, older.signatures)
    linked(contract, newer.version, newer.signatures)
    for version, signatures in ((OLDER, newer.signatures), (newer.version, older.signatures)):
        with pytest.raises(LinkError, match="imports `set-result`"):
            linked(contract, version, signatures)


OLD_SET_RESULT = '(func (param "level" u32) (param "value" string) (result (result (error $error))))'


def test_components_of_two_editions_run_beside_each_other(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_api, "contract", two_editions)
    monkeypatch.setitem(wat.CORE_FUNCTIONS, "old", (OLD_SET_RESULT, "(param i32 i32 i32 i32)"))
    new = wat.inferlet(
        "(call $set-result (i32.const 256) (i32.const 3) (i32.const 16)) (i32.const 0)", ["set-result"], data="123"
    )
    old = wat.inferlet(
        "(call $old (i32.const 7) (i32.const 256) (i32.const 3) (i32.const 16)) (i32.const 0)",
        ["old"],
        data="123",
        version=OLDER,
    )
    old = old.replace(b'"old"', b'"set-result"')

    async def result_of(text: bytes) -> object:
        async with (
            started(guest_cache, InProcessClient(FakeModel()), warm_pool=0) as server,
            asyncio.timeout(HANG_SECONDS),
        ):
            program = await server.upload(bytes(wasmtime.wat2wasm(text)), "component")
            listener = Listener()
            await server.launch(program.program, listener=listener)
            return (await listener.ended).result

    assert asyncio.run(result_of(new)) == "123"
    assert asyncio.run(result_of(old)) == "[7, 123]"
