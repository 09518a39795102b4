"""What a strategy of tensor parallelism has beside its two layers: it puts them in, and gathers their pieces."""

import sys

import torch
import torch.distributed as dist
from torch import nn

CUT = {"up.weight": 0, "down.weight": 1}  # which dimension of a Linear's weight [outputs, inputs] is cut


def full(value):
    """The whole of a tensor that FSDP, too, may have sharded."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


class TensorParallel(nn.Module):
    """A GPT whose MLPs are Column(up), Row(down) on the ranks of `group`. Attention, norms and embeddings stay whole,
    and each rank computes the same with them. Ends the program, with a line, where the ranks do not divide an MLP."""

    share = (0, 1)  # each rank takes all crops

    def __init__(self, model, column, row, group=None):
        super().__init__()
        self.module, self.group, ranks = model, group, dist.get_world_size(group)
        for block in model.blocks:
            if block.up.out_features % ranks:
                sys.exit(f"An MLP of {block.up.out_features} hidden values has no {ranks} equal pieces: another "
                         "--width, or another number of ranks")
            block.up, block.down = column(block.up, group), row(block.down, group)

    def forward(self, tokens):
        return self.module(tokens)

    def whole(self):
        """{name: tensor}, all of the weights: the pieces of a rank beside those of the others."""
        weights = {name: full(value) for name, value in self.module.state_dict().items()}
        for name, piece in weights.items():
            dim = next((dim for end, dim in CUT.items() if name.endswith(end)), None)
            if dim is not None:
                pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size(self.group))]
                dist.all_gather(pieces, piece.contiguous(), group=self.group)
                weights[name] = torch.cat(pieces, dim)
        return weights

    def clip(self, max_norm):
        """Shorten the gradient to that norm. What each rank has whole counts once, pieces count on all ranks."""
        squares = torch.zeros(2)
        for name, parameter in self.module.named_parameters():
            squares[int(name.endswith(tuple(CUT)))] += full(parameter.grad.square().sum())
        dist.all_reduce(squares[1:], group=self.group)
        for parameter in self.parameters():
            parameter.grad *= (max_norm / (squares.sum().sqrt() + 1e-6)).clamp(max=1)
