"""`--shard`: each rank keeps a part of the fp32 weights and moments (FSDP2); whole weights exist while a step computes.

`fully_shard` cuts every parameter by rows. A step gathers them, computes as on one GPU, sums the gradients into each
rank's part, and frees the whole weights. So 12 of 16 bytes a parameter are divided by the number of ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial

from eyas.models.draft import Eagle3Draft


class Shards:
    """A draft's parameters in parts. The process group must be up.

    Args:
        draft: the same on every rank; it is sharded in place.
        num_ranks: size of the process group.
        device: of this rank.

    Attributes:
        names: of all parameters, in the module's order.
    """

    def __init__(self, draft: Eagle3Draft, num_ranks: int, device: torch.device) -> None:
        self._mesh: DeviceMesh = init_device_mesh(device.type, (num_ranks,))
        self._module = fully_shard(draft, mesh=self._mesh)
        self._draft = draft
        self._sharded = {name: cast(DTensor, p) for name, p in draft.named_parameters()}
        self.names = list(self._sharded)
        # The optimiser does not handle DTensors: it works on each rank's own part, in the same storage.
        self._local = {
            name: nn.Parameter(p.to_local().detach(), requires_grad=p.requires_grad)
            for name, p in self._sharded.items()
        }

    def local_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Name and this rank's part of each parameter, for the optimiser."""
        return list(self._local.items())

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, the draft's parameters are whole and plain. All ranks enter together."""
        self._module.unshard()
        try:
            yield
        finally:
            self._module.reshard()

    @torch.no_grad()
    def plain_copy(self) -> Eagle3Draft:
        """The whole draft on the CPU, to be written; inside `whole`. (`state_dict` of the sharded one gives parts.)"""
        draft = self._draft
        copy = Eagle3Draft(draft.spec, target_embedding=draft.shared_embedding, target_head=draft.shared_head)
        for mine, theirs in zip(copy.parameters(), draft.parameters(), strict=True):
            mine.copy_(theirs)
        for own, other in zip(copy.buffers(), draft.buffers(), strict=True):
            own.copy_(other)
        return copy

    def reduce_gradients(self) -> None:
        """Sum the whole gradients of all ranks into the parts' `grad`, one by one; inside `whole`."""
        for name, whole in self._draft.named_parameters():
            if not whole.requires_grad:
                continue
            gradient = torch.zeros_like(whole) if whole.grad is None else whole.grad
            whole.grad = None
            self._local[name].grad = self.part_of(name, gradient, is_partial=True)

    def part_of(self, name: str, tensor: Tensor, *, is_partial: bool = False) -> Tensor:
        """This rank's part of a tensor cut as the parameter `name` is.

        Args:
            tensor: of the whole parameter's shape, on this rank's device.
            is_partial: the tensors of all ranks are to be summed; else they are equal.
        """
        sharded = self._sharded[name]
        if is_partial:
            summed = DTensor.from_local(tensor, self._mesh, [Partial()], run_check=False)
            return summed.redistribute(placements=sharded.placements).to_local()
        begin, size = self._rows(name)
        return tensor[begin : begin + size]

    def as_whole(self, name: str, part: Tensor) -> DTensor:
        """The tensor that `part` is this rank's part of, for `torch.distributed.checkpoint`."""
        sharded = self._sharded[name]
        return DTensor.from_local(
            part,
            self._mesh,
            sharded.placements,
            run_check=False,
            shape=sharded.shape,
            stride=sharded.stride(),
        )

    def whole_of(self, name: str, part: Tensor) -> Tensor:
        """The tensor that `part` is this rank's part of, on every rank. All ranks call it together."""
        return self.as_whole(name, part).full_tensor()

    def _rows(self, name: str) -> tuple[int, int]:
        """First row and number of rows of this rank's part: torch.chunk's way of cutting."""
        num_rows, size = len(self._sharded[name]), self._mesh.size()
        chunk = -(-num_rows // size)
        begin = min(num_rows, chunk * self._mesh.get_local_rank())
        return begin, min(num_rows, begin + chunk) - begin
