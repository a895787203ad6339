"""Which engine answers at a URL, by `/v1/models`' owner and the routes that engines have of their own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eyas.client.address import ServerAddress, get_json, open_http
from eyas.client.server_api import OPENAI
from eyas.contract.engines.registry import engine_of_owner
from eyas.errors import EyasError

if TYPE_CHECKING:
    import httpx

_SILENCE_S = 10.0


def server_at(url: str, api_key: str | None = None) -> ServerAddress:
    """The server at `url` with its API, version and model; the plain OpenAI API where no known engine answers.

    Raises:
        ServerUnreachable: nothing answers there.
    """
    bare = ServerAddress(url=url.rstrip("/"), api_key=api_key)
    with open_http(bare, timeout_s=_SILENCE_S) as http:
        rows = (get_json(http, bare, "/v1/models") or {}).get("data")
        told = _told(http, bare, "/version")
        info = _told(http, bare, "/server_info")
    first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    engine = engine_of_owner(first.get("owned_by"))
    version, model = told.get("version") or info.get("version"), first.get("id")
    longest = first.get("max_model_len")
    return ServerAddress(
        url=bare.url,
        api=engine.serving if engine else OPENAI,
        version=version if isinstance(version, str) else None,
        model=model if isinstance(model, str) else None,
        max_length=longest if type(longest) is int and longest > 0 else None,
        api_key=api_key,
    )


def _told(http: "httpx.Client", address: ServerAddress, route: str) -> Mapping[str, Any]:
    try:
        return get_json(http, address, route) or {}
    except EyasError:
        return {}
