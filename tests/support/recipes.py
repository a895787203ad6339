"""Recipes of launches with made-up models, for the tests of commands."""

from eyas.contract.files.checkpoint import Checkpoint
from eyas.serve.launch.engine_command import Recipe
from eyas.serve.launch.flag_table import table_flags
from eyas.serve.launch.serve_options import ServeOptions


def headers(length: int | None = None, **config: object) -> Checkpoint:
    found = {"max_position_embeddings": length} if length else {}
    return Checkpoint(where="x", kind="folder", config=found | config, tensors={})


def recipe(engine: str, version: str, *extra: str, options: ServeOptions | None = None, **more: object) -> Recipe:
    return Recipe(
        python="python",
        target="T",
        draft="D",
        options=options or ServeOptions(),
        known=table_flags(engine, version),
        extra=extra,
        **more,  # type: ignore[arg-type]
    )
