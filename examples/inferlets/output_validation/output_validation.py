import json
import re

from inferlet_sdk import Context, Sampler, inferlet

FACTS = "Vilma is 9 years old and has a rabbit. Vilma has a friend called Drirbreplou."
MOST = 100  # tries


def is_good(text: str, facts: str, keys: list[str], ended: bool) -> bool:
    """Whether the text is JSON with these keys, whose values stand in the facts, none twice; or the beginning of it."""
    value = r'(?<=": )(?:"[^"]*"|\d+)(?=[,}])'
    growing = None if ended else re.search(r'(?<=": )"?([^",}]*)"?$', text)
    shape = re.sub(value, "#", text[: growing.start()] if growing else text)
    whole = json.dumps(dict.fromkeys(keys, 0)).replace(": 0", ": #")
    if not (shape == whole if ended else whole.startswith(shape)):
        return False
    values = [one.strip('"') for one in re.findall(value, text)]
    known = all(re.search(rf"\b{re.escape(one)}\b", facts) for one in values)
    begun = growing is None or re.search(rf"\b{re.escape(growing[1])}", facts)
    return known and bool(begun) and len(set(values)) == len(values)


@inferlet
async def main(
    args,
    facts: str = FACTS,
    keys: str = "name, age, pet, friend",
    temperature: float = 1.2,
    seed: int = 0,
    whole: bool = False,
):
    """Writes facts as JSON, which a function looks at while it grows. Where it objects, the program goes back by a
    token, and at times by 2, 4, 8 and more; with `whole`, it tries a whole answer again."""
    ctx = Context(args.model).fill_chat("user", f"{facts} Write this as JSON with {keys}.")
    places, drawn = [(len(ctx), "")], 0
    for number in range(1, MOST + 1):
        length, text = places[-1]
        sampler = Sampler(temperature=temperature, seed=seed * MOST + number)
        generation = ctx.truncate(length).generate(120, sampler=sampler, run_ahead=False)
        async for piece in generation:
            text += piece
            if not whole and not is_good(text, facts, keys.split(", "), False):
                break
            places.append((len(ctx), text))
        drawn += len(generation.tokens)
        if generation.stop_reason == "stop" and is_good(text, facts, keys.split(", "), True):
            await args.send(f"{text}\n")
            return {"text": text, "tokens": drawn, "tries": number}
        back = number & -number  # 1, 2, 1, 4, 1, 2, 1, 8
        del places[1 if whole else max(1, len(places) + 1 - back) :]
    await args.send(f"No record is valid after {MOST} tries: give other facts or keys.\n")
    return {"text": None, "tokens": drawn, "tries": MOST}
