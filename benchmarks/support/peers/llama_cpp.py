"""llama.cpp through the low-level interface of llama-cpp-python: batches of several sequences, greedy tokens."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..generation import Prompts
from .gguf_file import gguf_of
from .interface import PeerRun

BATCH = 2048
SETTINGS = {"flash attention": 1, "no flash attention": 0}


class LlamaCppPeer:
    """Implements `Peer`."""

    settings: Sequence[str] = tuple(SETTINGS)

    def __init__(self, library: Any, file: Path, threads: int) -> None:
        self._library = library
        self._threads = threads
        self._model = library.llama_model_load_from_file(str(file).encode(), library.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        self._vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))

    def features(self) -> str:
        """What the library was built with; a limit of instruction sets does not reach it."""
        words: str = self._library.llama_print_system_info().decode().removeprefix("CPU : ")
        return f"built with {', '.join(word.split(' = ')[0].strip() for word in words.split('|') if '= 1' in word)}"

    def generate(self, setting: str, prompts: Prompts, count: int, room: int) -> PeerRun:
        with self._context(len(prompts), room, SETTINGS[setting]) as context:
            start = time.perf_counter()
            tokens = [self._prefill(context, prompts)]
            filled = time.perf_counter()
            for position in range(len(prompts[0]), len(prompts[0]) + count - 1):
                tokens.append(self._step(context, tokens[-1], position))
            per_token = (time.perf_counter() - filled) / max(1, count - 1)
        return PeerRun(setting, np.array(tokens).T.tolist(), filled - start, per_token)

    @contextmanager
    def _context(self, sequences: int, room: int, flash_attention: int) -> Iterator[Any]:
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx = sequences * -(-room // 256) * 256
        parameters.n_batch, parameters.n_seq_max = BATCH, sequences
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.flash_attn_type = flash_attention
        parameters.kv_unified = False  # its documentation says that this is faster for sequences that share nothing
        context = self._library.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError("llama.cpp cannot make a context")
        try:
            yield context
        finally:
            self._library.llama_free(context)

    def _prefill(self, context: Any, prompts: Prompts) -> NDArray[np.int64]:
        """The first token of each sequence. Runs whole prompts, as many at a time as fit a batch."""
        length = len(prompts[0])
        each = max(1, BATCH // length)
        found = []
        for first in range(0, len(prompts), each):
            rows = [
                (token, place, first + row, place == length - 1)
                for row, prompt in enumerate(prompts[first : first + each])
                for place, token in enumerate(prompt)
            ]
            found.append(self._run(context, rows))
        return np.concatenate(found)

    def _step(self, context: Any, tokens: NDArray[np.int64], position: int) -> NDArray[np.int64]:
        return self._run(context, [(int(token), position, row, True) for row, token in enumerate(tokens)])

    def _run(self, context: Any, rows: Sequence[tuple[int, int, int, bool]]) -> NDArray[np.int64]:
        """Runs tokens (id, position, sequence, whether to compute logits); returns the best next token for each with
        logits."""
        batch = self._library.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for place, (token, position, sequence, wanted) in enumerate(rows):
                batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            if status := self._library.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode failed with {status}")
        finally:
            self._library.llama_batch_free(batch)
        best: NDArray[np.int64] = self._logits(context, sum(wanted for *_, wanted in rows)).argmax(1)
        return best

    def _logits(self, context: Any, rows: int) -> NDArray[np.float32]:
        logits = self._library.llama_get_logits(context)
        return np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (rows, self._vocab_size))


def load(checkpoint: Path, form: str, threads: int, compiles: bool) -> LlamaCppPeer:
    """A `PeerFactory`. No setting compiles."""
    library = import_module("llama_cpp.llama_cpp")
    library.llama_log_set(_silent(library), None)
    library.llama_backend_init()
    return LlamaCppPeer(library, gguf_of(checkpoint, form), threads)


@cache
def _silent(library: Any) -> Any:
    """A log function that writes nothing. It is kept for ever, because llama.cpp keeps its address."""
    return library.llama_log_callback(lambda level, text, data: None)
