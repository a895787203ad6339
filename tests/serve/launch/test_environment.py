"""What a server gets of the environment, and what of it is shown."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.serve.facts.run_folder import redact_command
from eyas.serve.launch.environment import server_environment

NAMES = ["HF_TOKEN", "VLLM_API_KEY", "SGLANG_ADMIN_API_KEY", "AWS_SECRET_ACCESS_KEY", "NCCL_PASSWORD", "HF_KEY"]
SECRETS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8, max_size=30)


def environment(caller: dict[str, str], **more: object):
    defaults = {"added": {}, "key": (None, "VLLM_API_KEY"), "pythonpath": None}
    return server_environment(caller, **(defaults | more))  # type: ignore[arg-type]


@given(st.sampled_from(NAMES), SECRETS)
def test_no_secret_is_ever_shown_but_every_secret_is_passed(name: str, secret: str):
    made = environment({name: secret, "NCCL_DEBUG": "INFO"})

    assert secret not in repr(made.shown)
    assert made.variables[name] == secret
    assert made.shown["NCCL_DEBUG"] == "INFO"


@given(SECRETS, st.sampled_from(["--api-key", "--admin-api-key", "--hf-token"]), st.booleans())
def test_no_secret_of_a_command_line_is_ever_shown(secret: str, flag: str, joined: bool):
    words = [f"{flag}={secret}"] if joined else [flag, secret]

    shown = redact_command(["python", "-m", "x", *words, "--port", "1"])

    assert not any(secret in word for word in shown if secret not in ("--port", "python"))
    assert shown[-2:] == ["--port", "1"]


def test_nccl_variables_are_passed_through_and_shown():
    made = environment({"NCCL_SOCKET_IFNAME": "eth0", "EDITOR": "vi"})

    assert made.variables["NCCL_SOCKET_IFNAME"] == made.shown["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "EDITOR" not in made.shown
    assert made.variables["EDITOR"] == "vi"


def test_vllm_gets_the_key_by_its_own_variable_and_the_engines_folder_comes_first():
    made = environment({"MY_KEY": "sesame", "PYTHONPATH": "/a"}, key=("MY_KEY", "VLLM_API_KEY"), pythonpath="/site")

    assert made.variables["VLLM_API_KEY"] == "sesame"
    assert made.shown["VLLM_API_KEY"] == "(redacted)"
    assert made.variables["PYTHONPATH"] == "/site:/a"


def test_what_the_launch_needs_wins_over_the_caller():
    assert environment({"X": "1"}, added={"X": "2"}).variables["X"] == "2"


def test_a_proxy_that_would_catch_localhost_is_warned_about():
    (finding,) = environment({"http_proxy": "http://proxy:3128"}).findings

    assert (finding.code, finding.severity) == ("proxy-catches-localhost", "warning")
    assert finding.advice == "export no_proxy=127.0.0.1,localhost"


def test_a_proxy_with_exemptions_is_not():
    for exempt in ("localhost,127.0.0.1", "*", " 127.0.0.1 , localhost ,.corp"):
        assert environment({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": exempt}).findings == ()
