"""`pie models`: the models of a server, or how checkpoints would run on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pie_inference.amounts import amount
from pie_inference.options import add_arguments as add_model_settings

from ..inspection import count, inspect
from ..server_options import add_server, blocking_client
from ..tables import listed
from ..terminal import write_line

NAME = "models"
HELP = "list the models of a server, or check how checkpoints would run here"
EXAMPLES = """  pie models                                 the models of the server
  pie models ~/models/llama                  size, memory and chosen settings; reads no weights
  pie models demo ~/models/* --json
  pie models ~/models/llama --quantization int8"""

COLUMNS = ("NAME", "ARCHITECTURE", "DTYPE", "DEVICE", "CONTEXT", "PAGES", "TRAITS")
THOUSAND = 1000
EMBEDDING = "Embedding"
NOT_MADE = "not made for embeddings: it gives vectors of texts, but similar texts may have dissimilar ones"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "checkpoints",
        nargs="*",
        metavar="MODEL",
        help="folder of a checkpoint, its id on the hub, `demo` or `demo-reasoner`",
    )
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    add_server(parser)
    add_model_settings(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints the list; 1 if a checkpoint cannot be served."""
    return _check_up(options) if options.checkpoints else _list(options)


def _list(options: argparse.Namespace) -> int:
    with blocking_client(options) as client:
        models = client.models()
    write_line(listed(options, COLUMNS, models, _row))
    if any(map(_compares_poorly, models)) and not options.json:
        write_line(f"* {NOT_MADE}")
    return 0


def _compares_poorly(model: Mapping[str, Any]) -> bool:
    """Whether it gives vectors of texts though it was not made for that."""
    return EMBEDDING in model["traits"] and not model["pooling"]


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    pages = f"{model['num_pages']} x {model['page_size']}"
    names = ("name", "architecture", "dtype", "device", "max_context")
    starred = EMBEDDING if _compares_poorly(model) else None
    traits = (f"{trait}*" if trait == starred else trait for trait in model["traits"])
    return (*(str(model[name]) for name in names), pages, ",".join(traits))


def _check_up(options: argparse.Namespace) -> int:
    found = inspect("checkup", options, options.checkpoints)
    if options.json:
        write_line(json.dumps(found, indent=2))
    else:
        write_line("\n\n".join("\n".join(_lines(each)) for each in found))
    return 1 if any(each["problem"] for each in found) else 0


def _lines(checkup: Mapping[str, Any]) -> Iterator[str]:
    yield checkup["model"]
    if checkup["shape"]:
        yield from _shape(checkup["shape"])
    if checkup["problem"]:
        yield f"  cannot be served here: {checkup['problem']}"
    else:
        yield from _choice(checkup["choice"])


def _shape(shape: Mapping[str, Any]) -> Iterator[str]:
    yield f"  family      {shape['family']} ({shape['architecture']})"
    yield f"  code        {shape['code']}"
    scheme = f", quantized: {shape['scheme']}" if shape["scheme"] else ""
    yield f"  parameters  {amount(shape['parameters'])}, {amount(shape['file_bytes'], 'B')} in files{scheme}"
    yield f"  context     {shape['max_context']} tokens"
    forms = (f"{_form(size)} {amount(size['nbytes'], 'B')}" for size in shape["weights"])
    yield f"  weights     {', '.join(forms)}"
    pooled = {"": f"warning: {NOT_MADE}", "last": "by the state of the last token", "mean": "by the mean of all states"}
    yield f"  embeddings  {pooled[shape['pooling']]}"


def _form(size: Mapping[str, Any]) -> str:
    return str(size["dtype"] if size["quantization"] == "none" else size["quantization"])


def _choice(choice: Mapping[str, Any]) -> Iterator[str]:
    threads = f", {count(choice['threads'], 'thread')}" if choice["device"] == "cpu" else ""
    form = _form(choice)
    yield f"  served as   {form} on {choice['device']}{threads}, {choice['attention']} attention"
    yield f"  numbers     {choice['dtype']}: {choice['why_dtype']}"
    yield f"  products    {choice['products']['why']}"
    yield f"  memory      {amount(choice['weight_bytes'], 'B')} for weights of {amount(choice['free_bytes'], 'B')} free"
    per_token = choice["page_bytes"] / choice["page_size"]
    page = f"{amount(choice['page_bytes'], 'B')} a page of {choice['page_size']} tokens"
    yield f"  KV cache    {page}, {amount(THOUSAND * per_token, 'B')} for 1000 tokens"
    if choice["state_bytes"]:
        each = amount(choice["state_bytes"], "B")
        yield f"  states      {choice['num_states']} of {each} each, at least one for a text"
    if choice["host_pages"]:
        needed = choice["host_pages"] * choice["page_bytes"] + choice["host_states"] * choice["state_bytes"]
        states = f" and {count(choice['host_states'], 'state')}" if choice["host_states"] else ""
        yield f"  host pages  {choice['host_pages']}{states}: {amount(needed, 'B')} of the host's memory"
    yield f"  fits        {choice['num_pages']} pages: {choice['cached_tokens']} tokens of all sequences together"
