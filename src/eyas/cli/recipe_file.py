"""`--config recipe.yaml`: options of several commands in one file. The command line wins over the file.

The file holds one section per command, each with that command's options by name (`-` or `_`):

    prepare: {target: smollm2-135m, data: [a.jsonl, b.jsonl], out: rows}
    train:   {target: smollm2-135m, data: rows, out: draft, tokens: 10000, lr: 1.0e-3}

YAML, TOML or JSON. `--no-NAME` on the command line turns off a switch that the file turns on. Nothing is
guessed: an unknown section or option is an error that names the nearest known one, and an option that is given twice is
an error.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cyclopts

from eyas.cli.terminal import Terminal
from eyas.errors import EnvironmentMissing, EyasError

FLAG = "--config"
_MOST_LETTERS = 1 << 20
# Options that decide the same thing: one on the command line overrules all of them in the file.
_RIVALS = ({"--steps", "--tokens", "--epochs"},)


class RecipeUnreadable(EyasError):
    """The recipe file does not exist or cannot be parsed."""

    code = "recipe-unreadable"


class RecipeKeyUnknown(EyasError):
    """The recipe has a section or an option that does not exist."""

    code = "recipe-key-unknown"


def with_recipe(arguments: Sequence[str], app: cyclopts.App) -> list[str]:
    """`arguments` with `--config F` replaced by what F says for the command; the same list without one.

    Raises:
        RecipeUnreadable: the file does not exist or cannot be parsed, a value does not fit its option, or two recipes
            are given.
        RecipeKeyUnknown: a section that is not a command, or an option that the command does not have.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    places = [i for i, a in enumerate(given[:end]) if a == FLAG or a.startswith(f"{FLAG}=")]
    if not places or given[0].startswith("-"):
        return given
    command, place = given[0], places[0]
    used = 1 if "=" in given[place] else 2
    path = Path(given[place].partition("=")[2] or (given[place + 1] if place + 1 < end else ""))
    if len(places) > 1:
        raise _unreadable(path, f"`{FLAG}` is given {len(places)} times; give it once")
    rest = given[:place] + given[place + used :]
    end -= used
    recipe = read_recipe(path)
    _require_known(recipe, [name for name in app if not name.startswith("-")], f"{path}", "section")
    section = recipe.get(command)
    if not isinstance(section, Mapping):
        Terminal().note(f"{path} has no section `{command}`: nothing is taken from it")
        return rest
    options = _options(app[command])
    turned_off = {f"--no-{name[2:]}": name for name, option in options.items() if _is_switch(option)}
    turned_off = {other: name for other, name in turned_off.items() if other in rest[:end] and other not in options}
    rest = [argument for at, argument in enumerate(rest) if at >= end or argument not in turned_off]
    normal = _without_twins([(f"--{str(key).replace('_', '-')}", value) for key, value in section.items()], path)
    _require_known(normal, list(options), f"{path}: {command}", "option")
    if FLAG in normal:
        raise _unreadable(path, f"its section `{command}` names another recipe")
    said = _said(rest, options, normal, path) | set(turned_off.values())
    try:
        added = [
            token
            for name, value in normal.items()
            if name not in said
            for token in _tokens(name, value, options[name], path)
        ]
    except (ValueError, RecursionError) as error:  # a YAML alias inside its own anchor
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error
    if any("\0" in token for token in added):
        raise _unreadable(path, f"an option of `{command}` holds a NUL character")
    return [rest[0], *added, *rest[1:]]


def _said(
    rest: Sequence[str], options: Mapping[str, cyclopts.Argument], recipe: Mapping[str, Any], path: Path
) -> set[str]:
    """Options that the command line decides: those given there, under any name, and the ones that they overrule."""
    # `--lr=1e-3` is one argument, and cyclopts reads `_` as `-`.
    given = {argument.partition("=")[0].replace("_", "-") for argument in rest if argument.startswith("-")}
    said = {name for name, argument in options.items() if given & set(argument.names)}
    for rivals in _RIVALS:
        lost = [name for name in recipe if name in rivals - said] if rivals & said else []
        if lost:
            winners = " and ".join(sorted(rivals & said))
            Terminal().note(f"{winners} on the command line overrules {' and '.join(lost)} in {path}")
        said |= set(lost)
    return said


def read_recipe(path: Path) -> Mapping[str, Any]:
    """The sections of a recipe file.

    Raises:
        RecipeUnreadable: it does not exist, cannot be parsed, or is not a mapping of sections.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_LETTERS + 1)
        if len(text) > _MOST_LETTERS:
            raise ValueError(f"it is longer than {_MOST_LETTERS} characters")
        if path.suffix == ".toml":
            document: Any = tomllib.loads(text)
        elif path.suffix == ".json":
            document = json.loads(text, object_pairs_hook=lambda pairs: _without_twins(pairs, path))
        else:
            document = _yaml(path, text)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(section, dict) for section in document.values()):
        raise _unreadable(path, "it is not a mapping from commands to their options")
    return {str(name): section for name, section in document.items()}


def _without_twins(pairs: Sequence[tuple[Any, Any]], path: Path) -> dict[Any, Any]:
    """The mapping; raises `RecipeUnreadable` for a key that is given twice: the first would be lost silently."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _unreadable(path, f"{str(key).removeprefix('--')} is given twice")
        found[key] = value
    return found


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise EnvironmentMissing(
            "YAML recipes need PyYAML", str(path), str(error), "pip install pyyaml, or write the recipe as TOML"
        ) from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            _without_twins(names, path)
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

        def construct_yaml_int(self, node: Any) -> int:
            if ":" in node.value or re.fullmatch("[-+]?0[0-7_]+", node.value):
                raise ValueError(
                    f"YAML reads {node.value} as a number of base 60 or 8: write it in base 10, or in quotes"
                )
            made: int = super().construct_yaml_int(node)
            return made

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _options(command: cyclopts.App) -> dict[str, cyclopts.Argument]:
    """Each option by each of its long names."""
    arguments = command.assemble_argument_collection()
    return {name: argument for argument in arguments for name in argument.names if name[:2] == "--"}


def _is_switch(option: cyclopts.Argument) -> bool:
    return option.hint in (bool, bool | None)


def _require_known(keys: Mapping[str, Any], known: Sequence[str], where: str, kind: str) -> None:
    unknown = [key for key in keys if key not in known]
    if not unknown:
        return
    nearest = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5)
    raise RecipeKeyUnknown(
        f"unknown {kind} {', '.join(key.removeprefix('--') for key in unknown)}",
        where,
        "a misspelt name would silently leave its default",
        f"did you mean {nearest[0].removeprefix('--')}?" if nearest else f"known: {', '.join(sorted(known))}",
    )


def _tokens(name: str, value: Any, option: cyclopts.Argument, path: Path) -> list[str]:
    """An option as command-line arguments; null means its default."""
    if value is None:
        return []
    is_switch = _is_switch(option)
    if is_switch and value is False:
        return [other for other in option.names if other == f"--no-{name[2:]}"]
    if is_switch and value is True:
        return [name]
    if is_switch or isinstance(value, bool) or value == []:
        # `off` and `no` are false in YAML: dropped, they would silently leave a default.
        wanted = "true or false" if is_switch else "a value, or null for its default"
        raise _unreadable(path, f"{name[2:]} is {json.dumps(value, default=str)}, wanted {wanted}")
    if isinstance(value, list):
        return [token for item in value for token in (name, str(item))]
    if isinstance(value, dict):
        return [name, json.dumps(value, default=str)]
    return [name, str(value)]


def _unreadable(path: Path, why: str) -> RecipeUnreadable:
    return RecipeUnreadable(
        f"cannot read the recipe {path}",
        f"{FLAG} {path}",
        why,
        "give a YAML, TOML or JSON file with one section per command, such as `train: {steps: 100}`",
    )
