"""What a context holds, how it is filled and cut, and its life."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NoReturn, Self

from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.filling.conversation import Conversation
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.images import Image, as_image
from inferlet_sdk.sequences.dropping import check_droppable, check_end
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.texts import Noted, shown, tokenize_noted
from inferlet_sdk.tools.declaring import AnyTool
from inferlet_sdk.traits.arguments import flag, numbers, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.core import ModelInfo
from inferlet_sdk.traits.outside.blobs import Blob


class FilledContext:
    """The text of a context, with its KV cache: all of `Context` but what the model makes of it."""

    def _start(self, sequence: TokenSequence) -> None:
        self._sequence = sequence
        self._noted: list[Noted | Image] = []
        self._generation: Generation | None = None
        self._conversation = Conversation()

    def __repr__(self) -> str:
        sequence = self._sequence
        if sequence.closed:
            return f"<Context of {sequence.info.name}: closed>"
        state = "idle" if self._generation is None or self._generation.stop_reason else "generating"
        text = sequence.last_text() + "".join(one.text for one in self._noted)
        return f"<Context of {sequence.info.name}: {len(sequence.tokens)} tokens, {state}: {shown(text)}>"

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        """For `copy` and `pickle`: a copy would write into the same pages."""
        raise TypeError("a context is not copied or pickled: `fork()` makes one like it, `snapshot()` a text of it")

    # ---- what it holds -------------------------------------------------------------------------------------------

    @property
    def model(self) -> ModelInfo:
        """The model's page size, limits and stop tokens."""
        return self._sequence.info

    @property
    def queue(self) -> int:
        """A command queue of its own, made when it is first asked for, for the calls of `traits`."""
        return self._sequence.own_queue()

    @property
    def pages(self) -> Pages:
        """Its KV pages."""
        return self._sequence.own_pages()

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens, filled and generated."""
        return tuple(self._read().tokens)

    @property
    def text(self) -> str:
        """Text of all tokens, without special tokens."""
        sequence = self._read()
        return sequence.detokenize(sequence.tokens)

    @property
    def found(self) -> int:
        """Number of first tokens that were not run, because other inferlets of the same user had their keys. It is
        known when the first output is."""
        self._check_open()
        return self._sequence.found

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._read().tokens)

    # ---- filling -------------------------------------------------------------------------------------------------

    def fill(self, text: str | Iterable[int], *, special_tokens: bool = True) -> Self:
        """Appends text or tokens; adds no special tokens. Those written in the text are recognized: `fill` is for the
        program's own text. Give text of others with `special_tokens=False`: then it is plain text, whatever it says.
        """
        if isinstance(text, str):
            noted = Noted(checked_text(text, "text"), flag(special_tokens, "special_tokens"))
            self._open("fill")
            self._noted.append(noted)
        else:
            if not isinstance(text, Iterable):
                raise wrong("text", "text, or a list of token ids", text)
            self._settled("fill").append(numbers(text, "text", "a token id"))
        return self

    def fill_image(self, image: str | Blob | Image) -> Self:
        """Appends an image: the name of a blob that the client has sent, a Blob, or an Image of one. The next call that
        needs an output decodes it: InvalidArgument if it is no PNG or JPEG, broken or too large, Unsupported if the
        model takes none."""
        found = as_image(image)
        self._open("fill_image")
        self._noted.append(found)
        return self

    def fill_chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        content: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        tools: Iterable[AnyTool] = (),
        add_generation_prompt: bool = True,
        reply: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Self:
        """Appends chat messages in the model's template: a role and its content, or a list of {"role", "content"}.

        Text generated since the last `fill_chat` becomes the assistant's message before them, or is replaced by the
        messages of `reply`. Messages that `truncate` has cut off are gone; of one that it has cut in its middle, the
        text that is left stays. Text of messages is never read as special tokens. `tools`: functions with annotations,
        or declarations, which the model is told of from now on (see `Tools`). `variables`: further ones that the
        template reads, also from now on, such as `{"enable_thinking": False}`.
        """
        if isinstance(messages, str):
            if not isinstance(content, Sequence):
                raise wrong("content", "the text of the message, or a list of parts", content)
            new: list[Mapping[str, Any]] = [{"role": messages, "content": content}]
        elif content is not None:
            raise TypeError("content: it goes with the role of one message; a list of messages has the contents of all")
        elif isinstance(messages, Mapping) or not isinstance(messages, Iterable):
            raise wrong("messages", "a role and its content, or a list of messages", messages)
        else:
            new = list(messages)
        self._conversation.add(self._settled("fill_chat"), new, tools, add_generation_prompt, reply, variables)
        return self

    def truncate(self, length: int) -> Self:
        """Keeps the first `length` tokens. It cannot end among tokens that were dropped; right behind them it has no
        output until something is filled.

        At a model that keeps a state of each text, the tokens behind the last place where a state is run again with
        the next output: places are the end of a `keep`, of a text that was forked or exported, and the beginning of the
        last generation, and of its last draft."""
        sequence = self._settled("truncate")
        check_end(sequence.pages.dropped, whole(length, "length"))
        sequence.truncate(length)
        self._conversation.cut(length)
        return self

    def drop(self, start: int, stop: int, *, close_gap: bool = True) -> Self:
        """The model does not see the tokens `start` .. `stop` any more. Pages that hold no others are given back.

        The tokens behind them move up to where these were (`traits.shift_kvpage`); pages that are shared with a fork
        are copied for that. With `close_gap=False` they stay at their positions, as with a model that cannot move
        tokens. What they have seen stays in them. The dropped ones stay in `tokens`. The last token cannot be dropped;
        it runs again for the next output.
        """
        sequence = self._settled("drop")
        check_droppable(len(sequence.tokens), whole(start, "start"), whole(stop, "stop"))
        if start < stop:
            sequence.drop(start, stop, flag(close_gap, "close_gap"))
        return self

    def window(self, length: int, *, sink: int = 4) -> Self:
        """Drops all but the last `length` tokens, and the first `sink`, to which models attend however far they are
        (Xiao et al. 2023, attention sinks). The last ones move up behind the sinks. So a text has no end: call it again
        and again, each time before the model's last position is reached."""
        sequence = self._settled("window")
        first, last = whole(sink, "sink"), len(sequence.tokens) - whole(length, "length", least=1)
        return self.drop(first, last) if first < last else self

    # ---- life cycle --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees what it holds, and ends a generation. Idempotent; any other use afterwards raises InvalidState."""
        if self._sequence.closed:
            return
        self._end_generation()
        self._sequence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _open(self, operation: str) -> None:
        """Ends a generation that is under way, but not one for which another task waits."""
        self._check_open()
        if self._generation is not None and self._generation.is_waiting:
            raise InvalidState(
                f"`{operation}` cannot begin while a `generate` of the same context waits for a token "
                f"({len(self._generation.tokens)} so far) in another task: await that first, or fork the context"
            )
        self._end_generation()

    def _check_open(self) -> None:
        if self._sequence.closed:
            raise InvalidState("the context is closed: make a new one, or fork before closing")

    def _settled(self, operation: str) -> TokenSequence:
        """The sequence, with all stored text tokenized, for an operation."""
        if self._generation is None and not self._noted and not self._sequence.closed:
            return self._sequence  # as below, at once
        self._open(operation)
        return self._read()

    def _read(self) -> TokenSequence:
        """The context for reading, while a generation goes on."""
        self._check_open()
        self._take_noted()
        return self._sequence

    def _take_noted(self) -> None:
        """Appends what waits to become tokens. What is refused, and all behind it, stays noted: it must not be missing
        without a word."""
        noted, sequence = self._noted, self._sequence
        while noted:
            texts = [one for one in takewhile(lambda one: isinstance(one, Noted), noted) if isinstance(one, Noted)]
            if texts:
                firsts = [texts[:1], texts[:-1]] if len(texts) > 1 else []
                parts = [partial(tokenize_noted, some, sequence.tokenize) for some in firsts]
                sequence.append(tokenize_noted(texts, sequence.tokenize), parts)
            elif isinstance(image := noted[0], Image):
                sequence.add_image(image)
            del noted[: len(texts) or 1]

    def _end_generation(self) -> None:
        if self._generation is not None:
            self._generation.end()
            self._generation = None
