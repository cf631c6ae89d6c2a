"""The texts and scores of the beams are those of transformers' beam search, at widths 3 and 5."""

from __future__ import annotations

import random
from typing import Any

from examples.checks import DEMO_MODEL, Measure, program
from examples.demo_model.evaluate import skill_case
from examples.demo_model.lists import ideas
from pie_control.client import Client

PAPER_LINES = 98
IN_VLLM, IN_SGLANG = "yes", "no"
LEAST = 2
WIDTHS = (3, 5)
LENGTH = 24

draw_question = skill_case(ideas)


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # a small model, beside a server at work

    model: Any = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    draw = random.Random(seed)
    equal, furthest, gains = 0, 0.0, 0
    for _ in range(problems):
        question = draw_question(draw).messages[-1].content
        chat: Any = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        for width in WIDTHS:
            found = await client.run(program("beam_search"), question=question, width=width, length=LENGTH)
            options: Any = {"num_return_sequences": width, "return_dict_in_generate": True, "output_scores": True}
            wanted = model.generate(**chat, num_beams=width, max_new_tokens=LENGTH, do_sample=False, **options)
            texts = tokenizer.batch_decode(wanted.sequences[:, chat["input_ids"].shape[1] :], skip_special_tokens=True)
            equal += [text for text, _ in found["beams"]] == texts
            scores = zip(found["beams"], wanted.sequences_scores.tolist(), strict=True)
            furthest = max(furthest, *(abs(score - other) for (_, score), other in scores))
            gains += found["beams"][0][0] != found["greedy"]
    searches = problems * len(WIDTHS)
    return [
        Measure("searches with transformers' texts, in order", equal / searches, at_least=1.0),
        Measure("largest difference of a score", furthest, at_most=1e-4),
        Measure("searches whose best text is not greedy's", gains / searches),
    ]
