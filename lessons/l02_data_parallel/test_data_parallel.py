"""The DataParallel of lesson 02, on pretend devices, against PyTorch on one device and, if there are GPUs, on two."""

import pytest
import torch
from torch import nn

from lessons.l02_data_parallel import pretend_devices


def by_hand(model, devices):
    """The four steps, as the lesson has them."""
    def forward(batch):
        pieces = batch.chunk(devices)
        replicas = pretend_devices.replicate(model, len(pieces))
        return torch.cat(pretend_devices.parallel_apply(replicas, pieces))

    return forward


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 20)).double()


def gradients(model, batch, labels, weights):
    return torch.autograd.grad(nn.functional.cross_entropy(model(batch), labels), list(weights))


@pytest.mark.parametrize(("devices", "rows"), [(1, 5), (3, 64), (4, 5), (4, 1)])
def test_outputs_and_gradients_are_those_of_one_device(devices, rows):
    model, batch, labels = network(), torch.randn(rows, 40).double(), torch.randint(20, (rows,))
    parallel, weights = by_hand(model, devices), list(model.parameters())
    torch.testing.assert_close(parallel(batch), model(batch))
    torch.testing.assert_close(gradients(parallel, batch, labels, weights), gradients(model, batch, labels, weights))


class Noting(nn.Module):
    """Appends the shape of each batch to a list that all replicas share."""

    def __init__(self, seen):
        super().__init__()
        self.note, self.layer, self.calls = seen.append, nn.Linear(40, 20), 0

    def forward(self, batch):
        self.note(tuple(batch.shape))
        self.calls += 1
        return self.layer(batch)


def test_each_piece_has_a_replica_and_what_a_replica_sets_is_lost():
    seen = []
    model = Noting(seen)
    before = dict(model.named_parameters())
    by_hand(model, 4)(torch.randn(5, 40))
    assert sorted(seen) == [(1, 40), (2, 40), (2, 40)]
    assert model.calls == 0
    assert all(weight is before[name] for name, weight in model.named_parameters())


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_the_real_one_on_two_gpus_has_the_same_outputs_and_gradients(rows):
    model, batch, labels = network(), torch.randn(rows, 40).double(), torch.randint(20, (rows,))
    real = nn.DataParallel(network().to("cuda:0"), device_ids=[0, 1])
    theirs = [real(batch.to("cuda:0")),
              *gradients(real, batch.to("cuda:0"), labels.to("cuda:0"), real.parameters())]
    ours = [by_hand(model, 2)(batch), *gradients(by_hand(model, 2), batch, labels, model.parameters())]
    torch.testing.assert_close([each.cpu() for each in theirs], ours)


def test_what_is_kept_for_backward_is_counted_once_and_without_weights():
    weight, rows = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8)
    result, kept = pretend_devices.kept_for_backward(lambda x: ((x @ weight).exp() + x @ weight).sum(), rows,
                                                     weights=[weight])
    assert kept == 2 * 4 * 8 * 4  # the rows, though two products keep them, and exp's result
    result.backward()
    assert pretend_devices.bytes_of([weight.grad, rows]) == (64 + 32) * 4
