import ast
import subprocess
import sys
from pathlib import Path

import pytest

from eyas import api


@pytest.mark.parametrize("name", api.__all__)
def test_every_public_name_is_where_the_table_says(name):
    assert getattr(api, name).__name__ == name


def test_type_checkers_see_the_names_that_users_get():
    tree = ast.parse(Path(api.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {(alias.asname, node.module) for node in block.body for alias in node.names}

    assert seen == set(api._HOMES.items())


def test_an_unknown_name_is_told_with_those_there_are():
    with pytest.raises(AttributeError, match="has no trian; it has Acceptance, BatchPair, CheckOptions"):
        api.trian  # noqa: B018 - the access is the test


def test_importing_the_api_brings_no_torch():
    code = "import eyas.api, sys; dir(eyas.api); eyas.api.check; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "False"
