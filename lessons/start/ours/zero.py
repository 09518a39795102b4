"""Each rank updates one N-th of the weights, and keeps the optimizer's state of these alone: ZeRO, stage 1.

    torchrun --nproc_per_node=2 mine/train_gpt.py --strategy zero --parts ours
"""

import torch
import torch.distributed as dist

from course.timing import all_gather_single, reduce_scatter_single


class MyZero(torch.optim.Optimizer):
    """Takes the place of make_optimizer(parameters). All ranks make it with the same weights, and step together.

    make_optimizer: a list of tensors -> an optimizer that updates each value by itself, such as AdamW.
    """

    def __init__(self, parameters, make_optimizer):
        self.trained = [each for each in parameters if each.requires_grad]
        super().__init__(self.trained, {})  # an Optimizer's zero_grad()
        rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.sizes = [each.numel() for each in self.trained]
        self.sizes.append(-sum(self.sizes) % self.ranks)  # zeros at the end, so that the ranks divide the length
        self.weights = self.flat(self.trained)
        for each, values in zip(self.trained, self.weights.split(self.sizes), strict=False):
            each.data = values.view_as(each)  # in the vector's memory: what is gathered there is in the model
        self.own = self.weights.chunk(self.ranks)[rank]
        self.optimizer = make_optimizer([self.own])

    def flat(self, tensors):
        return torch.cat([*(each.detach().flatten() for each in tensors), tensors[0].new_zeros(self.sizes[-1])])

    @torch.no_grad()
    def step(self):
        gradients = self.flat([torch.zeros_like(each) if each.grad is None else each.grad for each in self.trained])
        self.own.grad = torch.empty_like(self.own)
        reduce_scatter_single(self.own.grad, gradients)
        self.own.grad /= self.ranks
        self.optimizer.step()
        self.own.grad = None  # not needed any more
        all_gather_single(self.weights, self.own)


def parallelize(model, make_optimizer):
    return model, MyZero(model.parameters(), make_optimizer)
