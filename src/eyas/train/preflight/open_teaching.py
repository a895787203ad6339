"""What a run learns from, opened: the target in this process, or its frozen parts and states from elsewhere."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

from eyas.client.address import ServerUnreachable
from eyas.contract.engines.registry import all_engines
from eyas.contract.engines.server_at import server_at
from eyas.data.text.tokenise import TokenRow
from eyas.extract.proof import Prover, mismatch
from eyas.extract.server_source import ServerSource
from eyas.extract.source import AskedRow, ExtractSource, SourceFailed, SourceUnsupported, Wanted
from eyas.models.placement import Placement
from eyas.models.states import StateSource
from eyas.models.target import FrozenParts
from eyas.replay.probe_pack import PackStates
from eyas.replay.states import KeptStates
from eyas.talk import Talk, counted
from eyas.train.config import TrainConfig
from eyas.train.feed.fed_states import FedStates, Kept
from eyas.train.feed.fetchers import StoreFetcher, StreamFetcher
from eyas.train.feed.read_ahead import Fetcher
from eyas.train.optimise.teaching import Teaching
from eyas.train.preflight.train_plan import TrainPlan
from eyas.train.request import TrainRequest

_PROOF_ROWS, _MOST_PROOF_TOKENS = 4, 2048
_PATIENCE_S = 10.0  # then a silent server's rows go to the others


def open_teaching(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, placement: Placement, talk: Talk
) -> Teaching:
    """Load the target, or of it only what a run from given states needs.

    Raises:
        What `Target.load`, `FrozenParts.load` and `ServerSource.open` raise.
        ServerUnreachable: no server is there; told before anything is loaded.
        SourceUnsupported: a server does not give the states that the draft reads.
        StatesMismatch: what it gives are not the target's.
    """
    dtype = str(placement.dtype).removeprefix("torch.")
    if not request.is_given:
        talk.line(f"loading the target {request.target.name} ({dtype}, {placement.device})")
        return Teaching.load(request.target, placement, config)
    _require_one_there(request.streams)
    talk.line(f"loading embedding, final norm and head of {request.target.name} ({dtype}, {placement.device})")
    parts = FrozenParts.load(request.target, placement)
    return (
        _from_store(request, plan, parts, talk)
        if plan.stored is not None
        else _from_streams(request, plan, parts, talk)
    )


def _from_store(request: TrainRequest, plan: TrainPlan, parts: FrozenParts, talk: Talk) -> Teaching:
    assert plan.stored is not None, "asked only with a store"
    reader, about = plan.stored.reader, plan.stored.reader.about
    kept = Kept(dtype=about.dtype, boundaries=about.boundaries, is_normed=about.last == "post-norm")
    talk.line(f"states: {reader.folder}, {about.dtype}, last {about.last}, of {about.source}")
    feed = _fed([StoreFetcher(reader, plan.stored.places)], kept, plan, parts, request, talk)
    held_out: StateSource | None = None
    if plan.held_out is not None and plan.held_out.pack is None:
        places = [place for place in plan.stored.places_of(plan.held_out.rows) if place is not None]
        assert len(places) == len(plan.held_out.rows), "the plan keeps held-out rows that are in the store"
        held_out = _held_out(StoreFetcher(reader, places), kept, plan, parts, talk)
    return Teaching(parts=parts, states=feed, held_out=held_out or _of_pack(plan, parts), feed=feed)


def _from_streams(request: TrainRequest, plan: TrainPlan, parts: FrozenParts, talk: Talk) -> Teaching:
    boundaries = tuple(sorted(plan.spec.aux_boundaries or ()))
    wanted = Wanted(folder=request.target, target=plan.target, boundaries=boundaries, dtype="bfloat16")
    prove = partial(_prove, wanted=wanted, plan=plan, parts=parts, talk=talk)
    fetchers = [StreamFetcher(name, partial(_opened, name, wanted, prove, talk), plan.rows) for name in request.streams]
    kind = None
    for fetcher in fetchers:
        fetcher.kind = kind
        try:
            fetcher.require_ready()
            kind = fetcher.kind
        except SourceFailed as error:
            if kind is None and fetcher is fetchers[-1]:
                raise
            talk.note(f"{fetcher.name} does not answer ({error.why}): it is asked again while the draft trains")
    fetchers.sort(key=lambda fetcher: fetcher.source is None)
    assert kind is not None, "one of them answers"
    for fetcher in fetchers:
        fetcher.kind = kind
    kept = Kept(dtype=kind[0], boundaries=boundaries, is_normed=kind[1] == "post-norm")
    feed = _fed(fetchers, kept, plan, parts, request, talk)
    held_out: StateSource | None = None
    if plan.held_out is not None and plan.held_out.pack is None:
        texts = [
            TokenRow(ids := (*row.prompt_ids, *row.response_ids), (True,) * len(ids)) for row in plan.held_out.rows
        ]
        held_out = _held_out(fetchers[0].over(texts), kept, plan, parts, talk)
    return Teaching(parts=parts, states=feed, held_out=held_out or _of_pack(plan, parts), feed=feed)


def _require_one_there(streams: Sequence[str]) -> None:
    """Of several servers one is enough to begin with; raises what the last one's silence is."""
    for name in streams:
        scheme = "https" if name.startswith("https:") else "http"
        try:
            server_at(urlsplit(name)._replace(scheme=scheme, query="").geturl())
            return
        except ServerUnreachable:
            if name == streams[-1]:
                raise


def _opened(name: str, wanted: Wanted, prove: Callable[[str, ExtractSource], None], talk: Talk) -> ExtractSource:
    """A source that can give what is wanted, and has proven it."""
    source = _open_server(name, wanted, talk)
    notes = source.probe()
    talk.line(f"states: {name} ({source.name}), {source.dtype}, last {source.last}; {'; '.join(notes)}")
    prove(name, source)
    return source


def _prove(
    name: str, source: ExtractSource, *, wanted: Wanted, plan: TrainPlan, parts: FrozenParts, talk: Talk
) -> None:
    """Some rows alone, together and in parts, and the tokens that the server itself writes after them."""
    by_length = sorted({row.token_ids[:_MOST_PROOF_TOKENS] for row in itertools.islice(plan.rows, 1000)}, key=len)
    chosen = by_length[:: max(1, len(by_length) // _PROOF_ROWS)][-_PROOF_ROWS:]
    proof = Prover(source, wanted, parts, None).prove([AskedRow(token_ids=ids) for ids in chosen])
    if proof.faults:
        raise mismatch(name, proof.faults, f"{counted(proof.num_rows, 'row')}, before it is learned from")
    talk.line(
        f"{name} is proven on {counted(proof.num_rows, 'row')}: alone, together and in parts they have the same"
        f" states; {proof.num_greedy_right} of {proof.num_greedy} times its own next token is the head's"
    )


def _fed(
    fetchers: Sequence[Fetcher], kept: Kept, plan: TrainPlan, parts: FrozenParts, request: TrainRequest, talk: Talk
) -> FedStates:
    boundaries, most_bytes = plan.spec.aux_boundaries or (), request.ahead_bytes(parts.device.type)
    return FedStates(fetchers, kept, boundaries, parts, plan.rows.length, most_bytes, talk)


def _held_out(fetcher: Fetcher, kept: Kept, plan: TrainPlan, parts: FrozenParts, talk: Talk) -> StateSource:
    assert plan.held_out is not None, "asked only with held-out rows"
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in plan.held_out.rows]
    # Kept for the last replay too: by then a server may be gone.
    return KeptStates(FedStates([fetcher], kept, plan.spec.aux_boundaries or (), parts, lengths.__getitem__, 0, talk))


def _of_pack(plan: TrainPlan, parts: FrozenParts) -> StateSource | None:
    pack = plan.held_out and plan.held_out.pack
    return PackStates(pack, parts.device) if pack else None


def _open_server(name: str, wanted: Wanted, talk: Talk) -> ExtractSource:
    """The source at an engine's URL; http:// is asked which engine it is."""
    parts = urlsplit(name)
    if parts.scheme in ("http", "https"):
        api = server_at(name).api
        engine = next((engine for engine in all_engines() if engine.serving is api), None)
        if engine is None:
            raise SourceUnsupported(
                f"{name} gives no states",
                name,
                "it is not an engine that eyas knows",
                "start one with `eyas serve --engine sglang --target T --capture STORE`",
            )
        name = parts._replace(scheme=engine.name).geturl()
    source = ServerSource.open(name, wanted, say=talk.line)
    source.patience_s = _PATIENCE_S
    return source
