"""The DataParallel that notebook 02 builds by hand: the cells that a learner reads, run against PyTorch."""

import jupytext
import launch
import pytest
import torch
from torch import nn
from torch.nn.parallel.scatter_gather import scatter as torch_scatter

# PyTorch's own scatter takes device -1, the CPU, where it was built for GPUs and there is none.
on_cpu = pytest.mark.skipif(not hasattr(torch._C, "_scatter") or torch.accelerator.is_available(),
                            reason="PyTorch's scatter to CPU tensors needs a CUDA build and no accelerator")


@pytest.fixture(scope="module")
def lesson():
    """What the notebook's cells define: its imports, `scatter`, `Broadcast` and `DataParallelByHand`."""
    cells = jupytext.read(launch.ROOT / "notebooks" / "text" / "02_data_parallel.py").cells
    wanted = ("import copy\n", "def scatter(", "class Broadcast(", "class DataParallelByHand(")
    found = [cell.source for cell in cells if cell.cell_type == "code" and cell.source.startswith(wanted)]
    assert len(found) == len(wanted)
    names = {}
    for source in found:
        exec(source, names)
    return names


@pytest.fixture
def by_hand(lesson):
    return lesson["DataParallelByHand"]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 20)).double()


def gradients(model, batch, labels):
    return torch.autograd.grad(nn.functional.cross_entropy(model(batch), labels), list(model.parameters()))


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 3, 5, 10, 64])
def test_outputs_and_gradients_are_those_of_one_device(by_hand, devices, rows):
    model, batch, labels = network(), torch.randn(rows, 40).double(), torch.randint(20, (rows,))
    parallel = by_hand(model, devices)
    torch.testing.assert_close(parallel(batch), model(batch))
    torch.testing.assert_close(gradients(parallel, batch, labels), gradients(model, batch, labels))


def test_many_steps_give_the_weights_of_one_device(by_hand):
    models = [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    wrapped = [models[0], by_hand(models[1], 3)]
    for _ in range(10):
        batch, labels = torch.randn(8, 40).double(), torch.randint(20, (8,))
        for model, optimizer in zip(wrapped, optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
    torch.testing.assert_close(*[list(model.parameters()) for model in models])


class Seen(nn.Module):
    """Notes the shapes that its forward gets: the list is shared by all replicas."""

    def __init__(self, seen):
        super().__init__()
        self.note, self.layer, self.calls = seen.append, nn.Linear(40, 20), 0

    def forward(self, batch, scale=1.0):
        self.note((tuple(batch.shape), torch.is_grad_enabled()))
        self.calls += 1
        return self.layer(batch) * scale


def test_four_devices_see_a_quarter_each(by_hand):
    seen = []
    assert by_hand(Seen(seen), 4)(torch.randn(64, 40)).shape == (64, 20)
    assert seen == [((16, 40), True)] * 4


def test_no_more_replicas_than_pieces(by_hand):
    seen = []
    by_hand(Seen(seen), 4)(torch.randn(5, 40))
    assert sorted(shape for shape, _ in seen) == [(1, 40), (2, 40), (2, 40)]


def test_threads_know_that_no_gradients_are_wanted(by_hand):
    seen = []
    with torch.no_grad():
        assert not by_hand(Seen(seen), 2)(torch.randn(4, 40)).requires_grad
    assert [grad for _, grad in seen] == [False, False]


def test_attributes_of_replicas_are_lost_and_the_model_is_left_as_it_was(by_hand):
    model = Seen([])
    before = dict(model.named_parameters())
    by_hand(model, 4)(torch.randn(64, 40), 2.0)
    assert model.calls == 0 and not hasattr(model, "pretend_device")
    assert all(weight is before[name] for name, weight in model.named_parameters())


def test_batchnorm_keeps_the_statistics_of_the_first_device(by_hand):
    norm, batch = nn.BatchNorm1d(40), torch.randn(64, 40)
    by_hand(norm, 4)(batch)
    torch.testing.assert_close(norm.running_mean, 0.1 * batch[:16].mean(0))
    assert norm.num_batches_tracked == 1


def test_another_dimension(by_hand):
    batch = torch.randn(7, 64, 40).double()
    model = network()
    torch.testing.assert_close(by_hand(model, 4, dim=1)(batch), model(batch))


def test_an_error_in_a_replica_reaches_the_caller(by_hand):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        by_hand(network(), 2)(torch.randn(4, 41).double())


@on_cpu
@pytest.mark.parametrize("rows", [1, 3, 5, 10, 64])
def test_scatter_is_that_of_pytorch(lesson, rows):
    same = object()
    value = ({"batch": torch.randn(rows, 40), "inner": [torch.randn(rows), "text", 0.5]}, same, [], {},
             torch.randn(rows, 2))
    ours, theirs = lesson["scatter"](value, 4), torch_scatter(value, [-1] * 4)
    assert len(ours) == len(theirs)
    for mine, real in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine[0]["batch"], real[0]["batch"])
        torch.testing.assert_close(mine[0]["inner"][0], real[0]["inner"][0])
        torch.testing.assert_close(mine[4], real[4])
        assert mine[0]["inner"][1:] == real[0]["inner"][1:] == ["text", 0.5]
        assert mine[1] is real[1] is same
        assert mine[2:4] == real[2:4] == ([], {})


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_the_real_one_on_two_gpus_has_the_same_outputs_and_gradients(by_hand, rows):
    model, batch, labels = network(), torch.randn(rows, 40).double(), torch.randint(20, (rows,))
    real = nn.DataParallel(network().to("cuda:0"), device_ids=[0, 1])
    theirs = [real(batch.to("cuda:0")), *gradients(real, batch.to("cuda:0"), labels.to("cuda:0"))]
    ours = [by_hand(model, 2)(batch), *gradients(by_hand(model, 2), batch, labels)]
    torch.testing.assert_close([each.cpu() for each in theirs], ours)


def test_the_real_one_passes_a_batch_on_where_there_is_no_gpu():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    seen = []
    wrapped = nn.DataParallel(Seen(seen))
    assert wrapped.device_ids == []
    wrapped(torch.randn(64, 40))
    assert seen == [((64, 40), True)]
    assert list(wrapped.state_dict()) == ["module.layer.weight", "module.layer.bias"]
