from inferlet_sdk import Context, Grammar, Sampler, inferlet

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Oslo", "Rome", "Lima"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
DATE = "(0[1-9]|[12][0-9]|3[01])/(0[1-9]|1[0-2])/(19|20)[0-9]{2}"
SUM = """
start: "=" term (sign term)+
term: NUMBER | "(" NUMBER sign NUMBER ")"
sign: "+" | "-"
NUMBER: /[1-9][0-9]?/
"""


@inferlet
async def main(args, text: str = "Mia is 7 years old and lives in Oslo.", grammar: str = "", seed: int = 0):
    """What a model writes, kept to a JSON Schema, to a regular expression and to a grammar in the syntax of Lark. With
    `grammar=`, an answer to the text that is sampled by this grammar."""
    if grammar:
        ctx = Context(args.model).fill_chat("user", text)
        return await args.stream(ctx.generate(sampler=Sampler(seed=seed), grammar=grammar))
    async with Context(args.model) as ctx:
        ctx.fill_chat("user", f"{text} Write this as JSON with name, age, city.")
        await args.send(await ctx.generate_until(schema=PERSON, max_tokens=60) + "\n")
    async with Context(args.model) as ctx:
        ctx.fill_chat("user", "When was she born?")
        await args.send(await ctx.generate_until(regex=DATE, max_tokens=20) + "\n")
    async with Context(args.model) as ctx:
        ctx.fill_chat("user", "Write a sum of numbers.")
        matcher = await Grammar.of_lark(SUM).matcher(args.model)
        text = await ctx.generate_until(grammar=matcher, max_tokens=6)
        while not matcher.state.accepting:  # a number or a bracket is missing
            text += await ctx.generate_until(grammar=matcher, max_tokens=1)
        await args.send(text + "\n")
        return matcher.state.tokens
