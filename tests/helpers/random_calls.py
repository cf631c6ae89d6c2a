"""Random raw calls of several inferlets, under random waves, beside the interpreter that says what they mean.

Batches are so small that forwards are split, pages and embeds run out and inferlets of two classes are ended for it
or wait, dispatch is by any policy, several waves are in flight, and address spaces hear of everything late.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pie_control.ids import Owner
from pie_control.scheduling import Adaptive, DispatchPolicy, Eager, KOnly, TOnly
from pie_control.tenants.tenant import DEFAULT_STANDING, ServiceClass, Standing
from tests.helpers.issue_order import NO_ADAPTERS, VOCAB, Exported, HashModel, IssueOrder
from tests.helpers.languages import have_compiled
from tests.helpers.pictures import Picture, fake_pictures
from tests.helpers.random_author import CLOSE, EMBEDS, PAGES, Author
from tests.helpers.scheduling import World

PAGE_SIZE = 4
STEPS = 40
BATCH = Standing(service_class=ServiceClass.BATCH)

POLICIES: Sequence[Callable[[], DispatchPolicy]] = (
    Adaptive,
    lambda: Adaptive(max_in_flight=3, surplus=0),
    Eager,
    lambda: KOnly(5),
    lambda: TOnly(2.0),
)


def write_adapters(folder: Path) -> dict[str, Path]:
    """Adapters for the fake model, by name."""
    folders = {name: folder / name for name in ("formal", "short")}
    for name, own in folders.items():
        own.mkdir()
        (own / "adapter_config.json").write_text(json.dumps({"name": name}))
    return folders


def run_random_programs(
    seed: int, made: Counter[str], new_world: type[World] = World, adapters: Mapping[str, Path] = NO_ADAPTERS
) -> None:
    """Some inferlets with a program each. Counts calls in `made`. Raises AssertionError if one was told anything that
    its calls do not mean."""
    choice = random.Random(seed)
    number = choice.choice([1, 2, 3, 3])
    most_tokens = choice.choice([5, 8, 17, 24, 64])
    scratch = -(-most_tokens // PAGE_SIZE)
    room = choice.choice([0, 0, 1, 40])  # pages that are left at first
    world = new_world(
        choice.choice(POLICIES)(),
        page_size=PAGE_SIZE,
        num_pages=scratch + number * PAGES + room,
        num_embeds=number * EMBEDS + choice.choice([0, 3, 200]),
        max_batch_tokens=most_tokens,
        max_batch_rows=choice.choice([1, 3, 64]),
        num_token_slots=choice.choice([3, 64]),
        max_context=400,
    )
    late = random.Random(seed + 1)
    most_untold = choice.choice([0, 2, 6])
    world.lateness = lambda: late.randint(0, most_untold)
    world.load_adapters(adapters)
    have_compiled(vars(world.model)["_constraints"], VOCAB)
    model = HashModel(adapters)
    meanings = [IssueOrder(PAGE_SIZE, most_tokens, model) for _ in range(number)]
    standings = [late.choice([DEFAULT_STANDING, BATCH]) for _ in meanings]
    play(world, choice, meanings, made, CLOSE, fake_pictures(), standings, late.choice([1, 8, 30]))
    for inferlet in list(world.inferlets.values()):
        world.close(inferlet)
    _settle(world)
    usage = world.scheduler.statistics()
    assert usage.pages.used == usage.export_pages, "pages were lost"
    assert (usage.embeds.used, usage.token_slots.used) == (0, 0), "embeds or token slots were lost"


def play(
    world: World,
    choice: random.Random,
    meanings: Sequence[IssueOrder],
    made: Counter[str],
    close: float = CLOSE,
    pictures: Sequence[Picture] = (),
    standings: Sequence[Standing] = (),
    greed: int = 1,
) -> list[Author]:
    """Runs a program of an inferlet for each of `meanings`, to the end. Gives their authors."""
    shared: dict[str, Exported] = {}
    inferlets = [world.open(standing=standing) for standing in standings or [DEFAULT_STANDING] * len(meanings)]
    authors = [
        Author(inferlet, random.Random(choice.random()), means, made, shared, lambda: _settle(world), pictures)
        for inferlet, means in zip(inferlets, meanings, strict=True)
    ]
    for author in authors:
        author.greed = greed
    for _ in range(STEPS):
        alive = [author for author in authors if author.alive]
        if not alive:
            break
        choice.choice(alive).step()
        if choice.random() < 0.4:
            _some_turns(world, choice)
    _finish(world, {one.owner for one, of in zip(inferlets, standings, strict=False) if of is BATCH}, made)
    for author in authors:
        author.check(close)
        made["ended"] += not author.alive
    return authors


def _some_turns(world: World, choice: random.Random) -> None:
    for _ in range(choice.randint(1, 3)):
        world.now += 1
        if choice.random() < 0.6:
            world.turn()
        if world.sent and choice.random() < 0.5:
            world.answer()


def _settle(world: World) -> None:
    """Runs all that waits, and tells everybody."""
    lateness, world.lateness = world.lateness, lambda: 0
    for _ in range(3):
        world.now += 1
        world.drain()
    world.lateness = lateness


def _finish(world: World, batch: set[Owner], made: Counter[str]) -> None:
    """Runs all that waits. `batch`: jobs that may wait for memory of the others, until these are over."""
    world.lateness = lambda: 0
    world.finish()
    if not (stuck := _waiting(world)):
        return
    assert stuck <= batch, "commands never ran"
    made["a batch job waited"] += 1
    others = [inferlet for owner, inferlet in world.inferlets.items() if owner not in batch]
    assert others, "batch jobs wait for each other"
    for inferlet in others:
        world.close(inferlet)
    world.finish()
    assert not _waiting(world), "a batch job waits for nobody"


def _waiting(world: World) -> set[Owner]:
    return {owner for owner, one in world.inferlets.items() if one.space.waiting or one.space.runs}
