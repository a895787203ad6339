"""Which engine answers at a URL, by `/v1/models`' owner, `/version` and `/server_info`."""

from typing import TYPE_CHECKING

from eyas.client.address import ServerAddress, ServerKind, get_json, open_http
from eyas.errors import EyasError

if TYPE_CHECKING:
    import httpx


def identify(url: str, api_key: str | None = None) -> ServerAddress:
    """The server at `url` with its kind, version and model; kind "openai" where it is none that eyas knows.

    Raises:
        ServerUnreachable: nothing answers there.
    """
    bare = ServerAddress(url=url.rstrip("/"), api_key=api_key)
    with open_http(bare, timeout_s=10.0) as http:
        models = get_json(http, bare, "/v1/models") or {}
        rows = models.get("data")
        first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
        told = _told(http, bare, "/version").get("version")
        info = _told(http, bare, "/server_info")
    version = told or info.get("version")
    kind: ServerKind = "openai"
    owner = first.get("owned_by")
    if owner == "sglang" or "internal_states" in info:
        kind = "sglang"
    elif owner == "vllm" or told:
        kind = "vllm"
    model = first.get("id")
    return ServerAddress(
        url=bare.url,
        kind=kind,
        version=version if isinstance(version, str) else None,
        model=model if isinstance(model, str) else None,
        api_key=api_key,
    )


def _told(http: "httpx.Client", address: ServerAddress, route: str) -> dict[str, object]:
    try:
        return dict(get_json(http, address, route) or {})
    except EyasError:
        return {}
