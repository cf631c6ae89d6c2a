"""The pages of the dashboard: what a browser may do with them, and that they are whole."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from pie_control.http_server.dashboard.pages import STATIC
from pie_control.http_server.guard import PAGES
from tests.control.tenants.test_accounts import ALICE, written
from tests.helpers.fake_server_api import FakeServerApi, serve_async

SCRIPTS = sorted(path for path in STATIC.glob("*.js"))
IMPORTED = re.compile(r'from "\./([\w/.]+)"')
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
LINKED = re.compile(r'(?:href|src)="assets/([\w/.]+)"')


def test_pages_run_nothing_but_their_own_files(tmp_path: Path) -> None:
    tenants = written(tmp_path, f'[tenants.alice]\ntokens = ["{ALICE}"]\n')

    async def test(url: str, _: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            for path in PAGES:
                answer = await client.get(path)  # without a token: a page asks for one itself
                assert answer.status_code == 200
                rules = answer.headers["content-security-policy"].split(";")
                policy = dict(rule.strip().partition(" ")[::2] for rule in rules)
                assert policy["default-src"] == "'none'"
                assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
                assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
                assert answer.headers["x-content-type-options"] == "nosniff"
                again = await client.get(path, headers={"if-none-match": answer.headers["etag"]})
                assert (again.status_code, again.content) == (304, b"")
            assert (await client.get("/v1/dashboard")).status_code == 401
            assert (await client.post("/")).status_code == 401
            assert (await client.get("/redoc")).status_code == 401, "it would load its script from elsewhere"
            for path in ("/assets/none.js", "/assets/../deltas.py", "/assets/%2e%2e/deltas.py", "/assets/"):
                assert (await client.get(path)).status_code in (401, 404), path

    serve_async(test, tenants=str(tenants))


def test_all_that_pages_need_is_there() -> None:
    for page in STATIC.glob("*.html"):
        text = page.read_text()
        assert "<style" not in text
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|https?://", text), "the policy refuses it"
        assert LINKED.findall(text)
        for name in LINKED.findall(text):
            assert (STATIC / name).is_file(), f"{page.name} links {name}"
    for script in SCRIPTS:
        for name in IMPORTED.findall(script.read_text()):
            assert (STATIC / name).is_file(), f"{script.name} imports {name}"


def test_what_others_wrote_is_text_in_our_scripts() -> None:
    makes_html = r"innerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\b|Storage"
    for script in SCRIPTS:
        found = re.search(makes_html, script.read_text())
        assert found is None, f"{script.name} has {found and found[0]}"


def test_vendored_files_stand_beside_their_licences() -> None:
    names = {path.name for path in (STATIC / "vendor").iterdir()}
    assert {"LICENSE-htm.txt", "LICENSE-preact.txt", "LICENSE-uplot.txt"} <= names
    names = {path.name for path in (STATIC / "vendor" / "swagger").iterdir()}
    assert {"LICENSE.txt", "NOTICE.txt", "swagger-ui-bundle.js.LICENSE.txt"} <= names


def node(tmp_path: Path, script: str, code: str) -> str:
    """What `code` prints behind `import * as it` of a script."""
    shutil.copy(STATIC / script, tmp_path / "it.mjs")
    (tmp_path / "test.mjs").write_text(f'import * as it from "./it.mjs";\n{code}')
    return subprocess.run(["node", str(tmp_path / "test.mjs")], check=True, capture_output=True, text=True).stdout


@needs_node
def test_the_rate_of_a_tenant_that_does_nothing_more_is_none(tmp_path: Path) -> None:
    code = """
    const store = new it.Store(), told = (tokens) => ({ sections: { tenants: [{ tenant: "a", tokens }] } });
    for (const [time, more] of [[10, told(0)], [11, told(50)], [11.5], [12], [13]]) {
      store.apply({ time, ...more });
      console.log(store.sections.tenants[0].rate);
    }"""
    assert node(tmp_path, "store.js", code).split() == ["0", "50", "50", "0", "0"]


@needs_node
def test_what_ends_a_stream_is_told_and_a_key_can_be_sent(tmp_path: Path) -> None:
    code = """
    const body = 'data: {"time": 1}\\n\\nevent: error\\ndata: {"error": {"message": "its key was revoked"}}\\n\\n';
    globalThis.fetch = async () => new Response(body);
    try {
      for await (const { data } of it.events("v1/dashboard")) console.log(data.time);
    } catch (error) {
      console.log(error.message);
    }
    console.log(["", " pie_a-1 ", "schlüssel", "a b", "п"].map(it.canBeKey).join());"""
    assert node(tmp_path, "client.js", code).split("\n") == [
        "1",
        "its key was revoked",
        "true,true,false,false,false",
        "",
    ]


@needs_node
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_parsed(script: Path, tmp_path: Path) -> None:
    module = tmp_path / f"{script.stem}.mjs"  # node takes its name to mean that it is a module
    shutil.copy(script, module)
    subprocess.run(["node", "--check", str(module)], check=True, capture_output=True)
