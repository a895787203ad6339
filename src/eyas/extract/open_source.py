"""Which source `--from` means: transformers in this process, or servers by the scheme of their URL."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from eyas.extract.source import ExtractSource, SourceUnsupported, Wanted

if TYPE_CHECKING:
    from eyas.models.placement import Placement

TRANSFORMERS = "transformers"


def require_source(name: str) -> None:
    """Raise `SourceUnsupported` where `name` cannot name a source, before anything is imported or loaded."""
    if name != TRANSFORMERS and "://" not in name:
        raise SourceUnsupported(
            f"there is no source {name!r}",
            f"--from {name}",
            "it is neither transformers nor the URL of a server",
            "give --from transformers, --from sglang://HOST:PORT or --from vllm://HOST:PORT",
        )


def open_source(
    name: str,
    wanted: Wanted,
    placement: "Placement",
    say: Callable[[str], None],
    *,
    most_tokens: int | None = None,
    gpus: int = 1,
) -> ExtractSource:
    """The source that `name` names; `probe` it before use.

    Args:
        placement: of a target in this process.
        say: told what happens to a server meanwhile.
        most_tokens, gpus: of a target in this process.

    Raises:
        SourceUnsupported, EngineUnknown, ServerUnreachable: it does not exist, or is not what it must be.
    """
    require_source(name)
    if name == TRANSFORMERS:
        from eyas.extract.transformers_source import TransformersSource

        return TransformersSource(wanted, placement, most_tokens, gpus)
    from eyas.extract.server_source import ServerSource

    return ServerSource.open(name, wanted, say=say)
