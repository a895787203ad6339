"""Python runs this at start in every process of a server that `eyas serve --capture` starts. Runs the one it hides."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _run_hidden() -> None:
    """Run the sitecustomize that would have been found without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_run_hidden()
if os.environ.get("EYAS_CAPTURE"):
    import eyas_sglang_capture

    eyas_sglang_capture.install()
