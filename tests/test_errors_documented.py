"""Each code of an error, a finding or a known failure has one meaning, and docs/errors.md one heading for it."""

import ast
import itertools
from collections import Counter

from errors_page import TABLE, catalogue, error_classes, known_failures, made_codes, makers, modules


def test_every_code_has_a_meaning():
    meanings = {code: said for group in catalogue().values() for code, said in group.items()}
    known = makers()
    made = set[str]().union(*(made_codes(tree, known) for _, tree in modules()))

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
    assert made_codes(tree, makers()) == {"two", "three"}
    assert len(known_failures()) > 50
    assert {"Diagnostic", "finding", "loss", "reason"} < makers().keys()
