"""`eyas engines`: the table of load rules, each with its source and grades."""

import json

from eyas.cli.app import main
from eyas.contract.engines.registry import all_engines


def test_every_rule_set_is_listed_with_its_source(capsys):
    assert main(["engines"]) == 0

    text = capsys.readouterr().out
    for engine in all_engines():
        assert all(rules.source in text for rules in engine.loading.rules)


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


def test_what_changed_between_two_releases_is_told_part_by_part(capsys):
    assert main(["engines", "--diff", "sglang==0.5.9", "sglang==0.5.23"]) == 0

    text = capsys.readouterr().out
    assert "renames: () -> (('midlayer', 'layers.0')" in text
    assert "KimiK25ForConditionalGeneration: absent -> ids first-is-1" in text
    assert "  + --cuda-graph-max-bs-decode" in text
    assert "  - --cuda-graph-max-bs\n" in text
    assert "transformers: 4.57.1 -> 5.19.0" in text


def test_the_difference_is_one_json_object_and_reads_backwards_as_forwards(capsys):
    found = []
    for pair in (["vllm==0.25.1", "vllm==0.33.0"], ["vllm==0.33.0", "vllm==0.25.1"]):
        assert main(["engines", "--json", "--diff", *pair]) == 0
        found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))

    forth, back = found
    assert (forth["schema"], forth["from"], forth["to"]) == ("eyas.engines-diff/1", "vllm==0.25.1", "vllm==0.33.0")
    assert any(row["field"] == "map_when_full" and row["to"] is False for row in forth["rules"])
    assert forth["flags"]["added"] == back["flags"]["gone"]
    assert {row["architecture"] for row in forth["targets"]} == {row["architecture"] for row in back["targets"]}
    assert any("does not lengthen" in line for line in forth["launch"]["gone"])


def test_a_version_differs_in_nothing_from_itself(capsys):
    assert main(["engines", "--diff", "sglang==0.5.23", "sglang==0.5.23.post1"]) == 0

    assert "nothing that eyas knows of changed" in capsys.readouterr().out


def test_two_engines_are_not_compared(capsys):
    assert main(["engines", "--diff", "sglang==0.5.23", "vllm==0.33.0"]) == 2

    assert "different engines" in capsys.readouterr().err
