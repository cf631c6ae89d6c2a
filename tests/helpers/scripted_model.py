"""A fake model that writes a script: it knows which tokens it sees, and a function of them says the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from pie_control.testing.fake_model import FakeModel, Floats
from pie_inference.protocol import Array, CopyEmb, CopyKvpage, EmbedTxt, Forward, ModelDescription
from pie_inference.testing import byte_tokenizer


class ScriptedModel(FakeModel):
    """Its tokens are bytes, then the special tokens of the byte tokenizer, then `special`."""

    def __init__(
        self, next_token: Callable[[list[int]], int], template: str, special: Sequence[str] = (), **options: int
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]  # all of them are numbers
        self._next_token = next_token
        size = byte_tokenizer.VOCAB_SIZE + len(special)
        self._description = msgspec.structs.replace(
            self._description,
            vocab_size=size,
            max_dist=size,
            tokenizer=byte_tokenizer.tokenizer_json(size, special),
            tokenizer_config={**byte_tokenizer.tokenizer_config(), "chat_template": template},
        )
        self._said: dict[int, int] = {}  # tokens of input embeds
        self._kept: dict[int, int] = {}  # tokens of slots
        self._seen: dict[int, list[int]] = {}  # tokens that outputs see

    def describe(self) -> tuple[ModelDescription, ...]:
        return (self._description,)

    def _embed_txt(self, batch: EmbedTxt) -> None:
        super()._embed_txt(batch)
        self._said.update(zip(batch.embeds.tolist(), self._resolve(batch.tokens).tolist(), strict=True))

    def _copy_kvpage(self, batch: CopyKvpage) -> None:
        super()._copy_kvpage(batch)
        self._kept.update(
            {to: self._kept[of] for of, to in zip(batch.source.tolist(), batch.target.tolist(), strict=True)}
        )

    def _copy_emb(self, batch: CopyEmb) -> None:
        super()._copy_emb(batch)
        self._seen.update(
            {to: self._seen[of] for of, to in zip(batch.source.tolist(), batch.target.tolist(), strict=True)}
        )

    def _forward(self, batch: Forward) -> None:
        super()._forward(batch)
        tokens = [self._said[embed] for embed in batch.q_embeds.tolist()]
        self._kept.update(zip(batch.q_slots.tolist(), tokens, strict=True))
        seen: list[list[int]] = []
        for n in range(len(batch.q_indptr) - 1):
            slots = self._key_slots(batch, n).tolist()
            count = int(batch.q_indptr[n + 1] - batch.q_indptr[n])
            seen += [[self._kept[slot] for slot in slots[: len(slots) - count + row + 1]] for row in range(count)]
        self._seen.update(zip(batch.out_embeds.tolist(), [seen[row] for row in batch.out_rows.tolist()], strict=True))

    def _scores(self, embeds: Array) -> Floats:
        scores = np.zeros((len(embeds), self._description.vocab_size))
        for row, embed in enumerate(embeds.tolist()):
            scores[row, self._next_token(self._seen[embed])] = 50.0
        return scores
