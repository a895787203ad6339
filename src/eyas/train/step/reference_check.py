"""Does the fused step compute what the modules compute? Both take one row before training; a difference is refused."""

from collections.abc import Iterable

import torch
from torch import Tensor

from eyas.data.text.tokenise import TokenRow
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.states import StateSource
from eyas.train.rows.packing import Packed, pack
from eyas.train.step.packed_target import LlamaStates
from eyas.train.step.unroll import FusedUnroll, ModuleUnroll, Unroll, why_not_fused

_MOST_TOKENS = 64
# Norm of the difference over the norm. Sums in another order differ by 1e-6 in fp32, and by a hundredth after one layer
# of a bf16 target; the draft is compared in fp32 whatever it trains in.
_ALLOWED, _ALLOWED_HALF = 5e-3, 0.05
_FOLDER = "src/eyas/train/step"


class FusedStepDiffers(EyasError):
    """The fused training step computes something other than the modules that it stands for."""

    code = "fused-step-differs"


def require_reference(
    draft: Eagle3Draft, states: StateSource, row: TokenRow, num_steps: int, plain: StateSource | None = None
) -> float | None:
    """Compare the target's states, the draft's states and the draft's gradients on the first tokens of `row`.

    Args:
        draft: whole.
        states: how training gets the target's states.
        row: one of the rows that `states` knows.
        num_steps: K.
        plain: the target through transformers, which `states` is compared with; None where the target is not here.

    Returns:
        The largest relative difference; None where training runs the modules themselves.

    Raises:
        FusedStepDiffers: it is larger than rounding explains.
    """
    ids = row.token_ids[:_MOST_TOKENS]
    packed = pack([TokenRow(ids, (True,) * len(ids), row.number)], num_steps, states.device)
    boundaries, differences = draft.spec.aux_boundaries or (), list[float]()
    wanted = (plain or states)(packed, boundaries)
    if plain is not None and isinstance(states, LlamaStates):
        # Layer by layer, rounding of halves grows beyond telling; one layer is told from another function at once.
        is_half = wanted.last.dtype in (torch.float16, torch.bfloat16)
        compared = (1,) if is_half else boundaries
        found, own = states(packed, compared), plain(packed, compared)
        num = packed.num_tokens  # padding has no right states
        pairs = [("the target's aux states", found.aux[:num], own.aux[:num])]
        if not is_half:
            pairs.append(("the target's last state", found.last[:num], own.last[:num]))
        where = "packed_target.py (LlamaStates)"
        differences.append(_require_same(pairs, packed, where, _ALLOWED_HALF if is_half else _ALLOWED))
    if len(packed.teachers) and why_not_fused(draft.spec) is None:
        aux = wanted.aux.to(draft.dtype)
        fused, modules = (
            _states_and_gradients(draft, make(draft, num_steps, draft.dtype), packed, aux)
            for make in (FusedUnroll, ModuleUnroll)
        )
        draft_pairs = [(name, fused[name], tensor) for name, tensor in modules.items()]
        differences.append(_require_same(draft_pairs, packed, "unroll.py (FusedUnroll)", _ALLOWED))
    return max(differences, default=None)


def _states_and_gradients(draft: Eagle3Draft, unroll: Unroll, packed: Packed, aux: Tensor) -> dict[str, Tensor]:
    """What `unroll` computes, by name; leaves the draft's gradients unset."""
    states = unroll.states(packed, aux) * packed.is_target.unsqueeze(-1)  # the others are picked from padding
    named = {f"the draft's state at unrolled step {j}": state.detach() for j, state in enumerate(states)}
    if states.requires_grad:
        torch.autograd.backward(states, states.detach().roll(1, -1))  # along itself, a norm lets nothing pass
        unroll.publish()
    for name, parameter in draft.named_parameters():
        if parameter.grad is not None:
            named[f"the gradient of {name}"] = parameter.grad
        parameter.grad = None
    return named


def _require_same(pairs: Iterable[tuple[str, Tensor, Tensor]], packed: Packed, where: str, allowed: float) -> float:
    worst = 0.0
    for name, found, wanted in pairs:
        size = wanted.float().norm()
        difference = float((found.float() - wanted.float()).norm() / size) if size else float(found.float().norm())
        if not difference <= allowed:
            raise FusedStepDiffers(
                "the fused training step differs from the plain modules",
                f"{name}, over one row of {packed.num_tokens} tokens",
                f"the relative difference is {difference:.2g}, and rounding explains {allowed:g}: training would fit"
                " another model than the one that is written",
                f"write the change of the modules into {_FOLDER}/{where} too, or give --unroll modules",
            )
        worst = max(worst, difference)
    return worst
