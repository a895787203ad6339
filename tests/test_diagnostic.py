"""A remedy is data that renders to something that can be typed."""

import pickle
import shlex

from eyas.diagnostic import Convert, Edit, Flag, Run, finding
from eyas.errors import EyasError


def test_a_conversion_is_one_command_whatever_the_folder_is_called():
    assert shlex.split(str(Convert(draft="my draft", to="sglang"))) == [
        *("eyas", "convert", "my draft", "--to", "sglang", "OUT"),
    ]
    renamed = Convert(draft="d", to="vllm", rename=("blk0_*=midlayer.*",), fix="d2t-absolute", remark="does it")
    assert str(renamed) == "eyas convert d --to vllm --rename 'blk0_*=midlayer.*' --fix d2t-absolute OUT does it"


def test_a_header_dump_is_not_what_is_converted():
    assert str(Convert(draft="d.json", to="vllm")) == "eyas convert DRAFT_FOLDER --to vllm OUT"


def test_remedies_are_rendered_as_alternatives_in_the_order_given():
    found = finding("a-code", "error", "what", "where", "why", (Edit("bias", True), Flag("--dtype", "auto"), Run("x")))

    assert found.advice == 'write "bias": true; or add --dtype auto; or x'
    assert found.as_document()["do"] == found.advice
    assert str(finding("a-code", "note", "what", "where", "why")).splitlines()[-1] == "  = why: why"


def test_flags_and_environment_variables_are_spelled_as_the_shell_wants_them():
    assert str(Flag("VLLM_USE_V2_MODEL_RUNNER", "0")) == "add VLLM_USE_V2_MODEL_RUNNER=0"
    assert str(Flag("--trust-remote-code")) == "add --trust-remote-code"


def test_an_error_carries_one_and_survives_pickling():
    error = EyasError("what", "where", "why", (Edit("bias", [1]), "or not"))

    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert again.diagnostic == error.diagnostic
    assert str(again) == str(error) == str(error.diagnostic)
    assert hash(error.diagnostic) == hash(again.diagnostic)
