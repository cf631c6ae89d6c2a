"""What crosses between the control process and an application host.

Theory. A host runs inferlets: instances, futures, timers, tokenizers, and for each inferlet and model the address space
that refuses or accepts its calls at once. The control process has everything that is shared: HTTP, the registry of
inferlets, queues in their order, pools, waves. What one says to the other are the values of this module, in *frames*: a
frame is a list of messages that were said together, at most one each way and turn. Messages arrive in the order in
which they were said, each exactly once, until one side is gone. A host speaks to nobody but the control process.

A life:

1. Control starts the host. The host says `HostReady`; unless the versions are equal, control ends it.
2. Control says `Welcome`, then a `ModelState` for each model, and again whenever one changes.
3. Programs: `Compile` compiles Python, `LoadCode` reads what came of it, `LinkComponent` checks and links a component;
   `Prepared` answers. One of these comes before a program's first `Launch`; `Forget` takes it back.
4. An inferlet: `Launch`, then `Started` when it has its first turn, then what it says, in `Said` and `Logged`, and
   `Finished`, the last of all. Control says `Post`, `Room` and `Stop` to it; what comes later is dropped. `Finished`
   comes from the host, so nothing overtakes it; if the host is gone, control ends the inferlet as lost.
5. Commands: the events of `Commands` are what address spaces have handed on, of all inferlets of the host, in order:
   for each inferlet `Opened`, then its commands and notes, then `Closed`, which frees what it held. Each command with
   a future is answered in some `Results` exactly once, unless its inferlet is closed before. An ending in `Results`
   means that the scheduler has closed its inferlet already, and answers all its futures; the host ends it and says
   `Finished`.
6. `Quiet` means that every inferlet of the host waits, for a result or anything else, after all that was said before.
   `Results` are answered, sooner or later, by a frame with `Quiet`, behind the commands that they led to. What clients
   shall hear stands behind it: waves leave first.
7. Topics: `Subscribe`, and each `Broadcast`, which goes to the hosts of all subscribers as `Published`. These answer
   with `Confirm`, at once or when the queues of the subscribers have room again; after the last one the publisher's
   host hears `Broadcasted`.
8. Children: a host asks with `LaunchChild`, ends them with their parents, and says `Finished` for each `Launch`.
9. `Ping` is answered by a `Report` and `Pong` at once; a host that does not answer in time hangs, and is killed.
10. To end a host, control says `Stop` for each of its inferlets, awaits their ends, and closes the connection.

The links that carry messages are the protocols at the end. One passes them on within a process, as they are; one
encodes them (`codec.py`). So nobody changes a message or what it holds once it is said.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pie_control.calls import COMMANDS
from pie_control.calls.kind import Command
from pie_control.calls.values import Completion
from pie_control.config import InferletLimits
from pie_control.errors import CallError
from pie_control.ids import Owner
from pie_control.inferlets import events
from pie_control.programs.warm_pool import WarmPool
from pie_control.record import Record
from pie_control.scheduling.turn import Closed, Ending, Note, Opened, Progress, RunTokens
from pie_inference.protocol import ModelDescription

# ---- control to host -----------------------------------------------------------------------------------------------


class Welcome(Record, frozen=True):
    """The first message. `host`: the number of the host; 0: it stands in the control process."""

    host: int
    limits: InferletLimits
    max_guest_bytes: int  # memory of all inferlets of this host; 0: no bound
    warm_pool: WarmPool  # Python guests that wait for a launch
    guest: str = ""  # path of the compiled Python guest
    http_allow: Sequence[str] = ()  # servers that inferlets may send requests to


class ModelState(Record, frozen=True):
    """A model, at first and when it changes. `description`: None: as it was. `down`: why no worker serves it, now or
    soon; None: one does."""

    name: str
    description: ModelDescription | None
    down: str | None = None
    adapters: Mapping[str, int] = {}  # their numbers


class Compile(Record, frozen=True):
    """Compiles a Python program in a guest, and keeps its code in a sealed file if the disk takes that."""

    request: int
    program: str  # hash
    name: str
    text: str
    folder: str
    stem: str


class LoadCode(Record, frozen=True):
    """Reads the code of a Python program from a sealed file."""

    request: int
    program: str  # hash
    path: str


class LinkComponent(Record, frozen=True):
    """Loads a component from the sealed file of its compiled code, checks and links it."""

    request: int
    program: str  # hash
    path: str


class Forget(Record, frozen=True):
    """The host may drop a program."""

    program: str


class NotLaunched(Record, frozen=True):
    """Why a child cannot be launched."""

    parent: Owner
    child: int
    error: CallError


class Post(Record, frozen=True):
    """A message for an inferlet, from its client, with blobs by name."""

    number: Owner
    text: str
    blobs: Mapping[str, bytes] = {}


class Stop(Record, frozen=True):
    """Ends an inferlet with a terminal `Status`; answered by its `Finished`."""

    number: Owner
    status: str
    reason: str


class Room(Record, frozen=True):
    """How many bytes of an inferlet's messages clients have taken since its beginning, and whether one reads now:
    `send` waits by it."""

    number: Owner
    taken_bytes: int
    read: bool


class Pause(Record, frozen=True):
    """The inferlets of a tenant that this key has launched, "" is none, have no turns from now on; not `on`: they have
    again."""

    tenant: str
    key: str
    on: bool


class Results(Record, frozen=True):
    """What a turn of a model's scheduler has for inferlets of this host."""

    model: str
    completions: Sequence[Completion] = ()
    progress: Sequence[Progress] = ()
    endings: Sequence[Ending] = ()
    runs: RunTokens = RunTokens()


class Published(Record, frozen=True):
    """A broadcast to a topic, for inferlets of this host that have subscribed; answered by `Confirm`."""

    broadcast: int
    sender: str  # id of an inferlet
    topic: str
    text: str
    subscribers: Sequence[Owner]


class Broadcasted(Record, frozen=True):
    """All hosts have confirmed a broadcast of an inferlet of this host; it has `reached` so many inferlets."""

    number: Owner
    future: int
    reached: int


class Ping(Record, frozen=True):
    """Asks whether the host still turns. `waits_of`: and what an inferlet waits for, 0: what each does; `stack`: and
    that this one writes to its log where its tasks are, if it waits in the function `wait`."""

    token: int
    waits_of: Owner | None = None
    stack: bool = False


ToHost = (
    Welcome
    | ModelState
    | Compile
    | LoadCode
    | LinkComponent
    | Forget
    | events.Launch
    | NotLaunched
    | Post
    | Stop
    | Room
    | Pause
    | Results
    | Published
    | Broadcasted
    | Ping
)

# ---- host to control -----------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    SpaceEvent = Opened | Closed | Command | Note
else:
    SpaceEvent = functools.reduce(operator.or_, COMMANDS, Opened | Closed | Note)
"""What address spaces hand on. At run time a union of all classes, so that it can be decoded."""


class HostReady(Record, frozen=True):
    """The first message. `version`: what the host takes messages to be (`codec.VERSION`)."""

    version: str
    pid: int


class Commands(Record, frozen=True):
    """What address spaces of a model have handed on, over all inferlets of the host, in order."""

    model: str
    events: Sequence[SpaceEvent]


class Quiet(Record, frozen=True):
    """Every inferlet of the host waits. `results`: how many `Results` it has taken; others may be on their way."""

    results: int


class Started(Record, frozen=True):
    """An inferlet has its first turn."""

    number: Owner


class Said(Record, frozen=True):
    """Messages of inferlets to their clients, in their order, column by column."""

    numbers: list[Owner]
    texts: list[str]


class Logged(Record, frozen=True):
    """A line of an inferlet's log."""

    number: Owner
    line: events.LogLine


class Finished(Record, frozen=True):
    """The end of an inferlet, which holds nothing any more, with the processor time that it has used."""

    number: Owner
    event: events.Ended
    cpu_seconds: float


class Read(Record, frozen=True):
    """The inferlet has received posted messages of `size` bytes, as control counts them, with blobs of `blob_bytes`."""

    number: Owner
    size: int
    blob_bytes: int = 0


class ReadAtEnd(Record, frozen=True):
    """The inferlet reads nothing of a run, by its future, before it is over: its tokens need not come one by one."""

    number: Owner
    run: int


class Did(Record, frozen=True):
    """An inferlet has done something of which its trace tells."""

    number: Owner
    span: events.Span


class LaunchChild(Record, frozen=True):
    """An inferlet wants a child on its host; answered by `Launch` or `NotLaunched`. `child`: its number among those of
    this parent. `program`: hash, beginning of it or name, among the programs of the tenant; "": that of the parent."""

    parent: Owner
    child: int
    program: str
    arguments: Sequence[str]
    environment: Mapping[str, str]


class Subscribe(Record, frozen=True):
    """An inferlet wants what comes to a topic of its tenant; not `on`: no more."""

    number: Owner
    topic: str
    on: bool


class Broadcast(Record, frozen=True):
    """An inferlet says something to a topic of its tenant; answered by `Broadcasted`, with the same future."""

    number: Owner
    future: int
    topic: str
    text: str


class Confirm(Record, frozen=True):
    """The queues that a broadcast has joined here have room for more."""

    broadcast: int


class Prepared(Record, frozen=True):
    """The answer to `Compile`, `LoadCode` and `LinkComponent`. `error`: why the program cannot be launched; None: it
    can, from now on."""

    request: int
    error: str | None = None


class Report(Record, frozen=True):
    """About four times a second while something changes. Counts since the start of the host; `usage` of the inferlets
    for which it has changed; `warm` Python guests wait for a launch, and `warm_wanted` shall."""

    memory_bytes: int
    guest_seconds: float
    turns: int
    preemptions: int
    warm: int
    warm_wanted: int = 0
    usage: Sequence[events.InferletUsage] = ()


class Pong(Record, frozen=True):
    """The answer to `Ping`, with what was asked for."""

    token: int
    waits: Sequence[events.InferletWait] = ()


FromHost = (
    HostReady
    | Commands
    | Quiet
    | Started
    | Said
    | Logged
    | Finished
    | Read
    | ReadAtEnd
    | Did
    | LaunchChild
    | Subscribe
    | Broadcast
    | Confirm
    | Prepared
    | Report
    | Pong
)
