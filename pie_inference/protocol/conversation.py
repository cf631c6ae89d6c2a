"""What the control layer and a worker say to each other: waves of batches, and what comes of them."""

from __future__ import annotations

import msgspec

from .batch import Message
from .messages import AnyBatch, AnyResult

# ---- control layer to worker ----------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message on a connection. `server`: a name that no other server has, over all connections of one."""

    protocol: int
    server: str = ""


class RunWave(Message, frozen=True):
    """Run these batches in order, whatever fails; answered by one `WaveDone`."""

    wave: int
    model: str
    batches: tuple[AnyBatch, ...]


class LoadAdapter(Message, frozen=True):
    """Load a LoRA adapter, for the waves that come after; answered by `AdapterLoaded`. A number is used once."""

    number: int
    folder: str  # on the worker's machine
    inside: str = ""  # where its files must lie, wherever links lead; "": anywhere


class InstallAdapter(Message, frozen=True):
    """From the leader of a group to its other ranks: put an adapter in that they were told to load; answered by
    `AdapterLoaded`."""

    number: int


class DropAdapter(Message, frozen=True):
    """Forget an adapter. Commands that name it fail from now on."""

    number: int


class Shutdown(Message, frozen=True):
    """Finish the waves at hand; then exit, or wait for the next server."""


class Refused(Message, frozen=True):
    """The server does not want this worker, and leaves it."""

    reason: str


ToWorker = Hello | RunWave | LoadAdapter | InstallAdapter | DropAdapter | Shutdown | Refused


# ---- worker to control layer ----------------------------------------------------------------------------------------


class ImageLayout(msgspec.Struct, frozen=True):
    """The text in which the vectors of an image stand: `tile` for each tile, row by row, `row_end` behind each row,
    then `whole` for the whole image as one tile. An image of one tile is `alone`. {image} stands for the vectors, {row}
    and {column} for numbers from 1 on."""

    tile: str
    row_end: str
    whole: str
    alone: str


class Vision(msgspec.Struct, frozen=True):
    """How a model takes images: scaled so that the longer side is `longest_edge`, then cut into square tiles, each of
    which becomes `tile_embeds` vectors."""

    tile_size: int  # pixels of a side
    tile_embeds: int
    longest_edge: int  # pixels
    split: bool  # False: the whole image is the only tile
    resample: int  # how images are scaled, by Pillow's numbers
    placeholder: int  # the token that stands for a vector
    layout: ImageLayout
    layers: int  # that a tile passes through
    layer_tokens: int  # what one of them costs, in input tokens; a wave has room for it
    tile_slots: int  # for states of tiles between two layers

    @property
    def tile_tokens(self) -> int:
        """What a tile costs, in input tokens."""
        return self.layers * self.layer_tokens


class ModelDescription(Message, frozen=True):
    """A model as its worker serves it."""

    name: str
    architecture: str  # such as LlamaForCausalLM
    calls: tuple[str, ...]  # that it runs: of BATCHES, and what it adds to them (`EXTENSIONS`)
    dtype: str
    device: str
    vocab_size: int
    hidden_size: int
    max_context: int
    page_size: int
    num_pages: int
    num_host_pages: int
    num_embeds: int
    num_token_slots: int
    max_batch_tokens: int  # input tokens in one Forward
    max_batch_rows: int  # commands in one Sample; rows in one GetNextDist, GetLogprobs or Verify
    max_dist: int  # largest k of GetNextDist
    max_swap_pages: int  # pages in one SwapOut or SwapIn
    stop_tokens: tuple[int, ...]
    tokenizer: bytes  # tokenizer.json
    tokenizer_config: dict[str, object]  # chat_template, bos_token, eos_token, ... as in tokenizer_config.json
    page_bytes: int  # memory of one page, all layers, all ranks
    weight_bytes: int  # all ranks; what each of them holds whole is counted for each
    vision: Vision | None = None  # None: it takes no images
    fixed_positions: str = ""  # why it does not run ShiftKvpage; "": it does
    by_token: bool = False  # whether each input of a forward has to be a token, and no output
    num_states: int = 0  # slots for states of texts; 0: it keeps none beside keys and values
    states_by_row: bool = False  # a forward may leave states behind any of its rows, at no cost beside their memory
    state_bytes: int = 0  # memory of one state, all ranks
    num_host_states: int = 0  # slots for states in the host's memory, which go there with the pages that they hang on
    pooling: str = ""  # how states become the vector of a text: "last" or "mean"; "": it was not made for embeddings
    sampling: dict[str, int | float] = msgspec.field(default_factory=dict)  # what its authors advise: temperature, ...

    @property
    def scratch_pages(self) -> int:
        """Pages for the tokens of one batch whose keys and values are dropped after it; the last ones of the cache."""
        return -(-self.max_batch_tokens // self.page_size)

    @property
    def lacks_pages(self) -> str:
        """What is wrong with the number of pages, and what to do; "": nothing."""
        if self.num_pages > self.scratch_pages:
            return ""
        return (
            f"model {self.name}: {self.num_pages} pages do not hold one batch of {self.max_batch_tokens} tokens; "
            f"more than {self.scratch_pages} pages of {self.page_size} tokens are needed: start the worker with more "
            "memory or --pages, or with fewer --max-batch-tokens"
        )


class Loading(Message, frozen=True):
    """To a server that waits for a worker that listens: how far it has come."""

    progress: str


class Ready(Message, frozen=True):
    """Answer to `Hello`, once the model is loaded and the pools stand."""

    protocol: int
    pid: int
    models: tuple[ModelDescription, ...]


class Failure(Message, frozen=True):
    """A command failed: it had no effect that counts, and what its result says means nothing. Commands behind it run
    nevertheless; what depended on it computed from stale data."""

    batch: int  # of the wave
    command: int  # of the batch
    message: str  # what is wrong with the command
    busy: bool = False  # nothing is wrong: it may be issued again


class WaveDone(Message, frozen=True):
    """One result for each batch of the wave, in order; None where it has nothing to tell or all its commands failed.
    Where only some did, they have zeros, and empty ranges, in the result."""

    wave: int
    results: tuple[AnyResult | None, ...]
    seconds: float  # time that the wave took on the worker
    failures: tuple[Failure, ...] = ()  # in the order of batches and commands


class AdapterLoaded(Message, frozen=True):
    """Answer to `LoadAdapter`."""

    number: int
    nbytes: int = 0  # memory that it takes, all ranks
    error: str | None = None  # why it is not loaded


class WorkerFailed(Message, frozen=True):
    """The worker cannot serve this control process (unreadable checkpoint, wrong protocol, out of memory)."""

    message: str


FromWorker = Loading | Ready | WaveDone | AdapterLoaded | WorkerFailed
