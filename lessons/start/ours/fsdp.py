"""Each rank keeps one N-th of everything, and a block's weights are whole while it computes: fully sharded.

    torchrun --nproc_per_node=2 mine/train_gpt.py --strategy fsdp --parts ours
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from course.timing import all_gather_single, reduce_scatter_single


class Unit:
    """Parameters that become whole together. All must train, and get a gradient in each backward."""

    def __init__(self, parameters):
        self.parameters, self.ranks = list(parameters), dist.get_world_size()
        self.sizes = [each.numel() for each in self.parameters]
        self.flat = self.pack(self.parameters)
        self.shard = nn.Parameter(self.flat.chunk(self.ranks)[dist.get_rank()].clone())
        for each, values in zip(self.parameters, self.flat.split([*self.sizes, self.padding()]), strict=False):
            each.data = values.view_as(each)  # in the flat tensor's memory
        self.bytes, self.work = self.flat.nbytes, None
        self.free()

    def padding(self):
        return -sum(self.sizes) % self.ranks

    def pack(self, tensors):
        """One flat tensor of all values, and zeros at its end, so that the ranks divide its length."""
        return torch.cat([*(each.detach().flatten() for each in tensors), tensors[0].new_zeros(self.padding())])

    def gather(self):
        """Begin to make the parameters whole; self.work.wait() waits until they are."""
        if not self.flat.untyped_storage().nbytes():
            self.flat.untyped_storage().resize_(self.bytes)
            self.work = all_gather_single(self.flat, self.shard.detach(), async_op=True)

    def free(self):
        self.flat.untyped_storage().resize_(0)  # the parameters keep their shapes, and have no memory


class MyFSDP(nn.Module):
    """A module whose weights are sharded. blocks: parts of it, in the order of forward, each used once. Unit 0 is the
    rest of the module. The optimizer gets `shards`, a parameter [values] per unit. Between a forward and the next
    step() comes its backward, or whole(): they free unit 0."""

    def __init__(self, module, blocks):
        super().__init__()
        self.module, self.reducing = module, []
        inside = {each for block in blocks for each in block.parameters()}
        rest = [each for each in module.parameters() if each not in inside]
        self.units = [Unit(rest), *(Unit(block.parameters()) for block in blocks)]
        self.shards = [unit.shard for unit in self.units]
        for number, part in enumerate([module, *blocks]):
            part.register_forward_pre_hook(partial(self.before_forward, number))
            if number:  # unit 0 stays whole until its gradients have left
                part.register_forward_hook(partial(self.after_forward, number))
                part.register_full_backward_pre_hook(partial(self.before_backward, number))
            for each in self.units[number].parameters:
                each.register_post_accumulate_grad_hook(partial(self.arrived, number))

    def forward(self, *inputs):
        return self.module(*inputs)

    def whole(self):
        """{name: tensor}, all of the weights, on each rank; all ranks call it together."""
        for unit in self.units:
            unit.gather()
            unit.work.wait()
        weights = {name: value.clone() for name, value in self.module.state_dict().items()}
        for unit in self.units:
            unit.free()
        return weights

    def before_forward(self, number, *_):
        self.units[number].gather()
        if number + 1 < len(self.units):
            self.units[number + 1].gather()  # travels while this unit computes
        self.units[number].work.wait()

    def after_forward(self, number, *_):
        self.units[number].free()

    def before_backward(self, number, *_):
        self.units[number].gather()
        self.units[number - 1].gather()  # the next in backward; unit 0 is whole
        self.units[number].work.wait()

    def arrived(self, number, _):
        """A gradient of the unit is there. With the last one all of them leave, and backward goes on."""
        unit = self.units[number]
        if all(each.grad is not None for each in unit.parameters):
            unit.free()
            self.finish()  # one reduce-scatter at a time: each holds a unit's gradients
            gradients, piece = unit.pack([each.grad for each in unit.parameters]), torch.empty_like(unit.shard)
            for each in unit.parameters:
                each.grad = None
            self.reducing.append((unit, piece, gradients, reduce_scatter_single(piece, gradients, async_op=True)))

    @torch.no_grad()
    def finish(self):
        """Add the mean gradients that are under way to those of earlier micro-batches."""
        for unit, piece, _, work in self.reducing:
            work.wait()
            unit.shard.grad = piece / unit.ranks + (0 if unit.shard.grad is None else unit.shard.grad)
        self.reducing.clear()

    def clip(self, max_norm):
        """Shorten the gradient of the whole model to that norm."""
        squares = sum(shard.grad.square().sum() for shard in self.shards)
        dist.all_reduce(squares)
        for shard in self.shards:
            shard.grad *= (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1)


def parallelize(model, make_optimizer, wrap=MyFSDP):
    parallel = wrap(model, model.blocks)
    return parallel, make_optimizer(parallel.shards)
