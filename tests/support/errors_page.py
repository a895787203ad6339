"""docs/errors.md out of the code: `python tests/support/errors_page.py` (or `make docs`) writes it.

A code means what the docstring of its error class says, what `why` says in a table of known failures, or what
docs/codes.toml says of a finding.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SOURCE = REPO / "src" / "eyas"
PAGE, TABLE = REPO / "docs" / "errors.md", REPO / "docs" / "codes.toml"
# heading -> packages whose errors stand under it; the first that fits
GROUPS = {
    "Reading a checkpoint": ("contract.files",),
    "convert": ("contract.convert", "cli.commands.convert"),
    "check: engines": ("contract.engines",),
    "check: the draft and its target": ("contract", "cli.commands.check"),
    "prepare and train: data": ("data", "records.data_files", "records.rows"),
    "extract and the store": ("extract", "store", "cli.commands.extract", "cli.commands.store"),
    "train": ("train", "cli.train", "cli.recipe", "cli.commands.train"),
    "parity": ("parity",),
    "eval and infer": ("replay", "models", "decode", "records.eval_rows", "records.probe_pack", "cli.commands.eval"),
    "bench, chat and infer: the engine": ("engine", "bench", "chat"),
    "serve: before the start": ("serve.launch",),
    "serve and watch": ("serve", "client", "cli.commands.watch"),
    "serve and watch: why a server died": ("known failures",),
    "Every command": ("",),
}
HEAD = """# Errors and findings

Written by `make docs` from the code. One heading per code, grouped by the command that says it. `eyas` prints
`error[code]` with what, where, why and what to do; a finding of `check` prints its severity in place of `error`.
"""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield ".".join(path.relative_to(SOURCE).with_suffix("").parts), ast.parse(path.read_text())


def error_classes(tree: ast.Module) -> dict[str, str]:
    """Code -> docstring of the error classes in a module."""
    found = {}
    for node in ast.walk(tree):
        for item in node.body if isinstance(node, ast.ClassDef) else ():
            targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
            is_code = any(isinstance(t, ast.Name) and t.id == "code" for t in targets)
            if is_code and isinstance(value := getattr(item, "value", None), ast.Constant):
                found[value.value] = ast.get_docstring(node) or ""
    return found


def makers() -> dict[str, int]:
    """Callable -> position of its code: `Diagnostic`, and every function that passes a parameter `code` on to one."""
    functions = [n for _, tree in modules() for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    taking = [f for f in functions if "code" in [a.arg for a in (*f.args.args, *f.args.kwonlyargs)]]
    found, before = {"Diagnostic": 0}, 0
    while len(found) > before:
        before = len(found)
        for function in taking:
            passed_on = (_code_of(n, found) for n in ast.walk(function) if isinstance(n, ast.Call))
            if any(isinstance(value, ast.Name) and value.id == "code" for value in passed_on):
                found[function.name] = [a.arg for a in function.args.args].index("code") if function.args.args else 0
    return found


def _code_of(call: ast.Call, makers: Mapping[str, int]) -> ast.expr | None:
    """What a call of a maker gives as code."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name not in makers:
        return None
    at = makers[name]
    return next((k.value for k in call.keywords if k.arg == "code"), call.args[at] if len(call.args) > at else None)


def made_codes(tree: ast.Module, makers: Mapping[str, int]) -> set[str]:
    """Literal codes of the diagnostics that a module makes."""
    values = [_code_of(n, makers) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}


def known_failures() -> dict[str, str]:
    """Code -> meaning of the rows of every table of known failures."""
    tables = [tomllib.loads(path.read_text())["failure"] for path in sorted(SOURCE.rglob("failures.toml"))]
    return {row["code"]: re.sub("{[a-z_]+}", "…", f"{row['what']}: {row['why']}") for table in tables for row in table}


def catalogue() -> dict[str, dict[str, str]]:
    """Heading -> code -> meaning."""
    groups: dict[str, dict[str, str]] = {"Every command": {}, **{name: {} for name in GROUPS}}
    for name, tree in modules():
        group = next(group for group, starts in GROUPS.items() if name.startswith(starts))
        groups[group] |= {code: said for code, said in error_classes(tree).items() if code != "tool-error"}
    for name, meanings in tomllib.loads(TABLE.read_text()).items():
        groups[name] |= meanings
    groups["serve and watch: why a server died"] |= known_failures()
    return groups


def page() -> str:
    parts = [HEAD]
    for group, meanings in catalogue().items():
        parts.append(f"# {group}\n")
        for code, meaning in sorted(meanings.items()):
            first = " ".join(meaning.split("\n\n")[0].split())
            parts.append(f"## {code}\n{first[:1].upper()}{first[1:].rstrip('.')}.\n")
    return "\n".join(parts)


def headings() -> list[str]:
    return re.findall(r"^## ([a-z0-9-]+)$", PAGE.read_text(), re.M)


if __name__ == "__main__":
    PAGE.write_text(page())
