import shlex

from eyas.contract.spec.convert_command import convert_command, draft_folder


def test_a_path_with_a_space_stays_one_argument():
    assert shlex.split(convert_command("my draft", "sglang")) == [
        "eyas",
        "convert",
        "my draft",
        "--to",
        "sglang",
        "OUT",
    ]


def test_a_dump_cannot_be_converted_so_the_draft_is_asked_for():
    assert convert_command("d.json", "vllm") == "eyas convert DRAFT_FOLDER --to vllm OUT"
    assert draft_folder("d.json") == "DRAFT_FOLDER"
    assert draft_folder("d") == "d"
