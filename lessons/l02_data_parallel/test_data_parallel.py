"""What lesson 02 says of nn.DataParallel: of its rules, which need no GPU, and on two GPUs of its step."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel.scatter_gather import scatter

from lessons.l02_data_parallel import check


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 20)).double()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU DataParallel wants the model there")
def test_without_a_gpu_it_runs_once_on_the_whole_batch_and_says_nothing(recwarn):
    model, seen = network(), []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    parallel = nn.DataParallel(model)
    assert parallel(torch.randn(64, 40).double()).shape == (64, 20)
    assert seen == [64] and parallel.device_ids == [] and len(recwarn) == 0
    assert all(name.startswith("module.") for name in parallel.state_dict())


def test_scatter_cuts_each_tensor_and_hands_on_all_else(monkeypatch):
    monkeypatch.setattr("torch.nn.parallel.scatter_gather.Scatter.apply",  # the copy to a GPU
                        lambda devices, sizes, dim, tensor: tensor.chunk(len(devices), dim))
    first, second = scatter({"ids": torch.arange(4), "more": [torch.arange(2)], "numbers": [7, 8]}, [0, 1])
    assert second["ids"].tolist() == [2, 3] and second["more"][0].tolist() == [1]
    assert first["numbers"] == second["numbers"] == [7, 8]
    assert [piece.shape for piece in scatter(torch.empty(3, 4), [0, 1], dim=1)] == 2 * [(3, 2)]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_the_real_one_on_two_gpus_leaves_the_gradients_of_the_step_by_hand(rows):
    model, batch, labels = network(), torch.randn(rows, 40).double(), torch.randint(20, (rows,))
    real = nn.DataParallel(copy.deepcopy(model).to("cuda:0"), device_ids=[0, 1])
    loss = nn.functional.cross_entropy(real(batch.to("cuda:0")), labels.to("cuda:0"))
    loss.backward()
    torch.testing.assert_close(check.my_step(model, batch, labels, 2), loss.cpu())
    torch.testing.assert_close([weight.grad.cpu() for weight in real.parameters()],
                               [weight.grad for weight in model.parameters()])
