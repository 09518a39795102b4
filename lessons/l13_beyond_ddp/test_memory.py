"""memory.py: the figures of the papers. test_beyond_ddp.py counts on ranks."""

import pytest

from course import memory as model


def gigabytes(*arguments):
    return sum(model.model_states(*arguments).values()) / 1e9


@pytest.mark.parametrize(("stage", "published"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_are_those_of_the_zero_paper(stage, published):
    """Figure 1 of arXiv 1910.02054: 7.5 billion parameters, 64 ranks, K = 12."""
    assert gigabytes(7.5e9, 64, stage) == pytest.approx(published, abs=0.05)


def test_zero_1_as_pytorch_has_it_keeps_float32_weights_and_gradients_whole():
    """4 + 4 + 8/N bytes a parameter, and the copies that autocast makes: no 7 billion on eight devices of 80 GB, where
    the paper's 2 + 2 + 12/N are enough."""
    rows = model.shared_out(7e9, 8)
    states = {way: sum(row[part] for part in model.PARTS[:3]) / 7e9 for way, row in rows.items()}
    assert states == {"DDP": 16, "ZeRO-1 as PyTorch has it": 9, "ZeRO-1 in the paper": 5.5,
                      "ZeRO-2 in the paper": 3.75, "ZeRO-3: FSDP": 2}
    whole = {way: sum(row.values()) for way, row in rows.items()}
    assert whole["ZeRO-1 as PyTorch has it"] > 80e9 > whole["ZeRO-1 in the paper"] > whole["ZeRO-3: FSDP"]


def test_autocast_keeps_a_copy_of_each_weight_until_backward():
    import torch
    from torch import nn
    from torch.autograd.graph import saved_tensors_hooks

    net, kept = nn.Sequential(*[nn.Linear(32, 32, bias=False) for _ in range(3)]), []
    keeping = saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor)
    with keeping, torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.zeros(2, 32, requires_grad=True))
    copies = sum(tensor.nbytes for tensor in kept if tensor.shape == (32, 32))
    parameters = sum(weight.numel() for weight in net.parameters())
    assert copies == model.for_a_moment(parameters, 3, 0, model.AUTOCAST)
    assert all(weight.dtype == torch.float32 for weight in net.parameters()), "and the weights stay"


@pytest.mark.parametrize(("heads", "sequence", "hidden", "published"), [(96, 2048, 12288, 80), (128, 2048, 20480, 64)])
def test_the_attention_term_is_that_of_the_paper(heads, sequence, hidden, published):
    """Section 5 of arXiv 2205.05198: 5 a s / h for GPT-3 and for MT-NLG."""
    shape = model.Transformer(1, hidden, heads, sequence)
    sbh = sequence * hidden
    assert model.activations(shape, 1) == sbh * (34 + published)  # equation 1
    assert model.activations(shape, 1, tensor=8) == pytest.approx(sbh * (10 + 24 / 8 + published / 8))  # equation 2
    assert model.activations(shape, 1, recompute="attention") == sbh * 34
    assert model.activations(shape, 1, recompute="all") == 2 * sbh
    assert model.activations(shape, 3) == 3 * model.activations(shape, 1)


def test_shape_has_the_parameters_that_were_asked_for():
    for parameters in (1.25e8, 7e9, 1.75e11):
        shape = model.Transformer.of_size(parameters)
        assert 12 * shape.hidden**2 * shape.layers == pytest.approx(parameters)
    assert (round(shape.layers), shape.hidden) == (96, pytest.approx(12288, rel=0.01)), "GPT-3: 96 layers of 12288"


@pytest.mark.parametrize(("rows", "ranks"), [(97, 2), (97, 4), (7, 3), (4, 3), (2, 3), (1, 4)])
def test_chunks_are_those_of_torch(rows, ranks):
    import torch

    chunks = [len(chunk) for chunk in torch.zeros(rows).chunk(ranks)]
    assert [model.rows((rows, 5), rank, ranks)[0] for rank in range(ranks)] == chunks + [0] * (ranks - len(chunks))
