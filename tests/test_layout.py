"""Tests follow the rooms of the source, and share code through tests/support alone."""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "eyas"
# Folders of tests about something else than a package: pages, guides, real engines.
OTHERS = {"docs", "guides", "real_engines", "support"}


def test_a_folder_of_tests_is_named_as_the_room_that_it_tests():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}

    assert [str(folder) for folder in folders if not (SOURCE / folder).is_dir() and folder.parts[0] not in OTHERS] == []


def test_a_test_imports_nothing_from_another_test():
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if name.split(".")[0].startswith("test_")
    ]

    assert found == [], "move what they share to tests/support"
