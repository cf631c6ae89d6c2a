"""The agents of `benchmarks agents` as programs: what benchmarks/opponents/agents.py does beside a server."""

from collections.abc import Awaitable, Callable

from inferlet_sdk import Args, Context, IgnoreStopTokens, broadcast, gather, http_get, inferlet, launch, subscribe

MEMBERS = 4
Act = Callable[[], Awaitable[None]]


@inferlet(reuse=True)
async def main(
    args: Args,
    kind: str,
    prompt: list[int],
    ios: int,
    tokens: int,
    observation: int,
    url: str = "",
    program: str = "",
    member: int = -1,
    show: bool = False,
) -> int | list[list[int]]:
    if kind != "swarm":

        async def act() -> None:
            if kind == "codeact":
                eval(program)
            else:
                (await http_get(url)).raise_for_status()

        context = await steps(args, prompt, ios, tokens, observation, act)
        return [list(context.tokens[len(prompt) :])] if show else (ios + 1) * tokens
    if member < 0:
        members = [
            launch(kind=kind, prompt=prompt, ios=ios, tokens=tokens, observation=observation, member=number)
            for number in range(MEMBERS)
        ]
        for one in members:
            await one.receive()  # it listens
        for one in members:
            await one.send("go")
        total: int = sum(await gather(*members))
        return total
    swarm = args.environment["parent"]
    with subscribe(f"{swarm} {member}") as messages:
        await args.send("ready")
        await args.receive()

        async def pass_on() -> None:
            await broadcast(f"{swarm} {(member + 1) % MEMBERS}", "message")
            await messages.next()

        await steps(args, prompt, ios // MEMBERS, tokens, observation, pass_on)
        return (ios // MEMBERS + 1) * tokens


async def steps(args: Args, prompt: list[int], count: int, tokens: int, observation: int, act: Act) -> Context:
    context = Context(args.model).fill(prompt)
    for step in range(count + 1):
        await context.generate_until(IgnoreStopTokens(), tokens)
        if step < count:
            await act()
            context.fill(65 + (31 * step + 7 * place) % 180 for place in range(observation))
    return context
