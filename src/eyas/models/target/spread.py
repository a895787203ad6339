"""A target that is larger than one device: its layers over several GPUs, and in the host's memory what fits none.

Each GPU holds a run of layers, each about as many bytes. Of a run that is too large, some layers stay in pinned host
memory and are copied to the GPU for each pass, the next one while the present one computes. For large batches, as
`eyas extract` makes them, the copy takes less time than the layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eyas.models.placement import Placement
from eyas.models.target.loading import load_target_model
from eyas.models.target.target import Target, require_own_states


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer computes, and whether its weights stay in the host's memory between passes."""

    device: torch.device
    is_offloaded: bool


def place_layers(sizes: Sequence[int], devices: Sequence[torch.device], rooms: Sequence[int]) -> list[LayerPlace]:
    """A place for each layer.

    Args:
        sizes: bytes of each layer.
        rooms: bytes of weights that each device may hold.
    """
    total, before, places = sum(sizes), 0, list[LayerPlace]()
    runs = [list[int]() for _ in devices]
    for number, size in enumerate(sizes):  # by the middle of the layer, so that runs are about equal
        at = min(len(devices) - 1, int((before + size / 2) * len(devices) / max(total, 1)))
        runs[at].append(number)
        before += size
    for device, room, run in zip(devices, rooms, runs, strict=True):
        offloaded = _offloaded([sizes[number] for number in run], room)
        places += [LayerPlace(device, i in offloaded) for i in range(len(run))]
    return places


def _offloaded(sizes: Sequence[int], room: int) -> set[int]:
    """Layers of a run that stay in host memory, spread evenly: two of them have room on the device for their turn."""
    if sum(sizes) <= room:
        return set()
    room -= 2 * max(sizes)
    num = next(n for n in range(1, len(sizes) + 1) if n == len(sizes) or sum(sorted(sizes)[: len(sizes) - n]) <= room)
    return {int((i + 0.5) * len(sizes) / num) for i in range(num)}


def load_spread(
    folder: Path, dtype: torch.dtype, devices: Sequence[torch.device], rooms: Sequence[int]
) -> tuple[Target, list[LayerPlace]]:
    """The target in `folder` and the place of each layer, loaded into the host's memory and spread from there.

    Args:
        rooms: bytes of weights that each device may hold; the first one also holds embedding, head and norm.

    Raises:
        TargetUnloadable, TargetPartMissing, TargetNotFinite: see `Target.load`.
    """
    target = Target(load_target_model(folder, Placement(dtype, torch.device("cpu"))))
    places = spread(target, devices, rooms)
    require_own_states(target, folder)
    return target, places


def spread(target: Target, devices: Sequence[torch.device], rooms: Sequence[int]) -> list[LayerPlace]:
    """Move a target's parts, and make each layer take its inputs to its own device. Not for passes with a cache."""
    layers = list(target.parts.layers)
    first, inside = devices[0], {id(tensor) for layer in layers for tensor in _tensors(layer)}
    beside = [target.parts.text_model, target.model.get_output_embeddings()]
    others = {id(t): t for module in beside for t in _tensors(module) if id(t) not in inside}
    for tensor in others.values():
        tensor.data = tensor.data.to(first)
    rooms = [rooms[0] - sum(tensor.nbytes for tensor in others.values()), *rooms[1:]]
    places = place_layers([sum(t.nbytes for t in _tensors(layer)) for layer in layers], devices, rooms)
    for device in dict.fromkeys(devices):
        turns = _Turns(
            [layer for layer, p in zip(layers, places, strict=True) if p == LayerPlace(device, True)], device
        )
        turns.register()
    for layer, place in zip(layers, places, strict=True):
        if not place.is_offloaded:
            layer.to(place.device)
        layer.register_forward_pre_hook(_taking_to(place.device), with_kwargs=True)
    target.parts.final_norm.register_forward_pre_hook(_taking_to(first), with_kwargs=True)
    return places


class _Turns:
    """Layers in host memory that take turns on a device: while one computes, the next is copied."""

    def __init__(self, layers: Sequence[nn.Module], device: torch.device) -> None:
        self._layers, self._device = layers, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._tensors = [_tensors(layer) for layer in layers]
        for tensors in self._tensors:
            for tensor in tensors:
                tensor.data = tensor.data.pin_memory() if self._stream is not None else tensor.data
        self._host = [[tensor.data for tensor in tensors] for tensors in self._tensors]
        self._there: dict[int, tuple[list[Tensor], Any]] = {}
        self._done: Any = None

    def register(self) -> None:
        for number, layer in enumerate(self._layers):
            layer.register_forward_pre_hook(self._entering(number))
            layer.register_forward_hook(self._leaving(number))

    def _entering(self, number: int) -> Callable[[Any, Any], None]:
        def enter(_: Any, __: Any) -> None:
            copies, copied = self._there.pop(number) if number in self._there else self._fetched(number)
            if copied is not None:
                current = torch.cuda.current_stream(self._device)
                current.wait_event(copied)
                for copy in copies:
                    copy.record_stream(current)
            for tensor, copy in zip(self._tensors[number], copies, strict=True):
                tensor.data = copy
            if self._done is not None:  # else the host would run ahead and all layers would be on the device at once
                self._done.synchronize()
            if (following := (number + 1) % len(self._layers)) != number:
                self._there[following] = self._fetched(following)

        return enter

    def _leaving(self, number: int) -> Callable[[Any, Any, Any], None]:
        def leave(_: Any, __: Any, ___: Any) -> None:
            if self._stream is not None:
                self._done = torch.cuda.current_stream(self._device).record_event()
            for tensor, host in zip(self._tensors[number], self._host[number], strict=True):
                tensor.data = host

        return leave

    def _fetched(self, number: int) -> tuple[list[Tensor], Any]:
        if self._stream is None:
            return [host.clone() for host in self._host[number]], None
        with torch.cuda.stream(self._stream):
            copies = [host.to(self._device, non_blocking=True) for host in self._host[number]]
            return copies, self._stream.record_event()


def _tensors(module: nn.Module | None) -> list[Tensor]:
    return [] if module is None else [*module.parameters(), *module.buffers()]


def _taking_to(device: torch.device) -> Callable[[Any, Any, Any], Any]:
    def take(_: Any, args: Any, kwargs: Any) -> Any:
        return _moved(args, device), _moved(kwargs, device)

    return take


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(item, device) for item in value)
    return value
