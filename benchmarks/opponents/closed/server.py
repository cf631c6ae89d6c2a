"""Answers completions with the engine."""

from __future__ import annotations

import asyncio
import itertools
from http import HTTPStatus
from typing import Any

from pie_control.errors import PieError
from pie_control.services.stop_strings import StopStrings
from pie_control.services.tokenizer import Detokenizer, Tokenizer

from .engine import Engine
from .http import Exchange, Refused
from .requests import Chat, Completion, read
from .sequence import End, Sequence


class CompletionServer:
    """The routes of a server of one model."""

    def __init__(self, engine: Engine) -> None:
        model = engine.description
        self._engine = engine
        self._tokenizer = Tokenizer(model.tokenizer, model.tokenizer_config, model.vocab_size)
        self._numbers = itertools.count(1)

    async def handle(self, exchange: Exchange) -> None:
        """Answers one request. Raises Refused."""
        match exchange.method, exchange.path:
            case "POST", "/v1/completions":
                await self._complete(exchange, Completion)
            case "POST", "/v1/chat/completions":
                await self._complete(exchange, Chat)
            case "GET", "/v1/models":
                model = self._engine.description
                about = {"id": model.name, "object": "model", "owned_by": "pie", "max_model_len": model.max_context}
                exchange.answer({"object": "list", "data": [about]})
            case "GET", "/health":
                exchange.answer({})
            case method, path:
                known = "POST /v1/completions, POST /v1/chat/completions, GET /v1/models and GET /health"
                raise Refused(f"there is no {method} {path[:200]}: there are {known}", HTTPStatus.NOT_FOUND)

    async def _complete(self, exchange: Exchange, kind: type[Completion] | type[Chat]) -> None:
        asked, tokens = read(exchange.body, kind, self._tokenizer)
        model = self._engine.description.name
        if asked.model not in ("", model):
            raise Refused(f"there is no model {asked.model!r}: there is {model!r}", HTTPStatus.NOT_FOUND)
        answer = _Answer(exchange, asked, model, len(tokens), next(self._numbers))
        choices: list[_Choice] = []
        try:
            for index in range(asked.n):
                choice = _Choice(self._engine, self._tokenizer, answer, index, tokens)
                self._engine.add(choice.sequence)
                choices.append(choice)
            await answer.done.wait()
        except PieError as error:
            raise Refused(str(error)) from None
        finally:
            for one in choices:
                self._engine.cancel(one.sequence)
        answer.finish(choices)


class _Answer:
    """What the choices of a request have in common."""

    def __init__(self, exchange: Exchange, asked: Completion | Chat, model: str, prompt: int, number: int) -> None:
        self.exchange = exchange
        self.asked = asked
        self.done = asyncio.Event()
        self._is_chat = isinstance(asked, Chat)
        self._prompt = prompt
        self._left = asked.n
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": f"{kind[:4]}-{number}", "object": kind, "created": 0, "model": model}

    def piece(self, index: int, text: str, tokens: list[int], end: End | None) -> None:
        """A piece of a choice goes to who streams, and the others wait for the whole."""
        if end is not None:
            self._left -= 1
        if self.asked.stream:
            told: dict[str, Any] = {"index": index, "finish_reason": end}
            told |= {"delta": {"content": text}} if self._is_chat else {"text": text}
            if self.asked.return_token_ids:
                told["token_ids"] = tokens
            self.exchange.event({**self._head, "choices": [told]})
        if not self._left or self.exchange.is_left:
            self.done.set()

    def finish(self, choices: list[_Choice]) -> None:
        """Ends a stream, or says everything. Raises Refused if the model could not go on."""
        if wrong := next((one.sequence.error for one in choices if one.sequence.error), ""):
            asked = choices[0].sequence.parameters.grammar and not choices[0].sequence.generated
            raise Refused(wrong, HTTPStatus.BAD_REQUEST if asked else HTTPStatus.INTERNAL_SERVER_ERROR)
        counts = self._prompt, sum(one.sequence.generated for one in choices)
        names = "prompt_tokens", "completion_tokens", "total_tokens"
        usage: dict[str, Any] = dict(zip(names, (*counts, sum(counts)), strict=True))
        usage["prompt_tokens_details"] = {"cached_tokens": max(one.sequence.reused for one in choices)}
        if not self.asked.stream:
            self.exchange.answer({**self._head, "choices": [self._whole(one) for one in choices], "usage": usage})
            return
        if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
            self.exchange.event({**self._head, "choices": [], "usage": usage})
        self.exchange.end_events()

    def _whole(self, choice: _Choice) -> dict[str, Any]:
        told: dict[str, Any] = {"index": choice.index, "finish_reason": choice.sequence.end}
        if self._is_chat:
            told["message"] = {"role": "assistant", "content": choice.text}
        else:
            told["text"] = choice.text
        if self.asked.return_token_ids:
            told["token_ids"] = choice.sequence.tokens[choice.sequence.prompt :]
        return told


class _Choice:
    """One of the texts that a request asks for."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, answer: _Answer, index: int, tokens: list[int]) -> None:
        self.index = index
        self.text = ""
        self.sequence = Sequence(list(tokens), answer.asked.parameters(index), self._take)
        self._engine = engine
        self._answer = answer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(answer.asked.stops)

    def _take(self, tokens: list[int], end: End | None) -> None:
        text = self._stops.push(self._detokenizer.push(tokens))
        if self._stops.found:
            self._engine.cancel(self.sequence)
            end = End.STOP
        elif end is not None:
            text += self._stops.rest()
        self.text += text
        self._answer.piece(self.index, text, tokens, end)
