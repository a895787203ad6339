"""`eyas engines`: the table of load rules, each with its source and grades."""

import json

from eyas.cli.app import main
from eyas.contract.engines.sglang import load_rules as sglang
from eyas.contract.engines.vllm import load_rules as vllm


def test_every_rule_set_is_listed_with_its_source(capsys):
    assert main(["engines"]) == 0

    text = capsys.readouterr().out
    for rules in (*sglang.RULES, *vllm.RULES):
        assert rules.source in text


def test_json_has_a_grade_for_each_version(capsys):
    assert main(["engines", "--json"]) == 0

    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["schema"] == "eyas.engines/1"
    grades = {g for row in document["rules"] for g in row["versions"].values()}
    assert grades <= {"ran", "read"}
    assert all(row["versions"] for row in document["rules"])


def test_targets_tell_the_first_version_that_can_tap_them(capsys):
    assert main(["engines", "--targets", "--engine", "sglang"]) == 0

    line = next(x for x in capsys.readouterr().out.splitlines() if "KimiK25ForConditionalGeneration" in x)
    assert "0.5.9: no hook, 0.5.10: yes" in line
    assert "0.5.13: yes, ids first-is-1" in line


def test_one_engine_alone(capsys):
    main(["engines", "--engine", "vllm"])

    assert "LlamaForCausalLMEagle3\n" not in capsys.readouterr().out
