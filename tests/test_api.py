import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from eyas import api
from eyas.shipped import draft_folder
from eyas.train.preflight.train_plan import TrainPlan


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


@pytest.mark.parametrize(
    ("misused", "told"),
    [
        (lambda draft: api.evaluate(draft, draft, "rows.jsonl", None, None), "give ['rows.jsonl']"),
        (lambda draft: api.evaluate(draft, draft, Path("a.jsonl"), None, None), "data takes a list of paths, not one"),
        (lambda draft: api.check(draft, None, []), "draft is not a path.*give api.read_checkpoint('"),
        (lambda draft: api.read_draft(api.read_checkpoint(draft), draft), "give api.read_target('"),
    ],
)
def test_what_a_path_is_not_good_for_is_said_with_what_to_do(misused, told):
    with pytest.raises(api.EyasError) as raised:
        misused(str(draft_folder()))
    assert raised.value.code == "api-misused"
    assert re.search(told.replace("[", r"\[").replace("(", r"\("), str(raised.value), re.S)


def test_text_is_taken_for_a_path_and_what_was_read_shows_itself_in_a_few_lines(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt_ids": [1], "response_ids": [2]}\n')
    assert len(api.read_eval_rows([str(tmp_path / "rows.jsonl")])) == 1
    assert api.TrainRequest(target="t", rows="r", out="o").out == Path("o")

    draft = api.read_checkpoint(str(draft_folder()))

    assert len(repr(draft)) < 3000
    assert len(repr(api.read_draft(draft))) < 6000
    assert len(repr(api.open_draft(draft_folder()))) < 3000


def test_importing_the_api_brings_no_torch():
    code = "import eyas.api, sys; dir(eyas.api); eyas.api.check; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "False"


def test_a_plan_is_shown_in_a_few_lines():
    reading = api.read_draft(api.read_checkpoint(draft_folder()))
    plan = api.plan_conversion(reading, api.dialect_named("vllm"), None)
    assert len(repr(plan)) < 1000
    heavy = {"target", "spec", "vocabulary", "batches", "held_out"}
    assert not heavy & {field.name for field in fields(TrainPlan) if field.repr}
