"""State of the scheduler is written by the class that owns it, so who reads a class has read all that changes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.helpers.tree import ROOT, parse

FOLDER = ROOT / "pie_control" / "scheduling"
CHANGES = {"add", "append", "clear", "discard", "extend", "pop", "popitem", "popleft", "remove", "update"}
"""Methods that change a container."""

Owned = dict[str, set[str]]
"""Attributes by class, with those of its bases."""


def written(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement or call changes itself."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        targets = [node.func.value]
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        yield from (part for part in parts if isinstance(part, ast.Attribute))


def is_own(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"


def attributes(declared: ast.ClassDef) -> set[str]:
    own = {each.attr for node in ast.walk(declared) for each in written(node) if is_own(each)}
    fields = {
        node.target.id
        for node in declared.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return own | fields


def classes(tree: ast.AST) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def base_names(declared: ast.ClassDef) -> set[str]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in declared.bases)
    return {base.id for base in bases if isinstance(base, ast.Name)}


def owned(trees: list[ast.Module]) -> Owned:
    declared = {one.name: one for tree in trees for one in classes(tree)}
    found = {name: attributes(one) for name, one in declared.items()}
    return {
        name: found[name].union(*(found[base] for base in base_names(one) if base in found))
        for name, one in declared.items()
    }


def foreign_writes(tree: ast.Module, owners: Owned) -> list[str]:
    """Writes to an attribute that another class of the package owns."""
    all_owned = set().union(*owners.values())
    wrong = []
    for declared in classes(tree):
        for node in ast.walk(declared):
            for each in written(node):
                if not is_own(each) and each.attr in all_owned - owners[declared.name]:
                    wrong.append(f"{declared.name} writes {ast.unparse(each)}")
    return wrong


def test_nobody_writes_into_another_class_of_the_scheduler() -> None:
    trees = [parse(path) for path in sorted(FOLDER.rglob("*.py"))]
    owners = owned(trees)
    assert "waiting" in owners["Account"]
    assert [wrong for tree in trees for wrong in foreign_writes(tree, owners)] == []


def test_foreign_writes_are_found() -> None:
    tree = ast.parse(
        "class A:\n def __init__(self): self.x, self.y = 1, set()\n"
        "class B(A):\n def b(self, a): a.x = self.y.add(2)\n"
        "class C:\n def c(self, a): a.x += 1; self.a.y.add(1); a.z = 2\n"
    )
    assert foreign_writes(tree, owned([tree])) == ["C writes a.x", "C writes self.a.y"]
