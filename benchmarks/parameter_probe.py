"""Which parameters of a torch module a loader writes: note what they hold, fill them with NaN, look again."""

import torch

_SENTINEL = -77777


def initial_states(module: torch.nn.Module) -> dict[str, str]:
    """Parameter -> ones / zeros / other, as constructed."""
    return {name: _state(parameter) for name, parameter in module.named_parameters()}


def poison(module: torch.nn.Module) -> None:
    """Fill every parameter with NaN (integers: a sentinel)."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(float("nan") if parameter.is_floating_point() else _SENTINEL)


def written_shares(module: torch.nn.Module) -> dict[str, float]:
    """Parameter -> share of its values that are no longer poisoned, 0 ... 1."""
    shares = {}
    for name, parameter in module.named_parameters():
        values = parameter.detach().float()
        left = torch.isnan(values) if parameter.is_floating_point() else values == _SENTINEL
        shares[name] = round(1.0 - left.float().mean().item(), 4)
    return shares


def zero_shares(module: torch.nn.Module) -> dict[str, float]:
    """Parameter -> share of exact zeros after loading (padding shows here); only where there are any."""
    found = {name: (p.detach() == 0).float().mean().item() for name, p in module.named_parameters()}
    return {name: round(share, 4) for name, share in found.items() if share > 0}


def _state(parameter: torch.nn.Parameter) -> str:
    values = parameter.detach().float()
    if bool((values == 1).all()):
        return "ones"
    return "zeros" if bool((values == 0).all()) else "other"
