"""Servers as the target that writes: prompts go as token ids, and the ids that come back are those of the answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from eyas.client.address import ServerAddress, ServerRefused
from eyas.client.balanced import Refused, Servers
from eyas.client.generate import complete
from eyas.client.server_api import GenerationOptions, ServerAnswer
from eyas.contract.spec.target_spec import read_target
from eyas.data.text.target_text import TargetText, answer_end
from eyas.data.text.tokenise import encode_many
from eyas.engine.batches.completions_file import complete_to_file
from eyas.engine.batches.generator import Completion, Request
from eyas.errors import ExitCode, EyasError
from eyas.records import fingerprint
from eyas.talk import Talk, counted, printable

if TYPE_CHECKING:
    import httpx

_ENDS = {"stop": "stop", "length": "length"}


class ServerReadsOtherwise(EyasError):
    """A server counts other prompt tokens than it was sent."""

    code = "server-reads-otherwise"
    exit_code = ExitCode.ENVIRONMENT


def servers_fingerprint(folder: Path, servers: Servers) -> str:
    """Fingerprint of what decides the texts beside the requests: the target's config, and the model's name there.

    Weights are not looked at: they need not be here. An engine's version and flags are not in it.
    """
    first = servers.addresses[0]
    return fingerprint.of_json([read_target(folder).fingerprint, first.api.name, first.model])


class ServerWriter:
    """Servers as `Writes`.

    Args:
        folder: of the target.
        servers: of it.
        text: its tokenizer.
        work: folder for the phases' files, kept for a rerun.
    """

    def __init__(self, folder: Path, servers: Servers, text: TargetText, work: Path, talk: Talk) -> None:
        self._servers, self._text, self._work, self._talk = servers, text, work, talk
        self._print, self._vocab_size = servers_fingerprint(folder, servers), read_target(folder).vocab_size
        self._ends = text.end_ids | answer_end(text)
        self._lock, self._seen = Lock(), dict.fromkeys(("text", "counted", "differ", "endless"), 0)

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]:
        """Answer all requests; what an earlier run has answered is read from its file.

        Raises:
            ServerReadsOtherwise: a server puts tokens before the prompt, or takes some away.
            What `Servers.ask_all` and `complete_to_file` raise.
        """
        if not requests:
            return {}
        self._seen = dict.fromkeys(self._seen, 0)
        path = self._work / f"{phase}.completions"
        found = complete_to_file(path, requests, self._answers, target=self._print, talk=self._talk)
        self._tell()
        return found

    def _answers(self, requests: Sequence[Request]) -> Iterator[Completion]:
        num_tokens = num_refused = 0
        with self._talk.progress("answers", len(requests), "prompts") as bar:
            for request, answer in self._servers.ask_all(requests, self._ask, self._talk):
                if isinstance(answer, Refused):
                    if num_refused == 0:
                        self._talk.note(
                            f"request {request.id} is left out, the server refuses it: {printable(answer.why)}"
                        )
                    num_refused += 1
                    answer = Completion(id=request.id, ids=(), finish="refused", text=_whole(answer.why))
                num_tokens += len(answer.ids)
                bar.say(f"{num_tokens} tokens")
                bar.advance()
                yield answer

    def _ask(self, http: "httpx.Client", address: ServerAddress, request: Request) -> Completion:
        s = request.sampling
        options = GenerationOptions(
            max_new_tokens=request.max_new_tokens,
            temperature=s.temperature,
            top_p=s.top_p,
            seed=s.seed,
            stop_ids=sorted(request.stop_ids),
            stop_strings=request.stop_strings,
            is_exact=True,
        )
        answer = complete(http, address, list(request.prompt_ids), options)
        told = answer.num_prompt_tokens
        if told is not None and told != len(request.prompt_ids):
            raise ServerReadsOtherwise(
                f"{address.url} read {told} tokens where {len(request.prompt_ids)} were sent",
                address.url,
                "the answers would be to other prompts than those of the rows",
                "give a server that takes token ids as they are (SGLang's /generate, vLLM's /v1/completions)",
            )
        finish = _ENDS.get(answer.finish_reason or "")
        if finish is None:
            raise _no_answer(address, f"it ended with {str(answer.finish_reason)[:60]!r}")
        ids = self._of_text(answer) if answer.output_ids is None else self._checked(answer, request, address)
        if finish == "stop":
            ids = self._with_end(ids, answer, request)
        if not ids:
            raise _no_answer(address, "it holds no token")
        return Completion(
            id=request.id, ids=ids, finish="stop" if finish == "stop" else "length", text=_whole(answer.text)
        )

    def _checked(self, answer: ServerAnswer, request: Request, address: ServerAddress) -> tuple[int, ...]:
        """The server's ids, if they can be what it wrote."""
        ids, told = answer.output_ids or (), answer.num_output_tokens
        if any(not 0 <= i < (self._vocab_size or 1 << 31) for i in ids):
            raise _no_answer(address, f"it holds ids outside the target's vocabulary of {self._vocab_size}")
        if len(ids) > request.max_new_tokens:
            raise _no_answer(address, f"it holds {len(ids)} ids, and {request.max_new_tokens} were asked for")
        if told is not None and told != len(ids):
            raise _no_answer(address, f"it holds {len(ids)} ids, and says that it wrote {told}")
        return ids

    def _of_text(self, answer: ServerAnswer) -> tuple[int, ...]:
        """Ids of an answer that came as text: the target may have written the same text in other tokens."""
        ids = tuple(encode_many(self._text.tokenizer, [answer.text])[0])
        told, num_end = answer.num_output_tokens, answer.finish_reason == "stop"
        with self._lock:
            self._seen["text"] += 1
            self._seen["counted"] += bool(told)
            self._seen["differ"] += bool(told) and told not in (len(ids), len(ids) + num_end)
        return ids

    def _with_end(self, ids: tuple[int, ...], answer: ServerAnswer, request: Request) -> tuple[int, ...]:
        """`ids` with the token that ended them: what learns from them takes the last one for it."""
        if request.stop_strings or (ids and ids[-1] in self._ends | request.stop_ids):
            return ids
        if isinstance(answer.stopped_by, int) and ids[-1:] == (answer.stopped_by,):
            return ids
        end = answer.stopped_by if isinstance(answer.stopped_by, int) else min(self._ends_of_template(), default=None)
        with self._lock:
            self._seen["endless"] += 1
        return ids if end is None else (*ids, end)

    def _ends_of_template(self) -> Iterable[int]:
        return answer_end(self._text) or self._text.end_ids

    def _tell(self) -> None:
        """Say what was guessed."""
        seen = self._seen
        if seen["text"]:
            known = f"{seen['differ']} of {seen['counted']} have another number of tokens than the server counted"
            self._talk.note(
                f"{counted(seen['text'], 'answer')} came as text and were tokenised here: "
                + (known if seen["counted"] else "how many of them the target wrote in other tokens is unknown")
                + "; SGLang and vLLM give the very ids"
            )
        if seen["endless"]:
            self._talk.note(
                f"{counted(seen['endless'], 'answer')} came without the token that ended them: the one that the chat"
                " template puts after an answer was appended"
            )


def _whole(text: str) -> str:
    """Without half surrogates: JSON can spell them, files cannot hold them."""
    return text.encode(errors="replace").decode()


def _no_answer(address: ServerAddress, why: str) -> ServerRefused:
    return ServerRefused("the server's answer cannot be used", address.url, why, "see the server's log")
