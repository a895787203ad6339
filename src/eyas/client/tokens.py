"""A server's own tokenizer and chat template over HTTP: `/tokenize` and `/detokenize`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eyas.client.address import UNREADABLE, ServerAddress, ServerRefused, post_json
from eyas.client.server_api import TokenRoutes

if TYPE_CHECKING:
    import httpx

_END = 1 << 31  # no vocabulary gets there


def ids_of_text(http: "httpx.Client", address: ServerAddress, text: str) -> list[int]:
    """Token ids of a text as it is: nothing is put before or after it.

    Raises:
        ServerUnreachable, ServerRefused: also where the answer holds no ids.
    """
    if not text:
        return []
    return _ids(http, address, {"prompt": text, "add_special_tokens": False})


def ids_of_messages(
    http: "httpx.Client",
    address: ServerAddress,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation under the server's chat template, ready for the answer.

    Args:
        template_options: further variables for the template.

    Raises:
        ServerUnreachable, ServerRefused: also where the answer holds no ids.
    """
    body: dict[str, Any] = {"messages": [dict(message) for message in messages]}
    body |= {"tools": list(tools)} if tools else {}
    body |= {"chat_template_kwargs": dict(template_options)} if template_options else {}
    return _ids(http, address, body)


def text_of_ids(http: "httpx.Client", address: ServerAddress, ids: Sequence[int]) -> str:
    """The text of token ids, special tokens in it.

    Raises:
        ServerUnreachable, ServerRefused: also where the answer holds no text.
    """
    if not ids:
        return ""
    routes = _routes(address)
    answer = _post(http, address, "/detokenize", {"tokens": list(ids), **routes.detokenize_fields})
    text = answer.get(routes.text_field)
    if not isinstance(text, str):
        raise _unreadable(address, "/detokenize", f"no text under `{routes.text_field}`")
    return text


def _routes(address: ServerAddress) -> TokenRoutes:
    routes = address.api.tokens
    assert routes is not None, "asked of a server that has them"
    return routes


def _ids(http: "httpx.Client", address: ServerAddress, body: Mapping[str, Any]) -> list[int]:
    ids = _post(http, address, "/tokenize", body).get("tokens")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < _END for i in ids):
        raise _unreadable(address, "/tokenize", "no token ids under `tokens`")
    return ids


def _post(http: "httpx.Client", address: ServerAddress, route: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        answer = post_json(http, address, route, {"model": address.model or "default", **body})
    except UNREADABLE as error:
        raise _unreadable(address, route, f"{type(error).__name__}: {error}") from error
    if not isinstance(answer, dict):
        raise _unreadable(address, route, f"a JSON {type(answer).__name__}, not an object")
    return answer


def _unreadable(address: ServerAddress, route: str, why: str) -> ServerRefused:
    return ServerRefused(
        f"the answer of {route} cannot be read",
        f"{address.url}{route}",
        why[:400],
        f"check that this is {address.api.name}, and of a version that eyas knows",
    )
