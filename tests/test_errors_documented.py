"""Each code of an error, a finding or a known failure has one meaning, and docs/errors.md one heading for it."""

import ast
import itertools
from collections import Counter

from errors_page import MAKERS, SOURCE, TABLE, catalogue, error_classes, known_failures, made_codes, modules


def test_every_code_has_a_meaning():
    meanings = {code: said for group in catalogue().values() for code, said in group.items()}
    made = set[str]().union(*(made_codes(tree) for _, tree in modules()))

    assert len(made) > 100
    assert sorted(made - meanings.keys()) == [], f"say in {TABLE.name} what these codes mean, then run `make docs`"
    assert [code for code, said in meanings.items() if not said.strip()] == []


def test_no_code_stands_twice():
    codes = Counter(itertools.chain(*catalogue().values()))

    assert [code for code, count in codes.items() if count > 1] == []


def test_no_meaning_is_left_of_a_code_that_is_gone():
    import tomllib

    words = {node.value for _, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    fstrings = {"tensor-cut", "tensor-padded"}  # put together by the code
    listed = set().union(*tomllib.loads(TABLE.read_text()).values())

    assert sorted(listed - words - fstrings) == []


def test_the_search_for_codes_finds_every_kind():
    tree = ast.parse(
        'class A(EyasError):\n    """Said."""\n\n    code = "one"\nDiagnostic(code="two")\nloss("three", "x")\n'
    )

    assert error_classes(tree) == {"one": "Said."}
    assert made_codes(tree) == {"two", "three"}
    assert len(known_failures()) > 50


def test_every_maker_of_diagnostics_is_searched_for():
    """A helper that takes a code and makes a diagnostic of it must be in MAKERS, or its codes would be missed."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and "code" in [
                a.arg for a in (*node.args.args, *node.args.kwonlyargs)
            ]:
                makes = {getattr(n.func, "id", "") for n in ast.walk(node) if isinstance(n, ast.Call)}
                passes = any(
                    isinstance(n, ast.Call) and getattr(n.func, "id", "") in MAKERS and "code" in ast.unparse(n)
                    for n in ast.walk(node)
                )
                assert not (makes & MAKERS and passes) or node.name in MAKERS, f"{path.name}: {node.name}"
