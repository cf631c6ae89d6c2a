"""Vectors and scores of texts, by the programs of /v1/embeddings and /v1/rerank, over real HTTP."""

from __future__ import annotations

import math
import struct
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server

TEXTS = ["the sky is blue", "grass", "the sky is blue"]


@pytest.fixture(scope="module")
def client(guest_cache: Path) -> Iterator[httpx.Client]:
    with (
        live_server(guest_cache) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=HANG_SECONDS) as client,
    ):
        yield client


def embed(client: httpx.Client, **fields: Any) -> Any:
    answer = client.post("/v1/embeddings", json={"model": "fake", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_texts_get_vectors(client: httpx.Client) -> None:
    found = embed(client, input=TEXTS)
    first, second, again = (one["embedding"] for one in found["data"])
    assert [one["index"] for one in found["data"]] == [0, 1, 2]
    assert (found["object"], found["model"]) == ("list", "fake")
    assert found["usage"] == {"prompt_tokens": 35, "total_tokens": 35}
    assert first == again
    assert math.hypot(*first) == pytest.approx(1, abs=1e-6)
    assert first != second
    tokens = [list(text.encode()) for text in TEXTS]
    assert embed(client, input=tokens)["data"] == found["data"]
    assert embed(client, input=tokens[1])["data"][0]["embedding"] == second
    packed = embed(client, input=TEXTS[1], encoding_format="base64")["data"][0]["embedding"]
    assert [*struct.unpack("<8f", b64decode(packed))] == second
    short = embed(client, input=TEXTS[1], dimensions=3)["data"][0]["embedding"]
    assert short == pytest.approx([number / math.hypot(*second[:3]) for number in second[:3]], abs=1e-6)


def test_what_is_longer_than_the_context_has_a_code_of_its_own(client: httpx.Client) -> None:
    for route, param, fields in (
        ("embeddings", "input", {"input": ["x" * 5000]}),
        ("rerank", "documents", {"query": "a", "documents": ["x" * 5000]}),
    ):
        answer = client.post(f"/v1/{route}", json={"model": "fake", **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)


def test_documents_are_ranked(client: httpx.Client) -> None:
    body = {"model": "fake", "query": "what is blue?", "documents": [*TEXTS[:2], {"text": "sea"}], "top_n": 2}
    found = client.post("/v1/rerank", json=body).json()
    scores = [one["relevance_score"] for one in found["results"]]
    assert len(scores) == 2
    assert 1 > scores[0] >= scores[1] > 0
    assert all(one["document"]["text"] == [*TEXTS[:2], "sea"][one["index"]] for one in found["results"])
    whole = client.post("/v1/rerank", json=body | {"top_n": None, "return_documents": False}).json()
    assert [one["relevance_score"] for one in whole["results"]][:2] == scores
    assert sorted(one["index"] for one in whole["results"]) == [0, 1, 2]
    assert "document" not in whole["results"][0]
    best = found["results"][0]
    alone = client.post("/v1/rerank", json=body | {"documents": [best["document"]["text"]]}).json()
    assert alone["results"][0]["relevance_score"] == pytest.approx(best["relevance_score"])


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("embeddings", {}, "input"),
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": ["a", 5]}, "input"),
        ("embeddings", {"input": [""]}, "input"),
        ("embeddings", {"input": "a" * 5000}, "input"),
        ("embeddings", {"input": "a", "dimensions": 9}, "dimensions"),
        ("embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("rerank", {"documents": ["a"]}, "query"),
        ("rerank", {"query": "a", "documents": []}, "documents"),
        ("rerank", {"query": "a", "documents": [7]}, "documents"),
        ("rerank", {"query": "a", "documents": ["a" * 5000]}, "documents"),
    ],
)
def test_a_field_that_is_wrong_is_named(route: str, fields: dict[str, Any], param: str, client: httpx.Client) -> None:
    answer = client.post(f"/v1/{route}", json={"model": "fake", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
