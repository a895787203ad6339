"""Foreign text reaches a terminal through `talk.printable` only: whatever prints, prints through it."""

import ast
from pathlib import Path

import eyas

SOURCE = Path(eyas.__file__).parent
# Prints its own words only, and why.
OWN_WORDS = {"__main__": "before anything can be imported", "cli.chat_loop": "the sign of the prompt"}
# Programs that eyas runs in another interpreter: their text goes to eyas or into an engine's log, not to a terminal.
NOT_A_TERMINAL = {"serve.launch.installed", "contract.engines.capture_site.eyas_spool", "extract.drain"}


def prints(tree: ast.AST) -> bool:
    """Whether the code prints, writes to a standard stream, or makes a console of rich."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "sys.stderr.write", "sys.stdout.write", "Console") or called.endswith(
                ".console.print"
            ):
                return True
    return False


def unguarded(sources: dict[str, str]) -> set[str]:
    """Modules that print without the door."""
    found = set()
    for name, source in sources.items():
        imports = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom) and n.module == "eyas.talk"]
        if prints(ast.parse(source)) and not any(a.name == "printable" for n in imports for a in n.names):
            found.add(name)
    return found


def test_every_module_that_prints_does_so_through_the_door():
    sources = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p.read_text() for p in SOURCE.rglob("*.py")}
    sources["talk"] = ""  # the door itself
    assert unguarded(sources) - OWN_WORDS.keys() - NOT_A_TERMINAL == {"cli.server_view"} & sources.keys()


def test_this_proof_can_fail():
    assert unguarded({"a": "print(name)", "b": "import eyas"}) == {"a"}
