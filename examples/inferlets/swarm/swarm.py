import re
import sys
from collections import Counter

from inferlet_sdk import Context, broadcast, gather, inferlet, launch, subscribe

PARTS = [3, 11, 7, 12, 5, 9, 2, 8]


@inferlet
async def main(args, parts: list[int] = PARTS, alone: bool = False):
    """A swarm adds up what its members know: each one part, and no more than others tell it. `alone`: the model adds up
    all at once."""
    if not parts or min(parts) < 0:
        sys.exit("parts: give numbers of 0 or more, such as 3,11,7,12")
    if alone:
        return {"answer": int(await add(args.model, *map(str, parts)))}
    if len(parts) < 2 or len(parts) & (len(parts) - 1):
        sys.exit(f"{len(parts)} members cannot meet in pairs: give 2, 4, 8, ... parts")
    members = [launch(member, part, number, len(parts)) for number, part in enumerate(parts)]
    for one in members:
        await one.receive()  # it listens
    await gather(*(one.send("begin") for one in members))
    ends = await gather(*members)
    for number, end in enumerate(ends):
        await args.send(f"member {number} knows {parts[number]}, and hears {', '.join(end['heard'])}\n")
    answer, votes = ends[0]["votes"][0]
    await args.send(f"{votes} of {len(parts)} vote for {answer}\n")
    return {"answer": int(answer), "votes": votes, "messages": sum(end["sent"] for end in ends)}


async def member(args, part: int, number: int, size: int):
    """In each round it tells one of the other half what it knows by then, and adds what that one tells; then all
    vote."""
    swarm, rounds, known = f"swarm of {args.environment['parent']}", size.bit_length() - 1, str(part)
    mail, sent = dict[str, str](), 0
    with subscribe(f"{swarm}, {number}") as inbox, subscribe(swarm) as everybody:
        await args.send("ready")
        await args.receive()
        for turn in range(rounds):
            await broadcast(f"{swarm}, {number ^ 1 << turn}", f"{turn} {known}")
            sent += 1
            while str(turn) not in mail:  # another one may be ahead
                mail |= dict([(await inbox.next()).text.split()])
            known = await add(args.model, *sorted((known, mail[str(turn)]), key=int))  # both add the same way
        await broadcast(swarm, known)
        sent += 1
        votes = Counter([(await everybody.next()).text for _ in range(size)])
    return {"heard": [mail[str(turn)] for turn in range(rounds)], "votes": votes.most_common(1), "sent": sent}


async def add(model: str, *numbers: str) -> str:
    """The sum that the model finds, or the first number where it finds none."""
    said = await Context(model).fill(f"<|begin|>{' + '.join(numbers)} =").generate_until(max_tokens=60)
    return (re.findall(r"Answer: (\d+)", said) or numbers)[0]
