# status: finished
import json
def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value
def by_c(value):
    return sorted([value], key=by_c)
def main(args):
    assert len(json.dumps(nested(2000))) == 4002
    assert len(json.loads("[" * 2000 + "]" * 2000)) == 1
    assert compile("+".join("a" * 2000), "text", "eval")
    for fails in (lambda: by_c(0), lambda: compile("(" * 5000 + ")" * 5000, "text", "eval")):
        try:
            fails()
        except (RecursionError, MemoryError):  # the parser says MemoryError
            continue
        raise AssertionError("it has no end")
