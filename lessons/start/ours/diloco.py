"""DiLoCo: as local SGD, but an outer optimizer makes a step along what the ranks have learned on average.

    EVERY=8 torchrun --nproc_per_node=4 mine/train_gpt.py --strategy diloco --updates 64
"""

import torch
import torch.distributed as dist
from local import Local
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class DiLoCo(Local):
    def __init__(self, inner, model, *options):
        super().__init__(inner, model, *options)
        self.agreed = parameters_to_vector(model.parameters()).detach()  # the weights that all ranks had last, a copy
        self.outer = self.make_outer()

    def make_outer(self):
        return torch.optim.SGD([self.agreed], lr=0.7, momentum=0.9, nesterov=True)

    def agree(self):
        self.agreed.grad = self.agreed - parameters_to_vector(self.model.parameters())
        dist.all_reduce(self.agreed.grad)
        self.agreed.grad /= dist.get_world_size()
        self.outer.step()
        vector_to_parameters(self.agreed.clone(), self.model.parameters())


def parallelize(model, make_optimizer):
    return model, DiLoCo(make_optimizer(model.parameters()), model)
