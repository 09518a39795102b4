"""memory.py and its command: the figures of the papers, and its choice. test_beyond_ddp.py counts on ranks."""

import subprocess
import sys

import pytest

from course import memory as model
from tests import runner

MAP = [(parameters, devices) for parameters in (1e8, 1e9, 5e9, 7e9, 30e9, 70e9, 4e11)
       for devices in (1, 2, 8, 64, 1024)]


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
    assert "ZeRO-1" not in model.choose(7e9, model.Cluster(8))[1]


def test_zero_1_as_pytorch_has_it_sends_the_parameters_after_the_update():
    plans = [model.plan(1e9, way, model.Cluster(8), 64, 8, "attention") for way in ("DDP", "ZeRO-1")]
    assert plans[1].communication - plans[0].communication == pytest.approx(4 * 1e9 * 7 / 8 / 450e9)
    assert plans[0].communication == 0, "behind backward"


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


# ------------------------------------------------------------------------------------------------ which way


@pytest.fixture(scope="module")
def chosen():
    return {cell: model.choose(cell[0], model.Cluster(cell[1])) for cell in MAP}


def test_the_choice_fits_uses_all_devices_and_is_nearly_the_fastest(chosen):
    ways = list(model.WAYS)
    for (_, devices), (plan, fits) in chosen.items():
        assert (plan is None) == (not fits)
        for each in fits.values():
            assert sum(each.bytes.values()) <= 72e9
            assert each.data * each.tensor * each.pipeline == devices
        if plan:
            limit = 1.35 * min(each.seconds for each in fits.values())
            assert plan.seconds <= limit
            simpler = [fits[way] for way in ways[:ways.index(plan.way)] if way in fits]
            assert all(each.seconds > limit for each in simpler)


def test_the_model_that_does_not_fit_in_ddp_does_when_it_is_shared_out(chosen):
    assert chosen[7e9, 1][0] is None
    assert "DDP" not in chosen[7e9, 8][1] and "FSDP" in chosen[7e9, 8][1]
    assert chosen[1e8, 8][0].way == "DDP" and chosen[1e8, 1][0].way == "one device"
    assert {plan.way for plan, _ in chosen.values() if plan} >= {"one device", "DDP", "ZeRO-1", "FSDP"}


def test_a_pipeline_is_for_slow_links_and_small_models_stay_with_ddp_there():
    slow = model.Cluster(128, between=100e9 / 8 / 8)
    assert [model.choose(size, slow)[0].way for size in (1e8, 3e11)] == ["DDP", "TP + PP + ZeRO-1"]


def test_more_devices_than_sequences_share_out_more_than_the_batch():
    assert [model.choose(1e9, model.Cluster(devices))[0].way for devices in (1024, 2048)] == ["DDP", "TP + FSDP"]


def test_slow_links_make_fsdp_slower_and_leave_a_node_alone():
    fast, slow = ({devices: model.choose(7e9, model.Cluster(devices, between=between))[1]["FSDP"].seconds
                   for devices in (8, 64)} for between in (50e9, 1e9))
    assert slow[64] > fast[64] and slow[8] == fast[8]


# ------------------------------------------------------------------------------------------------ the command


RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def run(*arguments, code=RUN):
    return subprocess.run([sys.executable, "-c", code, "scripts/measure/predict_memory.py", *map(str, arguments)],
                          cwd=runner.ROOT, capture_output=True, text=True, timeout=60)


def test_command_prints_the_choice_and_needs_no_torch():
    done = run("--parameters", 7e9, "--devices", 8, code=f"import sys; sys.modules['torch'] = None; {RUN}")
    assert done.returncode == 0, done.stderr
    (taken,) = [line for line in done.stdout.splitlines() if "take this" in line]
    plan, _ = model.choose(7e9, model.Cluster(8))
    assert taken.startswith(plan.way) and f"{sum(plan.bytes.values()) / 1e9:.1f}" in taken
    assert "nothing fits" in run("--parameters", 7e9, "--devices", 1).stdout


def test_devices_that_do_not_fill_a_node_are_refused_in_one_line():
    done = run("--parameters", 7e9, "--devices", 12)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "do not fill nodes of 8" in done.stderr
