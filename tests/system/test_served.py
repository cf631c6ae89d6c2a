"""A program of docs/serving-programs.md answers requests over real HTTP, in the sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.tree import ROOT

BLOCK = "    import json\n"


def program_of(page: str) -> str:
    """The indented block of a page that begins with BLOCK."""
    lines = page[page.index(BLOCK) :].splitlines()
    block = lines[: next(n for n, line in enumerate(lines) if line and not line.startswith("    "))]
    return "\n".join(line[4:] for line in block) + "\n"


def test_a_program_answers_requests(guest_cache: Path) -> None:
    page = (ROOT / "docs" / "serving-programs.md").read_text("utf-8")
    with (
        live_server(guest_cache) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=HANG_SECONDS) as client,
    ):
        uploaded = client.post("/v1/programs?name=words", content=program_of(page))
        assert uploaded.status_code == 200, uploaded.text
        body = {"model": f"{client.get('/v1/models').json()['data'][0]['id']}+words", "prompt": "Once upon"}
        first, whole = (client.post("/v1/completions", json=body, headers={"x-request-id": "r7"}) for _ in range(2))
        assert whole.status_code == 200, whole.text
        text = whole.json()["text"]
        assert len(text) > 0
        assert first.json()["id"] != whole.json()["id"], "whatever their client calls them"
        streamed = client.post("/v1/completions", json=body | {"stream": True})
        events = [event.removeprefix("data: ") for event in streamed.text.strip().split("\n\n")]
        assert events.pop() == "[DONE]"
        assert "".join(json.loads(event)["text"] for event in events) == text
        wrong = client.post("/v1/completions", json={"model": body["model"]})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (500, "program-failed")
        log = client.get(f"/v1/inferlets/{wrong.json()['error']['message'].split('/')[3]}")
        assert "KeyError" in log.json()["error"]
        tokens = client.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False}).json()
        assert tokens["tokens"] == [97, 98]
        assert client.post("/detokenize", json={"tokens": [97, 98]}).json() == {"prompt": "ab"}
