"""Every call has a handler of its name, in the worker and in the fake model."""

from __future__ import annotations

import inspect

from pie_control.testing.fake_model import FakeModel
from pie_inference.handlers.table import HANDLERS
from pie_inference.protocol import BATCHES, EXTENSIONS, Batch, call_name


def test_calls_are_named_like_their_batches() -> None:
    assert BATCHES["copy_kvpage"].__name__ == "CopyKvpage"
    assert all(issubclass(kind, Batch) and call_name(kind) == call for call, kind in BATCHES.items())


def test_every_call_has_a_module_with_a_function_of_its_name() -> None:
    assert list(HANDLERS) == list(BATCHES.values())
    for call, kind in BATCHES.items():
        handler = HANDLERS[kind]
        package, *_, module = handler.__module__.removeprefix("pie_inference.").split(".")
        assert (package, module, handler.__name__) == ("handlers", call, call)
        assert inspect.signature(handler).parameters["batch"].annotation == kind.__name__


def test_the_fake_model_runs_all_calls() -> None:
    assert FakeModel().describe()[0].calls == (*BATCHES, *EXTENSIONS)
