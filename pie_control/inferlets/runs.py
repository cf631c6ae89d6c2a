"""The tokens of a decode run on their way to its program, or their text to its client.

A run goes on whether its program takes the tokens or not, so they are kept here: at most as many as the run has steps.
Its future is done while there are some, and when the run is over. A run that is *watched* gives them at the end: its
text is followed on the way, for strings that stop it, and sent to the client as far as there is room for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ..calls.scores import Scores
from ..errors import CallError
from ..services.stop_strings import StopStrings
from ..services.tokenizer import Detokenizer

UTF8_BYTES = 4
"""Most bytes of a character."""
ESCAPED_BYTES = 6
"""Most bytes of a character in a JSON string."""


class Outlet(Protocol):
    """Where text for the client goes."""

    def has_room(self, size: int = 0) -> bool:
        """Whether a message of `size` bytes need not wait."""

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls back once there is room, and once however often it is asked meanwhile."""

    def forget(self, call: Callable[[], None]) -> None:
        """Does not call back, if it would have."""

    def send(self, text: str) -> None:
        """Sends a message."""


class Taken(NamedTuple):
    """Tokens that the program takes. `texts`: what each completes, if the run was watched."""

    tokens: Sequence[int]
    texts: Sequence[str] | None
    over: bool
    scores: Sequence[Scores]
    """The scores of each token, if the run asked for them."""


class Watch:
    """Follows the text of a run. `more`: another run goes on with the text, so what may be the beginning of a stop
    string at the end is not sent."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: StopStrings,
        outlet: Outlet | None,
        most: int,
        more: bool,
        frame: tuple[str, str] | None = None,
    ) -> None:
        """`most`: bytes of one message. Without an outlet nothing is sent. `frame`: what comes before and after each
        piece, which is escaped as the inside of a JSON string."""
        self._detokenizer = detokenizer
        self._stop = stop
        self._outlet = outlet
        self._most = max(most // UTF8_BYTES if frame is None else most // 2 // ESCAPED_BYTES, 1)  # characters
        self._more = more
        self._frame = frame
        self._unsent = ""
        self._on_sent: Callable[[], object] = lambda: None

    def listen(self, on_sent: Callable[[], object]) -> None:
        """`on_sent` is called when what had to wait for the client is on its way."""
        self._on_sent = on_sent

    @property
    def is_idle(self) -> bool:
        """Whether everything has been sent."""
        return not self._unsent

    def follow(self, tokens: Sequence[int], hidden: int) -> list[str]:
        """Text of each token, up to the one that completes a stop string; the last `hidden` ones have none."""
        texts: list[str] = []
        for token in tokens[:-hidden] if hidden else tokens:
            texts.append(text := self._detokenizer.push_one(token))
            self._unsent += self._stop.push(text)
            if self._stop.found:
                return texts
        return texts + [""] * hidden

    @property
    def found(self) -> bool:
        """Whether a stop string has come."""
        return self._stop.found

    def end(self, by_token: bool) -> None:
        """The run is over; `by_token`: by a stop token."""
        if by_token or not self._more:
            self._unsent += self._stop.rest()

    def send(self) -> None:
        """Sends what there is room for."""
        outlet, most = self._outlet, self._most
        if outlet is None:
            self._unsent = ""
            return
        while self._unsent:
            if not outlet.has_room():
                outlet.when_room(self._room)
                return
            text, self._unsent = self._unsent[:most], self._unsent[most:]
            outlet.send(text if self._frame is None else escaped(text).join(self._frame))

    def _room(self) -> None:
        self.send()
        if not self._unsent:
            self._on_sent()

    def close(self) -> None:
        """Nothing is sent any more."""
        self._unsent, self._on_sent = "", lambda: None
        if self._outlet is not None:
            self._outlet.forget(self._room)


class RunBuffer:
    """What a run has given and its program has not taken."""

    __slots__ = (
        "_error",
        "_over",
        "_scores",
        "_stop",
        "_taken",
        "_texts",
        "_tokens",
        "_used",
        "_watch",
        "cancel",
        "vocab_size",
    )

    def __init__(
        self,
        stop: Collection[int],
        cancel: Callable[[], object],
        used: Callable[[int], None] | None = None,
        *,
        vocab_size: int,
    ) -> None:
        """`stop`: tokens that end the run; `cancel` ends it where its steps are made. `used` is told how many tokens
        the program has, where others came that it never takes. `vocab_size`: of its model, so no token is larger."""
        self.cancel = cancel
        self.vocab_size = vocab_size
        self._used = used
        self._taken = 0
        self._stop = frozenset(stop)
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._scores: list[Scores] = []
        self._over = False
        self._error: CallError | None = None
        self._watch: Watch | None = None

    @property
    def is_watched(self) -> bool:
        return self._watch is not None

    @property
    def is_done(self) -> bool:
        """Whether its program can take something: tokens, the end, or an error."""
        if self._watch is not None:
            return self._over and self._watch.is_idle
        return self._over or bool(self._tokens)

    def advance(self, tokens: Sequence[int], over: bool, scores: Sequence[Scores] = ()) -> bool:
        """Tokens arrived; `over`: and the run has ended. Whether it is done."""
        if not self._over:  # else a stop string has ended it
            self._over = over
            self._tokens += tokens
            self._scores += scores
            if self._watch is not None:
                self._follow(self._watch, tokens)
        return self.is_done

    def fail(self, error: CallError) -> None:
        """The run has failed; what it gave before is valid."""
        if not self._over:
            self._over, self._error = True, error

    def watch(self, watch: Watch) -> None:
        """The run is watched from now on, from its first token that was not taken."""
        self._watch = watch
        self._follow(watch, self._tokens)

    def _follow(self, watch: Watch, tokens: Sequence[int]) -> None:
        by_token = self._over and self._error is None and bool(tokens) and tokens[-1] in self._stop
        self._texts += watch.follow(tokens, int(by_token))
        if watch.found:
            del self._tokens[len(self._texts) :]
            del self._scores[len(self._texts) :]
            if not self._over:
                self._over = True
                self.cancel()
            self._drop_behind(self._taken + len(self._tokens))
        elif self._over:
            watch.end(by_token)
        watch.send()

    def take(self, most: int) -> Taken:
        """At most `most` of the tokens. Raises the error of a run that failed, behind its last token."""
        if self._error is not None and not self._tokens:
            raise self._error
        tokens, self._tokens = self._tokens[:most], self._tokens[most:]
        scores, self._scores = self._scores[:most], self._scores[most:]
        self._taken += len(tokens)
        texts = None
        if self._watch is not None:
            texts, self._texts = self._texts[:most], self._texts[most:]
        return Taken(tokens, texts, self._over and not self._tokens and self._error is None, scores)

    def close(self) -> None:
        """Its future is cancelled."""
        if self._watch is not None:
            self._watch.close()
        if not self._over:
            self.cancel()
        self._drop_behind(self._taken)

    def _drop_behind(self, count: int) -> None:
        """The program has the first `count` tokens, and never takes others."""
        if self._used is not None:
            self._used(count)


def escaped(text: str) -> str:
    """A text as the inside of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]
