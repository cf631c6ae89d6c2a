"""What served programs share, and what programs of users that stand in their place import: requests as typed values,
answers as the model writes them, and their forms in each API.

Each request to `/v1/chat/completions` and the like is an inferlet. Its body is the blob `request`, what it sends are
the events of its stream, and what `main` returns is the body of the answer. `docs/served-fields.md` lists the fields.
"""

from inferlet_sdk.served.dialects.anthropic import MessageReply
from inferlet_sdk.served.dialects.events import EventReply, send_reply
from inferlet_sdk.served.dialects.openai import (
    CHAT,
    CHUNK,
    TEXT,
    TEXT_PLACE,
    Reply,
    Usage,
    Vocabulary,
    delta_of,
    message_of,
    prompt_scores,
    so_far,
    usage_of,
)
from inferlet_sdk.served.dialects.responses import ResponseReply
from inferlet_sdk.served.errors import Refused, of_field, served, too_long
from inferlet_sdk.served.fields import Fields
from inferlet_sdk.served.requests.anthropic import chat_fields, marks_of, renamed
from inferlet_sdk.served.requests.chat import ChatRequest
from inferlet_sdk.served.requests.completion import CompletionRequest
from inferlet_sdk.served.requests.responses import fields_of_response, input_items
from inferlet_sdk.served.requests.wanted import Place, Wanted, check_model
from inferlet_sdk.served.stored import Earlier, fetch_earlier, store_answer
from inferlet_sdk.served.writing.answer import Answer, Part, ToolCall
from inferlet_sdk.served.writing.prompts import Echo, forks, open_prompt

__all__ = [
    "CHAT",
    "CHUNK",
    "TEXT",
    "TEXT_PLACE",
    "Answer",
    "ChatRequest",
    "CompletionRequest",
    "Earlier",
    "Echo",
    "EventReply",
    "Fields",
    "MessageReply",
    "Part",
    "Place",
    "Refused",
    "Reply",
    "ResponseReply",
    "ToolCall",
    "Usage",
    "Vocabulary",
    "Wanted",
    "chat_fields",
    "check_model",
    "delta_of",
    "fetch_earlier",
    "fields_of_response",
    "forks",
    "input_items",
    "marks_of",
    "message_of",
    "of_field",
    "open_prompt",
    "prompt_scores",
    "renamed",
    "send_reply",
    "served",
    "so_far",
    "store_answer",
    "too_long",
    "usage_of",
]
