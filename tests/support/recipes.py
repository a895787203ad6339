"""Recipes of launches with made-up models, for the tests of commands."""

from dataclasses import replace

from eyas.contract.engines.launching.recipe import DraftLaunch, Recipe, config_length
from eyas.contract.engines.launching.serve_options import Counting, ServeOptions
from eyas.contract.engines.registry import engine_named, parse_engine
from eyas.contract.files.checkpoint import Checkpoint


def headers(length: int | None = None, **config: object) -> Checkpoint:
    found = {"max_position_embeddings": length} if length else {}
    return Checkpoint(where="x", kind="folder", config=found | config, tensors={})


def recipe(
    engine: str,
    version: str,
    *extra: str,
    options: ServeOptions | None = None,
    target_headers: Checkpoint | None = None,
    draft_headers: Checkpoint | None = None,
    key_variable: str | None = None,
    **more: object,
) -> Recipe:
    """`more`: further facts of the draft's launch."""
    options, known = options or ServeOptions(), engine_named(engine.removesuffix("-cpu"))
    draft = DraftLaunch.of_headers(
        parse_engine(f"{engine}=={version}"), "D", draft_headers or headers(), Counting.of(options)
    )
    wished = {
        "target_length": config_length(target_headers),
        "served_length": options.context_length,
        "quantization": options.quantization,
        "attention_backend": options.draft_attention_backend,
    }
    return Recipe(
        python="python",
        target="T",
        draft=replace(draft, **wished | more),  # type: ignore[arg-type]
        options=options,
        known=known.launching.flags.known(version),
        target_headers=target_headers,
        draft_headers=draft_headers,
        extra=extra,
        key_variable=key_variable,
    )
