"""Adapters over HTTP, by the clients, and by `pie adapters`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from pie_control.cli.main import main
from pie_control.client import Client, SyncClient
from pie_control.config import build_config
from pie_control.errors import BadAdapter, ConfigError, Conflict, Forbidden, UnknownName
from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.servers import started


@asynccontextmanager
async def serving(guest_cache: Path, **settings: object) -> AsyncIterator[str]:
    """The address of a server on the fake model."""
    async with started(guest_cache, InProcessClient(FakeModel()), warm_pool=0, **settings) as api:
        server = HttpServer(api, bind("127.0.0.1", 0), build_config({}))
        await server.start()
        try:
            yield server.url
        finally:
            await server.close()


def write(folder: Path, text: str = '{"bytes": 70}') -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(text)
    return folder


def test_load_list_and_drop(guest_cache: Path, tmp_path: Path) -> None:
    async def check() -> None:
        poet, broken = write(tmp_path / "in" / "poet"), write(tmp_path / "in" / "broken", "{")
        outside = write(tmp_path / "outside")
        (tmp_path / "in" / "link").symlink_to(outside)
        async with serving(guest_cache, adapter_dir=str(tmp_path / "in")) as url, Client(url) as client:
            assert await client.adapters() == []
            wanted = {"name": "poet", "model": "fake", "folder": "poet", "bytes": 70}
            assert await client.load_adapter("poet", "poet") == wanted
            assert await client.load_adapter("same", str(poet), "fake") == {**wanted, "name": "same"}
            assert await client.adapters() == [wanted, {**wanted, "name": "same"}]
            with pytest.raises(Conflict, match="has an adapter 'poet' already"):
                await client.load_adapter("poet", "poet")
            with pytest.raises(BadAdapter, match=r"^broken: adapter_config\.json: unreadable"):  # and no path of ours
                await client.load_adapter("broken", broken.name)
            for folder in ("nothing", "../outside", str(outside), "link", "a\0b", "poet/adapter_config.json"):
                with pytest.raises(UnknownName, match=r"is no folder inside --adapter-dir of the server: adapters are"):
                    await client.load_adapter("new", folder)
            with pytest.raises(UnknownName, match="no model 'other'; the server has: fake"):
                await client.load_adapter("new", "poet", "other")
            await client.drop_adapter("same", "fake")
            with pytest.raises(UnknownName, match="has no adapter 'same'; it has: poet"):
                await client.drop_adapter("same")
            async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                answer = await http.post("/v1/adapters", json={"name": "x", "folder": "broken"})
                assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad-adapter")
                answer = await http.post("/v1/adapters", json={"name": "x"})
                assert answer.status_code == 400
                assert (await http.post("/v1/adapters", json={"name": "x", "folder": "poet"})).status_code == 201
                assert (await http.delete("/v1/adapters/x")).json()["name"] == "x"

    asyncio.run(check())


def test_clients_load_nothing_where_there_is_no_folder(guest_cache: Path, tmp_path: Path) -> None:
    async def check() -> None:
        given = [f"poet={write(tmp_path / 'poet')}"]
        async with serving(guest_cache, adapter=given) as url, Client(url) as client:
            assert [each["name"] for each in await client.adapters()] == ["poet"]
            with pytest.raises(Forbidden, match="start the server with --adapter-dir FOLDER"):
                await client.load_adapter("new", str(tmp_path / "poet"))

    asyncio.run(check())


def test_a_broken_adapter_keeps_the_server_from_starting(guest_cache: Path, tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises(ConfigError, match=r"--adapter poet=/.*: adapter_config\.json: unreadable"):
            async with serving(guest_cache, adapter=[f"poet={write(tmp_path / 'poet', '{')}"]):
                pass

    asyncio.run(check())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("poet", "adapter must be [MODEL/]NAME=FOLDER, not 'poet'"),
        ("poet=/nowhere", "adapter poet: no folder /nowhere"),
        ("other/poet=.", "adapter poet: no model 'other'; there are: demo"),
    ],
)
def test_wrong_settings(given: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config({"adapter": [given]}).resolved()
    assert message in str(caught.value)


def test_pie_adapters(guest_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def commands(url: str) -> None:
        assert main(["adapters", "load", "poet=poet", "painter=poet", "--server", url]) == 0
        assert main(["adapters", "--server", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:3] for line in lines[1:]] == [["poet", "fake", "70"], ["painter", "fake", "70"]]
        assert main(["adapters", "drop", "poet", "--model", "fake", "--server", url]) == 0
        assert main(["adapters", "list", "--json", "--server", url]) == 0
        assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["painter"]
        for wrong, message in (
            (["load", "poet"], "`pie adapters load` takes NAME=FOLDER"),
            (["drop", "poet=x"], "`pie adapters drop` takes NAME"),
            (["drop", "poet"], "has no adapter 'poet'"),
        ):
            assert main(["adapters", *wrong, "--server", url]) == 2
            assert message in capsys.readouterr().err
        with SyncClient(url) as client:
            assert client.load_adapter("again", "poet")["bytes"] == 70
            client.drop_adapter("again")
            assert len(client.adapters()) == 1

    async def check() -> None:
        write(tmp_path / "poet")
        async with serving(guest_cache, adapter_dir=str(tmp_path)) as url:
            await asyncio.to_thread(commands, url)

    asyncio.run(check())
