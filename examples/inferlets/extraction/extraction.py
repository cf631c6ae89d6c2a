from dataclasses import dataclass

from inferlet_sdk import Context, SchemaMismatch, inferlet


@dataclass
class Person:
    name: str
    age: int
    city: str


@inferlet
async def main(args, text: str = "Mia is 7 years old and lives in Oslo.", max_tokens: int = 60):
    """Reads a person out of a text."""
    async with Context(args.model) as ctx:
        ctx.fill_chat("user", f"{text} Write this as JSON with name, age, city.")
        try:
            person = await ctx.generate_as(Person, max_tokens)
        except SchemaMismatch as error:
            await args.send(f"{error}\n")
            return None
    await args.send(f"{person.name} ({person.age}) of {person.city}\n")
    return person.age
