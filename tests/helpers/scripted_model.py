"""A fake model that knows which tokens it sees, and where: a function of them says which one comes next."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from pie_control.testing.fake_model import FakeModel, Floats, Hashes, mix
from pie_inference.grammars.rows import Constraints
from pie_inference.protocol import (
    Array,
    CopyEmb,
    CopyKvpage,
    EmbedImg,
    EmbedTxt,
    Forward,
    RunWave,
    ShiftKvpage,
    WaveDone,
)
from pie_inference.testing import byte_tokenizer
from pie_inference.testing.small_vision import VISION

Pair = tuple[int, int]
"""A token and its position."""
State = tuple[Pair, ...]
"""What a query attends to, in the order of the keys."""
SPECIAL = {name: 256 + n for n, name in enumerate((*byte_tokenizer.SPECIAL_TOKENS, "<|user|>", "<|image|>"))}
STOP = byte_tokenizer.END
IMAGES = msgspec.structs.replace(VISION, placeholder=SPECIAL["<|image|>"])
MERGES = ("t h", "h e", "i s", "th e", "Ġ the", ". .")
"""Tokens of several bytes, which stand behind the special ones."""
HALVES = ("t Ã", "© t")
"""Tokens behind these, which end or begin within an "é"."""
MERGED = {pair.replace(" ", "").replace("Ġ", " "): n for n, pair in enumerate(MERGES, 256 + len(SPECIAL))}
SURE = 50.0
"""The score of a token that the script says, and of what it says no word; the others have 0."""


class ScriptedModel(FakeModel):
    """`next_token` says what follows. Without it, the scores of small letters and of tokens of several bytes depend on
    all that is seen. Vectors of images, and outputs that are fed back, are seen as numbers of their own."""

    def __init__(
        self,
        next_token: Callable[[State], int] | None = None,
        template: str = byte_tokenizer.CHAT_TEMPLATE,
        special: Sequence[str] = tuple(SPECIAL)[3:],
        states: int = 0,
        **options: Any,
    ) -> None:
        """`special`: tokens behind those of the byte tokenizer. `states`: slots for states of texts, which are compared
        with what is seen."""
        super().__init__(**options)
        self.next_token = next_token
        self.waves = 0
        first = byte_tokenizer.VOCAB_SIZE + len(special)
        self._letters = np.array([*range(97, 123), *range(first, first + len(MERGES))])
        size, data = first + len(MERGES) + len(HALVES), _tokenizer(tuple(special))
        self._constraints = Constraints(data, size, (STOP,))
        self._description = msgspec.structs.replace(
            self._description,
            vocab_size=size,
            max_dist=size,
            tokenizer=data,
            tokenizer_config={**byte_tokenizer.tokenizer_config(), "chat_template": template},
            num_states=states,
            states_by_row=states > 0,
            state_bytes=2 * self._description.page_bytes if states else 0,
        )
        self._texts: list[tuple[int, ...]] = [(-1,)] * states  # what states have read
        self.rows = 0  # that have run
        self._said: dict[int, int] = {}  # what embeds are seen as
        self._kept: dict[int, Pair] = {}  # of slots
        self._states: dict[int, State] = {}  # that outputs see

    def run(self, wave: RunWave) -> WaveDone:
        self.waves += 1
        return super().run(wave)

    def scores(self, state: State) -> Floats:
        """Of each token that may follow."""
        scores = np.zeros(self._description.vocab_size)
        if self.next_token is not None:
            scores[self.next_token(state)] = SURE
            return scores
        digest = hashlib.blake2b(repr(state).encode(), digest_size=8).digest()
        hashes = mix(np.frombuffer(digest, np.uint64) ^ mix(self._letters))
        scores[self._letters] = SURE + (hashes >> np.uint64(40)) / 2.0**22
        return scores

    def expected(self, prompt: Sequence[int], count: int, choose: Callable[[Floats], Any] = np.argmax) -> list[int]:
        """Greedy tokens after a prompt, computed without any cache."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(choose(self.scores(tuple((token, n) for n, token in enumerate(tokens))))))
        return tokens[len(prompt) :]

    def _embed_txt(self, batch: EmbedTxt) -> None:
        super()._embed_txt(batch)
        self._said.update(zip(batch.embeds.tolist(), self._resolve(batch.tokens).tolist(), strict=True))

    def _embed_img(self, batch: EmbedImg) -> None:
        super()._embed_img(batch)
        self._said.update(self._numbers(batch.embeds))

    def _numbers(self, embeds: Array) -> Iterator[tuple[int, int]]:
        return zip(embeds.tolist(), self._embeds.read(embeds).tolist(), strict=True)

    def _copy_kvpage(self, batch: CopyKvpage) -> None:
        super()._copy_kvpage(batch)
        read = [self._kept[slot] for slot in batch.source.tolist()]
        self._kept.update(zip(batch.target.tolist(), read, strict=True))

    def _shift_kvpage(self, batch: ShiftKvpage) -> None:
        super()._shift_kvpage(batch)
        for slot, position in zip(batch.slots.tolist(), batch.positions.tolist(), strict=True):
            self._kept[slot] = self._kept[slot][0], position

    def _copy_emb(self, batch: CopyEmb) -> None:
        super()._copy_emb(batch)
        read = [(self._said[embed], self._states.get(embed, ())) for embed in batch.source.tolist()]
        for embed, (said, state) in zip(batch.target.tolist(), read, strict=True):
            self._said[embed], self._states[embed] = said, state

    def _read_states(self, batch: Forward, said: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """What states have read behind each row."""
        assert batch.state_reads is not None
        assert batch.state_writes is not None
        behind, written = dict[int, tuple[int, ...]](), self._texts.copy()
        for n, read in enumerate(batch.state_reads.tolist()):
            text = () if read < 0 else self._texts[read]
            for row in range(batch.q_indptr[n], batch.q_indptr[n + 1]):
                behind[row] = text = (*text, said[row])
                if (slot := int(batch.state_writes[row])) >= 0:
                    written[slot] = text
        self._texts = written
        return behind

    def _forward(self, batch: Forward) -> None:
        self.rows += len(batch.q_embeds)
        changes: Hashes = self._adapters.changes(batch)
        pairs = [
            (self._said[embed] + change, position)
            for embed, position, change in zip(
                batch.q_embeds.tolist(), batch.q_positions.tolist(), changes.tolist(), strict=True
            )
        ]
        super()._forward(batch)
        self._kept.update(zip(batch.q_slots.tolist(), pairs, strict=True))
        wanted = set(batch.out_rows.tolist())
        states = {}
        for n, first in enumerate(batch.q_indptr[:-1].tolist()):
            count = int(batch.q_indptr[n + 1]) - first
            if not wanted.isdisjoint(range(first, first + count)):
                slots = self._key_slots(batch, n)
                mask = self._mask(batch, n, count, slots)
                seen = np.tri(count, len(slots), len(slots) - count, dtype=np.bool_) if mask is None else mask
                keys = [self._kept[slot] for slot in slots.tolist()]
                for row in wanted & set(range(first, first + count)):
                    states[row] = tuple(keys[place] for place in np.flatnonzero(seen[row - first]).tolist())
        if self._texts:
            behind = self._read_states(batch, [said for said, _ in pairs])
            assert all(tuple(said for said, _ in seen) == behind[row] for row, seen in states.items())
        outputs = zip(batch.out_embeds.tolist(), batch.out_rows.tolist(), strict=True)
        self._states.update((embed, states[row]) for embed, row in outputs)
        self._said.update(self._numbers(batch.out_embeds))

    def _scores(self, embeds: Array) -> Floats:
        rows = [self.scores(self._states[embed]) for embed in embeds.tolist()]
        return np.array(rows).reshape(len(rows), self._description.vocab_size)


@functools.cache
def _tokenizer(special: tuple[str, ...]) -> bytes:
    first = byte_tokenizer.VOCAB_SIZE + len(special)
    content = json.loads(byte_tokenizer.tokenizer_json(first, special))
    content["model"]["merges"] = [*MERGES, *HALVES]
    content["model"]["vocab"] |= {token["content"]: token["id"] for token in content["added_tokens"]}
    content["model"]["vocab"] |= {pair.replace(" ", ""): first + n for n, pair in enumerate((*MERGES, *HALVES))}
    return json.dumps(content).encode()
