"""The view of a running server that `eyas serve` and `eyas watch` share."""

import sys

from eyas.cli.output import print_json
from eyas.serve.supervise.views import JsonView, PlainView, RichView, View
from eyas.talk import Talk


def server_view(talk: Talk, *, json: bool) -> View:
    """JSON events for programs, a live picture on a terminal, plain lines elsewhere."""
    if json:
        return JsonView(print_json)
    if sys.stderr.isatty():
        from rich.console import Console

        return RichView(Console(stderr=True))
    return PlainView(talk.line)
