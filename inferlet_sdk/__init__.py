"""The SDK that runs inside the sandbox. An inferlet is a Python file that imports from here:

from inferlet_sdk import Context, inferlet

@inferlet
async def main(args):
    ctx = Context(args.model)
    ctx.fill("Hello, ")
    async for piece in ctx.generate(max_tokens=10):
        await args.send(piece)
"""

from asyncio import gather

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds, Pages, Slots
from inferlet_sdk.chat import Answer, CallResult, Tools, TooManyRounds
from inferlet_sdk.context import Context
from inferlet_sdk.errors import (
    Busy,
    Cancelled,
    Exhausted,
    InvalidArgument,
    InvalidState,
    NotAllowed,
    NotFound,
    PieError,
    QuotaExceeded,
    RequestFailed,
    TimedOut,
    TooLong,
    Unsupported,
    WorkerFailed,
)
from inferlet_sdk.event_loop import Deadlock
from inferlet_sdk.futures import HostFuture, TokenFuture
from inferlet_sdk.generation.drafting import PromptLookup
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.sampling import DistSampler, Greedy, Mirostat, Sampler
from inferlet_sdk.generation.stopping import IgnoreStopTokens, MaxTokens, StopRegex, StopString, StopTokens, StopWhen
from inferlet_sdk.grammars.grammar import Grammar, Matcher
from inferlet_sdk.guest.arguments import Args
from inferlet_sdk.guest.packages.data_files import program_files
from inferlet_sdk.guest.program import inferlet
from inferlet_sdk.images import Image
from inferlet_sdk.retries import retry
from inferlet_sdk.retrieval.embedding import embed
from inferlet_sdk.retrieval.reranking import rerank
from inferlet_sdk.schemas import SchemaMismatch, Truncated, UnsupportedType, from_json, json_schema, to_json
from inferlet_sdk.search.hypotheses import Hypothesis
from inferlet_sdk.tools.tool import Tool, tool
from inferlet_sdk.traits import Dist, span
from inferlet_sdk.traits.outside.blobs import Blob, Message
from inferlet_sdk.traits.outside.children import Child, ChildEnd, ChildFailed, launch
from inferlet_sdk.traits.outside.http import Response, http_get, http_post, http_request
from inferlet_sdk.traits.outside.mapping import map_children
from inferlet_sdk.traits.outside.topics import Subscription, broadcast, subscribe

__all__ = [
    "Answer",
    "Args",
    "Blob",
    "Busy",
    "CallResult",
    "Cancelled",
    "Child",
    "ChildEnd",
    "ChildFailed",
    "Context",
    "Deadlock",
    "Dist",
    "DistSampler",
    "Embeds",
    "Exhausted",
    "Generation",
    "Grammar",
    "Greedy",
    "HostFuture",
    "Hypothesis",
    "IgnoreStopTokens",
    "Image",
    "InvalidArgument",
    "InvalidState",
    "Matcher",
    "MaxTokens",
    "Message",
    "Mirostat",
    "NotAllowed",
    "NotFound",
    "Pages",
    "PieError",
    "PromptLookup",
    "QuotaExceeded",
    "RequestFailed",
    "Response",
    "Sampler",
    "SchemaMismatch",
    "Slots",
    "StopRegex",
    "StopString",
    "StopTokens",
    "StopWhen",
    "Subscription",
    "TimedOut",
    "TokenFuture",
    "TooLong",
    "TooManyRounds",
    "Tool",
    "Tools",
    "Truncated",
    "Unsupported",
    "UnsupportedType",
    "WorkerFailed",
    "broadcast",
    "embed",
    "from_json",
    "gather",
    "http_get",
    "http_post",
    "http_request",
    "inferlet",
    "json_schema",
    "launch",
    "map_children",
    "program_files",
    "rerank",
    "retry",
    "span",
    "subscribe",
    "to_json",
    "tool",
    "traits",
]
