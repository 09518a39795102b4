"""A pipeline: each rank has some of a GPT's blocks, and works through a list of forwards and backwards."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.functional import cross_entropy


class Pipeline(nn.Module):
    """The stage of this rank. `order(rank, ranks, micro_batches)` is its list of ("forward", i) and ("backward", i).

    Rank 0 has the embeddings, the last rank the head. Ends the program, with a line, where there are more ranks than
    blocks.
    """

    share = (0, 1)  # each rank takes all crops

    def __init__(self, model, order):
        super().__init__()
        self.rank, self.ranks, self.order = dist.get_rank(), dist.get_world_size(), order
        self.first, self.last, self.width = self.rank == 0, self.rank == self.ranks - 1, len(model.norm.weight)
        if len(model.blocks) < self.ranks:
            sys.exit(f"{len(model.blocks)} blocks are too few for {self.ranks} ranks: more --layers, or fewer ranks")
        own = torch.arange(len(model.blocks)).tensor_split(self.ranks)[self.rank].tolist()
        for number in set(range(len(model.blocks))).difference(own):
            model.blocks[number] = nn.Identity()
        if not self.first:
            model.embedding = model.position = nn.Identity()
        if not self.last:
            model.norm = model.head = nn.Identity()
        self.module, self.ends = model, dist.new_group([0, self.ranks - 1])

    def forward(self, x):
        """Bytes [crops, context], or what the rank before has sent, to what the next rank, or the loss, needs."""
        if self.first:
            x = self.module.embedding(x) + self.module.position.weight[: x.shape[1]]
        return self.module.head(self.module.norm(self.module.blocks(x)))

    def backward(self, windows, micro_batches):
        """Forward and backward of all micro-batches of windows [crops, context + 1]; their mean loss, on all ranks."""
        windows, total = windows.long().chunk(micro_batches), torch.zeros(())
        inputs, outputs, sent, gradients = {}, {}, {}, []
        for kind, number in self.order(self.rank, self.ranks, micro_batches):
            if kind == "forward":
                x = windows[number][:, :-1] if self.first else self.received(windows[number], self.rank - 1, number)
                inputs[number] = x if self.first else x.requires_grad_()
                with record_function(f"forward {number}"):
                    y = self(x)
                    if self.last:
                        y = cross_entropy(y.flatten(0, 1), windows[number][:, 1:].flatten()) / micro_batches
                outputs[number] = y
                if self.last:
                    total += y.detach()
                else:  # without waiting: the next rank may be about to send, too
                    sent[number] = dist.isend(y.detach(), self.rank + 1, tag=number)
            else:
                gradient = None if self.last else self.received(windows[number], self.rank + 1, number)
                if not self.last:
                    sent.pop(number).wait()  # it has long arrived
                with record_function(f"backward {number}"):
                    outputs.pop(number).backward(gradient)
                x = inputs.pop(number)
                if not self.first:
                    gradients.append(dist.isend(x.grad, self.rank - 1, tag=number))
        for each in gradients:
            each.wait()
        return self.finished(total)

    def finished(self, total):
        """Sum up the tied weight's gradient, half of which each end of the pipeline has; give all ranks the loss."""
        if self.first or self.last:
            tied = self.module.embedding if self.first else self.module.head
            dist.all_reduce(tied.weight.grad, group=self.ends)
        dist.broadcast(total, self.ranks - 1)
        return total

    def received(self, windows, rank, number):
        """Activations, or their gradient, [crops, context, width], of that micro-batch, from that rank."""
        values = torch.empty(len(windows), windows.shape[1] - 1, self.width)
        dist.recv(values, rank, tag=number)
        return values

    def whole(self):
        """{name: tensor}, all of the weights."""
        parts = [None] * self.ranks
        dist.all_gather_object(parts, self.module.state_dict())
        return {name: value for part in parts for name, value in part.items()}

    def clip(self, max_norm):
        """Shorten the gradient to that norm, of which the tied weight's counts once."""
        square = sum((parameter.grad.square().sum() for name, parameter in self.module.named_parameters()
                      if name != "head.weight"), torch.zeros(()))
        dist.all_reduce(square)
        for parameter in self.parameters():
            parameter.grad *= (max_norm / (square.sqrt() + 1e-6)).clamp(max=1)
