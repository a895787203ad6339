"""The servers at several URLs, as one: the same model, and long enough for the rows."""

from eyas.client.address import ServerAddress, ServerRefused, ServerUnreachable
from eyas.client.balanced import Servers
from eyas.contract.engines.server_at import server_at
from eyas.data.prepare_config import ConfigInvalid, WritingConfig
from eyas.errors import ExitCode, EyasError
from eyas.talk import Talk


class ServersDiffer(EyasError):
    """Two servers do not serve the same model, or one serves another than before."""

    code = "servers-differ"
    exit_code = ExitCode.ENVIRONMENT


def open_servers(config: WritingConfig, api_key: str | None, talk: Talk, *, max_length: int) -> Servers:
    """The servers at `config.url`; those that do not answer are taken for servers like the others, and awaited.

    Raises:
        ServerUnreachable, ServerRefused: none of them answers.
        ServersDiffer: they serve models of different names.
        ConfigInvalid: a row of `max_length` tokens does not fit one of them.
    """
    found, faults = list[ServerAddress](), list[ServerUnreachable | ServerRefused]()
    urls = list(dict.fromkeys(url.rstrip("/") for url in config.url))
    for url in urls:
        try:
            found.append(server_at(url, api_key))
        except (ServerUnreachable, ServerRefused) as error:
            faults.append(error)
    if not found:
        raise faults[0]
    first = found[0]
    for other in found:
        _require_like(other, first)
        if other.max_length is not None and other.max_length < max_length:
            raise ConfigInvalid(
                f"--max-length {max_length} is more than {other.url} takes",
                other.url,
                f"it serves texts of up to {other.max_length} tokens, prompt and answer together",
                f"give --max-length {other.max_length}, or serve the target with a longer context",
            )
    for fault in faults:
        talk.note(f"{fault.where}: {fault.why}; the run starts without it, and asks it again meanwhile")
    for server in found:
        talk.line(f"{server.url}: {server.api.name} {server.version or '(version unknown)'}, model {server.model}")
    known = {server.url for server in found}
    absent = [_like(url, first) for url in urls if url not in known]

    def is_itself(address: ServerAddress) -> None:
        _require_like(server_at(address.url, api_key), first)

    talk.line(f"{config.concurrency} requests at a time for each server (--concurrency)")
    return Servers(
        addresses=(*found, *absent),
        away=frozenset(server.url for server in absent),
        is_itself=is_itself,
        concurrency=config.concurrency,
        timeout_s=config.answer_timeout,
    )


def _like(url: str, other: ServerAddress) -> ServerAddress:
    return ServerAddress(url=url, api=other.api, version=other.version, model=other.model, api_key=other.api_key)


def _require_like(server: ServerAddress, first: ServerAddress) -> None:
    if (server.api.name, server.model) == (first.api.name, first.model):
        return
    raise ServersDiffer(
        "the servers do not serve the same model",
        server.url,
        f"{server.url} is {server.api.name} with the model {server.model}, {first.url} is {first.api.name} with"
        f" {first.model}",
        "give servers of one target, with the same engine and --served-model-name",
    )
