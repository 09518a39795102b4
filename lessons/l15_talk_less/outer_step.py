"""DiLoCo's outer step, for talk_ways.py. Lesson 15 asks for it as an exercise: a learner's copy has it packed."""

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


@torch.no_grad()
def outer_step(model, agreed, outer):
    """`agreed`: one long vector, the weights that all ranks had after the last outer step; `outer`: its optimizer."""
    agreed.grad = agreed - parameters_to_vector(model.parameters())
    dist.all_reduce(agreed.grad)
    agreed.grad /= dist.get_world_size()
    outer.step()
    vector_to_parameters(agreed.clone(), model.parameters())
