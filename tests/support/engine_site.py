"""Modules that run inside an engine, imported as the engine does: by file, without eyas."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load(folder: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
