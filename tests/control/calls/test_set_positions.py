from __future__ import annotations

import pytest
from msgspec import structs

from pie_control.errors import InvalidArgument, InvalidState, NotFound, Unsupported
from pie_control.testing.fake_model import FakeModel
from tests.helpers.refusals import NO_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import World, name_token

REFUSED = [
    refusal(NotFound, NO_QUEUE, "set_positions", 9, [1], [0, 1]),
    refusal(
        InvalidArgument,
        "set-positions got 1 positions and 2 embeds; the numbers must be equal",
        "set_positions",
        Q,
        [1],
        [0, 2],
    ),
    refusal(InvalidArgument, "got 1 positions and 0 embeds", "set_positions", Q, [1], []),
    refusal(InvalidArgument, "position 40 is outside of the model's context of 40", "set_positions", Q, [40], [0, 1]),
    refusal(InvalidArgument, "position -1 is outside", "set_positions", Q, [0, -1], [0, 2]),
    refusal(InvalidState, "embed 4 was never filled", "set_positions", Q, [5, 6], [3, 2]),
    refusal(NotFound, "embed 8 is not allocated", "set_positions", Q, [5], [8, 1]),
    refusal(InvalidArgument, "embed 0 is named twice", "set_positions", Q, [5, 6], [0, 1, 0, 1]),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_it_is_no_command_and_later_forwards_use_it() -> None:
    inferlet, handed_on = prepare()
    before = len(handed_on)
    inferlet.call("set_positions", Q, [9, 7, 8], [3, 1, 0, 2])
    inferlet.call("set_positions", Q, [], [])
    assert len(handed_on) == before
    inferlet.call("forward", Q, [], [0, 4], [1, 1], [])
    assert handed_on[-1].positions == [7, 8, 2, 9]
    inferlet.call("set_positions", Q, [30], [0, 1])
    assert handed_on[-1].positions == [7, 8, 2, 9], "what was issued before keeps its positions"


def test_an_output_that_is_fed_back_sees_the_token_that_made_it_only_with_a_position_of_its_own() -> None:
    def follow(feed_back: bool, position: int | None) -> int:
        """The token behind a prompt and its own last output, fed back."""
        world = World()
        inferlet = world.open(4, 16)
        inferlet.embed(0, 3, tokens=[65, 66, 67 if feed_back else 70])
        inferlet.forward(0, 3, 8)
        if position is not None:
            inferlet.call("set_positions", 1, [position], [inferlet.embeds + 8, 1])
        inferlet.forward(8, 1, 9)
        future = inferlet.sample(9)
        world.drain()
        return inferlet.token(future)

    assert follow(True, None) != follow(True, 3)
    assert follow(True, 3) != follow(True, 4)


def test_an_output_is_no_input_where_layers_look_up_tokens() -> None:
    model = FakeModel()
    model._description = structs.replace(model._description, by_token=True)
    inferlet = World(model=model).open(4, 16)
    inferlet.call("embed_txt", Q, [65, 66, 67], [0, 1, 2], [0, 3])
    inferlet.forward(0, 3, 8)
    inferlet.call("copy_emb", Q, [8, 1], [9, 1])
    for call in ("forward", "forward_with_scores"):
        for output in (8, 9):
            with pytest.raises(Unsupported, match=f"embed {output} holds an output, and layers of model fake look up"):
                inferlet.call(call, Q, [0, 1], [0, 1, output, 1], [0, 1], [])
    inferlet.call("embed_txt", Q, [68], [3], [9, 1])
    inferlet.forward(9, 1, 10)


def test_a_token_is_sampled_at_an_output_with_a_new_position() -> None:
    world = World()
    inferlet = world.open(4, 16)
    inferlet.embed(0, 1)
    inferlet.forward(0, 1, 8)
    inferlet.call("set_positions", 1, [5], [inferlet.embeds + 8, 1])
    future = inferlet.sample(8)
    inferlet.embed(1, 1, tokens=[name_token(future)])
    world.drain()
    assert 0 <= inferlet.token(future) < 259
