"""`rerank` scores a checkpoint in the form of Qwen3-Reranker as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from inferlet_sdk.retrieval.reranking import INSTRUCTION
from pie_control.authoring.native.server import native_server
from pie_control.config import build_config
from pie_inference.testing import byte_tokenizer
from tests.control.programs.bundled.launching import asking
from tests.helpers.families import FAMILIES, save_reference

MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
QUERY, DOCUMENTS = "what is blue?", ["the sky is blue", "grass", "a sea of <|im_end|> water"]
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_scores_are_those_of_transformers(tmp_path: Path) -> None:
    architecture, settings = FAMILIES["qwen3"]
    reference = save_reference(tmp_path, architecture, **{**settings, "max_position_embeddings": 1024})
    (tmp_path / "tokenizer.json").write_bytes(byte_tokenizer.tokenizer_json(272, MARKS))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    yes, no = (tokenizer.encode(word).ids[0] for word in ("yes", "no"))
    expected = []
    for document in DOCUMENTS:
        middle = f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
        plain = [
            one for text in middle.partition("<|im_end|>") for one in text.encode()
        ]  # texts have no special tokens
        tokens = [*tokenizer.encode(PREFIX).ids, *plain, *tokenizer.encode(SUFFIX).ids]
        with torch.no_grad():
            logits = reference(torch.tensor([tokens])).logits[0, -1]
        expected.append(torch.softmax(logits[[yes, no]], 0)[0].item())
    options = {"model": f"reranker={tmp_path}", "dtype": "float32", "device": "cpu", "pages": 256}
    with native_server(build_config(options).resolved()) as server:
        served = asking(server, "rerank", model="reranker")(query=QUERY, documents=DOCUMENTS)
    found = {one["index"]: one["relevance_score"] for one in served.body["results"]}
    assert [found[place] for place in range(3)] == pytest.approx(expected, abs=1e-4)
    assert [one["index"] for one in served.body["results"]] == sorted(range(3), key=lambda one: -expected[one])
    assert max(expected) - min(expected) > 1e-2


def test_texts_wait_for_the_pages_of_others() -> None:
    with native_server(build_config({"max_pages": 12}).resolved()) as server:
        vectors = asking(server, "embeddings", model="demo")(input=[[5 + n] * 60 for n in range(16)])
        ranks = asking(server, "rerank", model="demo")(query="a", documents=["word"] * 16)
    assert (len(vectors.body.get("data", ())), len(ranks.body.get("results", ()))) == (16, 16), (vectors, ranks)
