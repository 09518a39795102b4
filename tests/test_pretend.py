"""The doctor at 1,024 ranks, on one CPU: what it names in broken programs, and that it lets sound ones pass."""

import json
import re

import pytest

from course.predict.fit import ring_seconds
from tests import runner
from tests.test_doctor import written

TRAINING = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, local_rank, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "file")
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
torch.manual_seed(rank)
images = TensorDataset(torch.randn(8192, 4), torch.randn(8192, 1))
plain = nn.Linear(4, 1).cuda()
model = DistributedDataParallel(plain, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3 * ranks)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
sampler = DistributedSampler(images)
loader = DataLoader(images, 2, sampler=sampler, num_workers=2, pin_memory=True)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = (model(x.cuda(non_blocking=True)) - y.to(local_rank)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
    dist.all_reduce(torch.ones(1))
if rank == 0:
    torch.save(plain.state_dict(), file)
dist.destroy_process_group()
"""
GLOBAL_0 = "if rank == 0:\n    open(file, 'w').close()\ndist.barrier()\nopen(file).close()\ntorch.manual_seed"
OUT = "for _ in range(ranks)]\n    dist.all_gather({}, torch.zeros(2048))\n    dist.all_reduce"
BROKEN = [  # what is changed in the training above, together: (old, new, the finding, its level, what its line has)
    [("set_device(local_rank)", "set_device(rank)", "device_is_rank", "wrong", "set_device(rank)"),
     ("dist.all_reduce", f"out = [torch.zeros(2048) {OUT.format('out')}", "gathers_all", "worth a look", "all_gather"),
     ("if rank == 0:\n    torch.save", "if True:\n    torch.save", "every_rank_writes", "wrong", "torch.save"),
     ("total_iters=2", "total_iters=500", "warm_up", "worth a look", "warm ="),
     ("1e-3 * ranks", "0.1", "rate", "worth a look", "optimizer.step")],
    [("nn.Linear(4, 1).cuda()", "nn.Linear(4, 1).to(rank)", "device_is_rank", "wrong", "to(rank)"),
     ('"nccl")', '"nccl", init_method=f"tcp://{__import__(\'socket\').gethostname()}:29500")', "meeting_place", "wrong",
      "tcp"),
     ("8192", "600", "repeated", "costly", "for x, y")],
    [("torch.cuda.set_device(local_rank)\n", "local_rank = 0\n", "all_on_gpu_0", "wrong", "model ="),
     ("dist.init", "os.environ['MASTER_PORT'] = str(2000 + rank)\ndist.init", "meeting_place", "wrong", "dist.init")],
    [("torch.manual_seed", GLOBAL_0, "fetched_by_rank_0", "worth a look", "open(file).close"),
     ('"nccl")', '"nccl", rank=rank, world_size=8)', "world_size", "wrong", "world_size=8")],
    [("DataLoader(images, 2", "DataLoader(images, 64, drop_last=True", "no_step", "wrong", "for x, y")],
    [("DataLoader(images, 2", "DataLoader(images, 512 // ranks", "crashed", "wrong", "loader ="),
     ("512 // ranks", "512 // ranks", "no_step", "wrong", "loader =")],
]


def pretend(folder, *arguments, **env):
    """(finished process, its report)"""
    out = folder / "report.json"
    done = runner.run(0, "doctor", "--json", out, "--pretend", *arguments, script="-m", **env)
    return done, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.parametrize("changes", runner.sampled(BROKEN),
                         ids=[" ".join(change[2] for change in changes) for changes in BROKEN])
def test_mistakes_that_many_ranks_show_are_named_with_their_lines(changes, tmp_path):
    text = TRAINING
    for old, new, *_ in changes:
        text = text.replace(old, new)
    done, report = pretend(tmp_path, "128x8", written(tmp_path, text))
    found = {each["name"]: each for each in report["findings"]}
    for _, _, finding, level, on_its_line in changes:
        assert finding in found and found[finding]["level"] == level and done.returncode == 1, done.stderr
        assert on_its_line in text.splitlines()[int(found[finding]["where"].rpartition(":")[2]) - 1], found
    others = found.keys() - {change[2] for change in changes}
    assert not {"wrong", "costly"} & {found[other]["level"] for other in others}, done.stderr


def test_a_sound_training_is_counted(tmp_path):
    done, report = pretend(tmp_path, "128x8", "--alpha", 1e-5, "--beta", 1e-9, written(tmp_path, TRAINING))
    assert report["findings"] == [] and done.returncode == 0, done.stderr
    _, counted, holds, sends, band = report["facts"]
    assert counted == ("An update has 1,024 x 2 = 2,048 samples. An epoch has 4 updates, and takes 8,192 samples of "
                       "8,192: 0 are repeated, 0 left out.")
    assert "20 bytes of weights, 20 bytes of gradients, 0 bytes" in holds
    assert sends == "A step sends 1 x all_reduce in a group of 1,024, 20 bytes in all."
    seconds = [ring_seconds(20, 128, 0, 1e-9), ring_seconds(20, 128, 1e-5, 2e-9)]  # lesson 08's
    assert [f"{1e3 * each:.3g} ms" for each in seconds] == re.findall(r"[\d.e-]+ ms", band)


SHARDED = """
import os
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
model = fully_shard(nn.Linear(1024, 1024, bias=False), mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(3):
    model(torch.ones(2, 1024, device="cuda")).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""
SMALL = ["--dataset", "synthetic", "--samples", 2000, "--test-samples", 1100, "--epochs", 1]


@pytest.mark.weekly
def test_fsdp2_holds_shards(tmp_path):
    done, report = pretend(tmp_path, "128x8", written(tmp_path, SHARDED))
    assert report["findings"] == [], done.stderr
    assert "4.1 kB of weights, 4.1 kB of gradients" in report["facts"][1]
    assert "all_gather in a group of 1,024, 4.19 MB" in report["facts"][2]
    assert "1 x reduce_scatter in a group of 1,024, 4.19 MB" in report["facts"][2]


@pytest.mark.weekly
def test_main_py_passes(tmp_path):
    done, report = pretend(tmp_path, "128x8", "main.py", *SMALL)
    assert not {"wrong"} & {finding["level"] for finding in report["findings"]}, done.stderr
    assert "needs" not in done.stderr and "own look" not in done.stderr, done.stderr


# Small forms of trainings that were reported: what is changed in the training above, what is found with so many ranks.
TESTED = """    with torch.no_grad():
        tests = DataLoader(TensorDataset(images.tensors[0][:20].tensor_split(ranks)[rank]), 2)
        sum(len(x) for x, in tests)
    dist.all_reduce"""
STREAM = """class Files(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (images[file] for file in range(rank, 20, ranks))
sampler = DistributedSampler(images)
loader = DataLoader(Files(), 2)
"""
LARGE_ONLY = [
    ("loader = DataLoader(images, 2,", "loader = DataLoader(images, 20 // ranks,",
     "From 3 x 8 = 24 ranks on", "loader ="),
    ("    dist.all_reduce", TESTED, "From rank 20 on, 12 of 32 ranks read", "sum(len"),
    ("sampler = DistributedSampler(images)\nloader = DataLoader(images, 2, sampler=sampler, num_workers=2, "
     "pin_memory=True)\n", STREAM, "From rank 20 on, 12 of 32 ranks end without an update", "optimizer.step"),
]


@pytest.mark.weekly
@pytest.mark.parametrize(("old", "new", "seen", "line"), LARGE_ONLY)
@pytest.mark.timeout(500)
def test_data_for_fewer_ranks_than_there_are(tmp_path, old, new, seen, line):
    """With 32 ranks the first rank without data is named, or the first number of ranks; with 16 nothing is found."""
    assert TRAINING.count(old) == 1
    script = written(tmp_path, TRAINING.replace(old, new))
    done, report = pretend(tmp_path, "4x8", script, limit=280)
    found, = (finding for finding in report["findings"] if finding["name"] == "no_step")
    assert found["seen"].startswith(seen), done.stderr
    assert line in script.read_text().splitlines()[int(found["where"].rpartition(":")[2]) - 1]
    few = pretend(tmp_path, "2x8", script)[1]
    assert "no_step" not in {finding["name"] for finding in few["findings"]}


@pytest.mark.weekly
def test_the_first_rank_of_each_node_saves_one_path(tmp_path):
    script = written(tmp_path, TRAINING.replace("if rank == 0:", "if local_rank == 0:"))
    found = {finding["name"]: finding["seen"] for finding in pretend(tmp_path, "4x8", script)[1]["findings"]}
    assert "Ranks 0 and 8" in found["every_rank_writes"]
    assert "every_rank_writes" not in {finding["name"] for finding in pretend(tmp_path, "1x8", script)[1]["findings"]}


@pytest.mark.weekly
def test_a_rank_is_ended_in_time(tmp_path):
    done, report = pretend(tmp_path, "1x2", "--timeout", 8, written(tmp_path, "import time\ntime.sleep(99)\n"))
    assert done.returncode == 0 and "Rank 1 was ended after 8 s" in report["unjudged"][1], done.stderr


@pytest.mark.parametrize(("options", "said"), [
    (["128"], "128 is no job"), (["1x1"], "1x1 is no job"), (["2x2", "--alpha", 1], "go together")])
def test_bad_input_is_one_line(options, said, doctor_ended):
    status, _, errors = doctor_ended("--pretend", *options, "main.py")
    assert status == 2 and len(errors.splitlines()) == 1 and said in errors, errors
