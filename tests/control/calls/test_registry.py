"""What is derived from the rooms of the calls."""

from __future__ import annotations

from pie_control.calls import CALLS, implemented_traits
from pie_control.calls.kind import Stage
from pie_control.calls.traits import TRAITS
from pie_inference.protocol import BATCHES, EXTENSIONS

ALL = (*BATCHES, *EXTENSIONS)


def test_a_call_has_the_name_of_its_module() -> None:
    assert {name: call.name for name, call in CALLS.items()} == {name: name for name in CALLS}
    assert all(
        call.issue.__module__.endswith(f".{call.interface}.{call.name}") for call in CALLS.values() if call.issue
    )


def test_a_call_with_a_stage_has_a_batch_that_workers_know() -> None:
    to_worker = {name for name, call in CALLS.items() if call.stage is not Stage.CONTROL}
    assert to_worker <= set(BATCHES)
    assert {name for name, call in CALLS.items() if call.new_batch is not None} == to_worker
    assert CALLS["copy_kvpage"].stage is Stage.COPY


def test_traits_follow_from_what_a_worker_runs_and_knows() -> None:
    assert implemented_traits(ALL, has_tokenizer=True) == TRAITS
    names = {trait.name for trait in implemented_traits([name for name in ALL if name != "verify"], True)}
    assert names == {trait.name for trait in TRAITS} - {"Fused", "Grammar"}
    without_tokenizer = {trait.name for trait in implemented_traits(ALL, False)}
    assert {trait.name for trait in TRAITS} - without_tokenizer == {"Tokenize", "Grammar"}
    names_in_order = [trait.name for trait in TRAITS]
    of_every_model = names_in_order[: names_in_order.index("Allocate")]  # the control layer does them
    assert [trait.name for trait in implemented_traits([], True)] == of_every_model
    assert {trait.interface for trait in TRAITS} >= {"core", "forward_with_adapter", "introspective_forward"}
