"""A pipeline in the order 1F1B: PyTorch's own schedule, with stages that are cut as ours are."""

import torch
from pipeline import Pipeline
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy


def loss_of(scores, targets):
    return cross_entropy(scores.flatten(0, 1), targets.flatten())


class Scheduled(Pipeline):
    schedule = None

    def backward(self, windows, micro_batches):
        if self.schedule is None:  # it must know the number of micro-batches
            stage = PipelineStage(self, self.rank, self.ranks, torch.device("cpu"))
            self.schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss_of)
        windows, losses = windows.long(), []
        self.schedule.step(*([windows[:, :-1]] if self.first else []), losses=losses,
                           target=windows[:, 1:] if self.last else None)
        return self.finished(torch.stack(losses).mean().detach() if losses else torch.zeros(()))


def parallelize(model, make_optimizer):
    parallel = Scheduled(model, None)
    return parallel, make_optimizer(parallel.parameters())
