"""Making, writing and reading probe packs, and replaying from one. The format is described in `records.probe_pack`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eyas.models.states import RowLayout, States
from eyas.models.target import Target, require_finite
from eyas.records import fingerprint
from eyas.records.atomic import atomic_file
from eyas.records.eval_rows import EvalRow
from eyas.records.json_lines import open_regular
from eyas.records.probe_pack import ProbeAbout, ProbeLacksBoundary, read_about, unreadable
from eyas.talk import Talk


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePack:
    """A pack in memory.

    Attributes:
        about: identity and names.
        rows: the texts.
        starts: R + 1 offsets into the states.
        states: boundary -> [N, Ht].
        last: [N, Ht] after the final norm.
        embedding_ids, embedding_rows: the target's embedding at the ids that occur.
    """

    about: ProbeAbout
    rows: Sequence[EvalRow]
    starts: Sequence[int]
    states: Mapping[int, Tensor]
    last: Tensor
    embedding_ids: Tensor
    embedding_rows: Tensor

    @property
    def num_bytes(self) -> int:
        """Of all tensors with states."""
        tensors = [*self.states.values(), self.last, self.embedding_rows]
        return sum(tensor.nbytes for tensor in tensors)

    def embedding(self, dtype: torch.dtype) -> Tensor:
        """[V, Ht], zero where the pack has no row: only ids of its own texts may be looked up.

        The zeros cost no memory: pages of a fresh numpy array are not touched until they are written.
        """
        shape = (self.about.vocab_size, self.embedding_rows.shape[1])
        as_bits = np.zeros(shape, dtype=np.float32 if dtype == torch.float32 else np.int16)
        whole = torch.from_numpy(as_bits).view(dtype)
        whole[self.embedding_ids.long()] = self.embedding_rows.to(dtype)
        return whole


def make_probe(
    target: Target,
    identity: Mapping[str, Any],
    rows: Sequence[EvalRow],
    boundaries: Sequence[int],
    talk: Talk,
    *,
    with_neighbours: bool = False,
) -> ProbePack:
    """Run the target once over each row and keep its states.

    Args:
        target: the model.
        identity: what names it.
        rows: recorded continuations.
        boundaries: those the draft reads, in `fc` order.
        with_neighbours: also keep the boundaries one below and one above each.
    """
    kept = kept_boundaries(boundaries, target.num_layers, with_neighbours=with_neighbours)
    states = list[States]()
    texts = [[*row.prompt_ids, *row.response_ids] for row in rows]
    with talk.progress("probe", sum(map(len, texts)), "tokens") as bar:
        for text in texts:
            found = target.forward(torch.tensor([text], device=target.device), kept)
            require_finite(found.last[0], target.name)
            states.append(States(aux=found.aux[0].cpu(), last=found.last[0].cpu()))
            bar.advance(len(text))
    return assemble_probe(states, kept, rows, boundaries, identity, target.parts.embedding, target.num_layers)


def kept_boundaries(boundaries: Sequence[int], num_layers: int, *, with_neighbours: bool) -> list[int]:
    """The boundaries that a pack holds, ascending."""
    kept = {n for b in boundaries for n in ((b - 1, b, b + 1) if with_neighbours else (b,))}
    return sorted(n for n in kept if 0 <= n <= num_layers)


def assemble_probe(
    states: Sequence[States],
    kept: Sequence[int],
    rows: Sequence[EvalRow],
    boundaries: Sequence[int],
    identity: Mapping[str, Any],
    embedding: Tensor,
    num_layers: int,
) -> ProbePack:
    """A pack of states that were computed, by whatever.

    Args:
        states: of each row, aux at the boundaries `kept`, on the CPU.
        boundaries: those the draft reads, in `fc` order.
        embedding: the target's, [V, Ht].
        num_layers: of the target.
    """
    texts = [[*row.prompt_ids, *row.response_ids] for row in rows]
    joined = torch.cat([found.aux for found in states]).chunk(len(kept), -1)
    ids = torch.tensor(sorted({token for text in texts for token in text}), dtype=torch.int32)
    about = ProbeAbout(
        target=dict(identity),
        num_layers=num_layers,
        vocab_size=len(embedding),
        boundaries=list(boundaries),
        row_ids=[row.id for row in rows],
        row_sets=[row.set for row in rows],
        dtype=str(joined[0].dtype).removeprefix("torch."),
        fingerprint=fingerprint.of_json(texts),
    )
    return ProbePack(
        about=about,
        rows=rows,
        starts=_starts(texts),
        states={n: state.contiguous() for n, state in zip(kept, joined, strict=True)},
        last=torch.cat([found.last for found in states]),
        embedding_ids=ids,
        embedding_rows=embedding[ids.long().to(embedding.device)].cpu(),
    )


def write_probe(pack: ProbePack, path: Path) -> None:
    """Write the pack, atomically."""
    tensors = {
        "token_ids": torch.tensor([t for r in pack.rows for t in (*r.prompt_ids, *r.response_ids)], dtype=torch.int32),
        "row_starts": torch.tensor(pack.starts),
        "num_prompt": torch.tensor([len(row.prompt_ids) for row in pack.rows], dtype=torch.int32),
        "last": pack.last,
        "embedding_ids": pack.embedding_ids,
        "embedding_rows": pack.embedding_rows,
        **{f"state.{n}": state for n, state in pack.states.items()},
    }
    with atomic_file(path) as file:
        file.write(save(tensors, metadata=pack.about.as_metadata()))


def read_probe(path: Path) -> ProbePack:
    """The pack in the file `path`.

    Raises:
        ProbeUnreadable: not a safetensors file, of another schema, or its parts do not fit each other.
    """
    where = str(path)
    try:
        open_regular(path).close()  # a pipe would be waited for
        with safe_open(path, "pt") as file:
            about = read_about(file.metadata() or {}, where)
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
        if problem := about_problem(about) or tensor_problem(about, tensors):
            raise ValueError(problem)
        ids, starts = tensors["token_ids"].tolist(), tensors["row_starts"].tolist()
        rows = [
            EvalRow(id=name, set=set_name, prompt_ids=tuple(ids[a : a + num]), response_ids=tuple(ids[a + num : b]))
            for name, set_name, num, a, b in zip(
                about.row_ids, about.row_sets, tensors["num_prompt"].tolist(), starts[:-1], starts[1:], strict=True
            )
        ]
        states = {int(name[6:]): tensor for name, tensor in tensors.items() if name.startswith("state.")}
        pack = ProbePack(
            about=about,
            rows=rows,
            starts=starts,
            states=states,
            last=tensors["last"],
            embedding_ids=tensors["embedding_ids"],
            embedding_rows=tensors["embedding_rows"],
        )
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise unreadable(where, f"{type(error).__name__}: {error}") from error
    return pack


class PackStates:
    """The states of a pack's own rows, on a device."""

    def __init__(self, pack: ProbePack, device: torch.device) -> None:
        self._pack, self._device = pack, device

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self._pack.about.vocab_size

    @property
    def device(self) -> torch.device:
        """Where `aux` puts the states."""
        return self._device

    @property
    def pads(self) -> bool:
        """See `StateSource`."""
        return False

    def __call__(self, rows: RowLayout, boundaries: Sequence[int]) -> States:
        """See `StateSource`.

        Raises:
            ProbeLacksBoundary: the pack does not hold one of them.
        """
        states, starts = self._pack.states, self._pack.starts
        if missing := [b for b in boundaries if b not in states]:
            raise ProbeLacksBoundary(
                f"the pack has no states at boundary {missing[0]}",
                f"boundaries {sorted(states)}, wanted {list(boundaries)}",
                "the draft reads other target states than the draft that the pack was made for",
                "make one with this draft: `eyas eval DRAFT --target T --write-probe PACK --probe-neighbours`",
            )
        places = [starts[n] + at for n, num in zip(rows.numbers, rows.lengths, strict=False) for at in range(num)]
        index = torch.tensor(places + [0] * (rows.length - len(places)))
        aux = torch.cat([states[boundary][index] for boundary in boundaries], -1)
        return States(aux=aux.to(self._device), last=self._pack.last[index].to(self._device))


def _starts(texts: Sequence[Sequence[int]]) -> list[int]:
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + len(text))
    return starts


_MAX_VOCAB = 1 << 24


def about_problem(about: ProbeAbout) -> str | None:
    """The first field of the pack's description that breaks the format; None if all are valid."""
    target = about.target
    checks = {
        "target": isinstance(target, Mapping) and _is_count(target.get("hidden_size"), 1 << 20),
        "target.architectures": isinstance(target, Mapping) and _is_list(target.get("architectures"), str),
        "num_layers": _is_count(about.num_layers, 1 << 16),
        "vocab_size": _is_count(about.vocab_size, _MAX_VOCAB),
        "boundaries": _is_list(about.boundaries, int),
        "row_ids": _is_list(about.row_ids, str),
        "row_sets": _is_list(about.row_sets, str),
        "dtype": isinstance(about.dtype, str),
        "fingerprint": isinstance(about.fingerprint, str),
    }
    wrong = [name for name, is_right in checks.items() if not is_right]
    if wrong:
        return f"{wrong[0]} is missing or of another type or size"
    for key in ("model_type", "text_model_type"):
        if not isinstance(target.get(key, 0), str | None):
            return f"target.{key} is missing or not a name"
    return None


def tensor_problem(about: ProbeAbout, tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor that does not fit the description or the others; None when all do."""
    for name in ("token_ids", "row_starts", "num_prompt", "embedding_ids"):
        if tensors[name].ndim != 1 or tensors[name].dtype not in (torch.int32, torch.int64):
            return f"{name} is {tensors[name].dtype} {list(tensors[name].shape)}, wanted a list of integers"
    return _rows_problem(about, tensors) or _states_problem(about, tensors)


def _rows_problem(about: ProbeAbout, tensors: Mapping[str, Tensor]) -> str | None:
    ids, starts, num_prompt = tensors["token_ids"], tensors["row_starts"], tensors["num_prompt"]
    if not len(about.row_ids) == len(about.row_sets) == len(num_prompt) == len(starts) - 1 >= 1:
        return "row_ids, row_sets, num_prompt and row_starts do not have the same number of rows"
    lengths = starts.diff()
    if int(starts[0]) != 0 or int(starts[-1]) != len(ids) or not bool((lengths > num_prompt).all()):
        return "row_starts and num_prompt do not cut token_ids into prompts and responses"
    if not bool((num_prompt >= 1).all()):
        return "a row has no prompt"
    if int(ids.min()) < 0 or int(ids.max()) >= about.vocab_size:
        return f"token_ids go from {int(ids.min())} to {int(ids.max())}, the target has {about.vocab_size} ids"
    if not torch.equal(tensors["embedding_ids"].long(), torch.unique(ids.long())):
        return "embedding_ids are not the distinct ids of token_ids"
    return None


def _states_problem(about: ProbeAbout, tensors: Mapping[str, Tensor]) -> str | None:
    width = about.target["hidden_size"]
    shapes = {name: (len(tensors["token_ids"]), width) for name in tensors if name.startswith("state.")}
    for name in shapes:
        boundary = name.removeprefix("state.")
        if not (boundary.isascii() and boundary.isdecimal()) or int(boundary[:9]) > about.num_layers:
            return f"{name[:40]} does not name a boundary of the target"
    shapes |= {"last": (len(tensors["token_ids"]), width), "embedding_rows": (len(tensors["embedding_ids"]), width)}
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape or not tensors[name].is_floating_point():
            return f"{name} is {tensors[name].dtype} {list(tensors[name].shape)}, wanted floats {list(shape)}"
        if bool(tensors[name].isnan().any()):
            return f"{name} holds NaN"
    return None


def _is_count(value: Any, largest: int) -> bool:
    return type(value) is int and 1 <= value <= largest


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)
