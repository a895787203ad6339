"""What an engine's command line knows, from its help or from the table."""

from eyas.contract.engines.launching.known_flags import KnownFlags, flag_value, flags_in_help
from eyas.contract.engines.registry import engine_named

SGLANG, VLLM = (engine_named(name).launching.flags for name in ("sglang", "vllm"))


def table_flags(engine: str, version: str) -> KnownFlags:
    return engine_named(engine).launching.flags.known(version)


HELP = """usage: launch_server.py [-h] --model-path MODEL_PATH [--tp-size TP_SIZE]

options:
  -h, --help            show this help message and exit
  --model-path MODEL_PATH, --model MODEL_PATH
                        The path of the model; see also --not-a-flag.
  --tensor-parallel-size TP_SIZE, --tp-size TP_SIZE
                        Deprecated alias of --neither-this
  --enable-x, --no-enable-x
"""


def test_the_flags_of_a_help_are_its_options_not_its_prose():
    assert flags_in_help(HELP) == {
        "--help",
        "--model-path",
        "--model",
        "--tensor-parallel-size",
        "--tp-size",
        "--enable-x",
        "--no-enable-x",
    }


def test_an_exact_version_is_certain_and_one_between_is_said_to_be_a_guess():
    assert table_flags("sglang", "0.5.20").is_certain
    between = table_flags("sglang", "0.5.16")
    assert not between.is_certain
    assert between.source == "the source of sglang 0.5.15.post1 (nearest known to 0.5.16)"
    assert table_flags("sglang", "0.5.5").source.startswith("the source of sglang 0.5.9")


def test_flags_come_and_go_with_versions():
    assert SGLANG.last_version_with("--cuda-graph-max-bs") == "0.5.17"
    assert SGLANG.first_version_with("--cuda-graph-max-bs-decode") == "0.5.15.post1"
    assert SGLANG.last_version_with("--tp-size") is None
    assert VLLM.first_version_with("--per-request-spec-decode-metrics") == "0.32.0"
    assert VLLM.first_version_with("--never-there") is None


def test_vllm_takes_negations_underscores_and_dotted_keys():
    known = table_flags("vllm", "0.33.0")

    assert known.knows("--no-enable-prefix-caching")
    assert known.knows("--max_model_len=3")
    assert known.knows("--speculative-config.method")
    assert not known.knows("--max-modell-len")
    assert not table_flags("sglang", "0.5.23").knows("--max_running_requests")


def test_a_flags_value_is_found_in_either_spelling_the_last_one_winning():
    assert flag_value(["--a", "1", "--a=2", "--b"], "--a") == "2"
    assert flag_value(["--b", "--a", "1"], "--b") == ""
    assert flag_value(["--ab", "1"], "--a") is None
