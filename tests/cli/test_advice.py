"""What an error or a finding advises can be typed: every option that it names is one of the command that says it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import cyclopts
import pytest

import eyas
from eyas.cli.app import COMMANDS, build_app

SOURCE = Path(eyas.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Options of the engines that eyas starts or judges, and of no command here.
FOREIGN = (
    "serve.",
    "client.",
    "contract.engines.launching.",
    "contract.engines.sglang.",
    "contract.engines.vllm.",
    "contract.engines.tensorrt_llm.",
    "contract.dialects.llama_cpp",
)
# (module, option) that no command says without having it, though it reaches the module; or another tool's. And why.
EXCEPTIONS = {
    ("contract.check.check", "--for"): "`eyas serve` always asks for an engine",
    ("contract.engines.registry", "--nearest"): "`eyas serve` takes the nearest rules by itself",
    ("contract.dialects.speculators", "--speculative-config"): "of vLLM",
    ("data.text.chat_template", "--turns"): "`eyas train` reads templates and renders nothing",
    ("data.text.chat_template", "--regenerate"): "`eyas train` reads templates and renders nothing",
    ("data.text.chat_template", "--template-options"): "`eyas train` reads templates and renders nothing",
    ("records.conversation", "--regenerate"): "`eyas train` reads rows, no conversations",
    ("replay.evaluate", "--save-rows"): "`eyas infer` says it in its own words",
    ("replay.evaluate", "--data"): "`eyas check --probe` replays a pack, which has its rows",
    ("replay.eval_config", "--max-rows"): "`eyas check --probe` and `eyas parity` give no value that is refused",
    ("replay.eval_config", "--max-new-tokens"): "`eyas check --probe` gives no value",
    ("replay.eval_config", "--threads"): "`eyas check --probe` and `eyas parity` give no value",
    ("models.placement", "--device"): "`eyas check --probe` takes the device that is there",
    ("models.target.quantise", "--device"): "`eyas check` quantises nothing",
    ("models.target.quantise", "--dtype"): "`eyas check` quantises nothing",
    ("models.target.target", "--dtype"): "`eyas check` loads no target",
    ("replay.eval_config", "--tree"): "`eyas infer` takes a ReplayConfig alone",
    ("replay.eval_config", "--batch-tokens"): "`eyas infer` takes a ReplayConfig alone",
    ("contract.convert.conversion_plan", "--dry-run"): "said by `eyas convert` alone: serve plans no conversion",
    ("data.text.target_text", "--data"): "`eyas chat` reads stop ids and templates, and writes no conversations",
    ("data.text.target_text", "--regenerate"): "`eyas chat` writes no conversations",
    ("data.text.target_text", "--self-chat"): "`eyas chat` writes no conversations",
    ("contract.convert.conversion_plan", "--allow"): "after `eyas convert`, where check and serve quote it",
    ("contract.reading.lookalikes", "--rename"): "after `eyas convert`",
    ("contract.spec.renames", "--rename"): "only convert gives renames",
    ("contract.convert.conversion_plan", "--fix"): "said by `eyas convert` alone: serve plans no conversion",
    ("extract.server_source", "--boundaries"): "of the `eyas serve --capture` that is to be started again",
    ("extract.server_source", "--context-length"): "of the `eyas serve --capture` that is to be started again",
    ("extract.server_source", "--spool-gb"): "of the `eyas serve --capture` that is to be started again",
    ("extract.spool", "--from"): "`eyas serve` opens no spool to read rows from",
    ("models.chat_prompt", "--url"): "in `eyas prepare`, as it says",
    ("models.target.final_norm", "--hidden-states"): "only `eyas train` reads a final norm alone",
    ("cli.commands.eval", "--for"): "said by `eyas eval` alone: parity shares its option for a target",
    ("data.writing.open_servers", "--served-model-name"): "of the engines",
    ("replay.eval_config", "--num-draft-tokens"): "`eyas tune` gives K up to its own --most, which is in range",
    ("bench.bench_config", "--tree"): "`eyas tune` asks for no trees",
    ("bench.bench_config", "--peer"): "`eyas tune` asks for no peer",
    ("bench.bench_config", "--batch"): "`eyas tune` checks its --concurrency itself",
    ("bench.bench_config", "--quantize"): "`eyas tune` quantises nothing",
    ("models.target_folder.hub_snapshot", "--include"): "of hf",
    ("models.target_folder.hub_snapshot", "--local-dir"): "of hf",
    ("models.target.quantise", "--quantize"): "others than bench and prepare ask for none",
}


def modules() -> dict[str, ast.Module]:
    paths = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for name, path in paths.items()}


def imports(tree: ast.Module, known: dict[str, ast.Module]) -> set[str]:
    """Modules of eyas that `tree` imports, in functions too, for types not."""
    nodes = list(ast.walk(tree))
    for_types = [n for n in nodes if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    skipped = {id(inner) for node in for_types for inner in ast.walk(node)}
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eyas.") and id(node) not in skipped:
            module = (node.module or "").removeprefix("eyas.")
            found |= {f"{module}.{a.name}" if f"{module}.{a.name}" in known else module for a in node.names}
    return found


def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen, left = set[str](), [start]
    while left:
        if (name := left.pop()) not in seen and name in graph:
            seen.add(name)
            left += graph[name] - {"cli.app"}
    return seen


def sentences(tree: ast.Module) -> Iterator[str]:
    """Texts that may be shown: constants and f-strings of several words, but for docstrings."""
    nodes = list(ast.walk(tree))
    docs = {id(n.value) for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    inner = {id(part) for n in nodes if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inner:
            if " " in node.value:
                yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def options_of(app: cyclopts.App) -> dict[str, set[str]]:
    """Names of every command's options."""
    found = {}
    for command in COMMANDS:
        arguments = app[command].assemble_argument_collection()
        found[command] = {name for argument in arguments for name in argument.names if name.startswith("--")}
    return found


def wrong(text: str, commands: list[str], options: dict[str, set[str]]) -> Iterator[str]:
    """Options that `text` names in vain: after `eyas X` those of X count, elsewhere those of all `commands`."""
    own, *others = re.split(r"(?=\beyas [a-z]+ )", text) if not text.startswith("eyas ") else ("", text)
    for part, tellers in [(own, commands), *((other, [other.split()[1]]) for other in others)]:
        for option in OPTION.findall(part):
            if option != "--help":
                yield from (f"{option} is none of {c}" for c in tellers if option not in options.get(c, {option}))


def complaints() -> dict[tuple[str, str], str]:
    """What is named in vain, by module and option."""
    trees, options = modules(), options_of(build_app())
    graph = {name: imports(tree, trees) for name, tree in trees.items()}
    tellers: dict[str, list[str]] = {name: [] for name in trees}
    for command in COMMANDS.keys() - {"demo"}:  # which runs others and shows what they say
        for name in reached(f"cli.commands.{command}", graph):
            tellers[name].append(command)
    return {
        (name, problem.split()[0]): f"{problem}: {text}"
        for name, tree in trees.items()
        if not name.startswith(FOREIGN)
        for text in sentences(tree)
        for problem in wrong(text, sorted(tellers[name]), options)
    }


def test_every_option_that_a_sentence_names_is_one_of_each_command_that_can_say_it():
    found = complaints()
    assert {place: said for place, said in found.items() if place not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() <= found.keys(), "an exception that none is"


@pytest.mark.parametrize(
    ("text", "num"),
    [
        ("give --target T", 0),
        ("give --save-rows", 1),
        ("`eyas eval DRAFT --save-rows F` writes them", 0),
        ("make one: eyas eval DRAFT --rows F", 1),
        ("see `eyas infer --help`", 0),
    ],
)
def test_an_option_of_another_command_is_found(text: str, num: int):
    assert len(list(wrong(text, ["infer"], options_of(build_app())))) == num
