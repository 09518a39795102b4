"""The doctor: what it finds in broken programs, that it is silent about sound ones, and that it always ends."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time

import launch
import pytest

from course import gallery_table

BROKEN = launch.ROOT / "scripts" / "broken"
FOUND = {  # entry of the gallery: what the doctor calls it, where that is another name
    "ddp_module": "ddp_module", "every_rank_writes": "every_rank_writes", "frozen_late": "frozen_late",
    "hang_different": "hang_different", "hang_rank_0": "hang_different", "hang_uneven": "hang_uneven",
    "iterable_unsharded": "iterable_unsharded", "map_location": "map_location", "module_prefix": "module_prefix",
    "no_sync": "no_sync", "optimizer_left_out": "optimizer_left_out", "other_weights": "other_weights",
    "padded_evaluation": "padded_evaluation", "ready_twice": "ready_twice", "set_epoch": "set_epoch",
    "slower": "slower", "unused_parameter": "unused_parameter", "weights_only": "weights_only",
}
# These compute by hand what the doctor sees at torch's seams only, start processes of their own, or need a GPU.
MISSED = {"address_in_use", "all_download", "all_on_gpu_0", "average_of_averages", "batch_per_process", "batchnorm",
          "busbw", "dp_gpu_0", "local_rank", "notebook_spawn", "rank_0_loss", "same_seed", "slurm_rendezvous",
          "wrong_traceback"}
# It does not look for these yet.
MISSED |= {"clip_early", "clip_scaled", "compiled_prefix", "lazy_module", "replaced_head", "resume_mid_epoch",
           "step_between", "unequal_tokens"}


def doctor(ranks, script, *options, timeout=60, out=None, **env):
    """(finished process, names of the findings or None where there was no report)."""
    done = launch.run(ranks, "course.doctor", "--timeout", timeout, *(["--json", out] if out else []), script, *options,
                      script="-m", **env)
    return done, [one["name"] for one in json.loads(out.read_text())["findings"]] if out and out.exists() else None


def written(folder, text):
    path = folder / "my_train.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_broken_program_gets_its_finding(name, tmp_path):
    entry = next(one for one in gallery_table.read_table().values() if getattr(one, "name", "") == name)
    done, found = doctor(getattr(entry, "ranks", 2), BROKEN / f"{name}.py", out=tmp_path / "found.json")
    assert found == [FOUND[name]] and done.returncode, done.stderr
    finding = json.loads((tmp_path / "found.json").read_text())["findings"][0]
    assert finding["where"].startswith(f"scripts/broken/{name}.py:"), finding


@pytest.mark.parametrize("name", sorted(set(FOUND) | {"batchnorm", "busbw", "rank_0_loss", "same_seed"}))
def test_a_repaired_program_gets_none(name, tmp_path):
    done, found = doctor(2, BROKEN / f"{name}_repaired.py", out=tmp_path / "found.json")
    assert found == [] and done.returncode == 0, done.stderr


def test_the_lists_are_those_of_the_gallery_and_the_readme_counts_them():
    readme = (launch.ROOT / "README.md").read_text()
    assert f"| {len(FOUND)} of {len(FOUND) + len(MISSED)} |" in readme
    assert f"| {len(CHANGES)} of {len(CHANGES)} |" in readme
    assert all(f"`{name}`" in readme for name in MISSED)
    assert set(FOUND) | MISSED == {one.name for one in gallery_table.read_table().values() if hasattr(one, "name")}
    assert not set(FOUND) & MISSED


SMALL = ["--dataset", "synthetic", "--samples", 301, "--test-samples", 101, "--epochs", 2, "--device", "cpu"]


@pytest.mark.parametrize(("script", "options"), [
    ("main.py", SMALL), ("main.py", [*SMALL, "--strategy", "ddp", "--comm-hook", "bf16"]),
    ("scripts/rivals/fabric_loop.py", SMALL), ("scripts/rivals/accelerate_loop.py", SMALL)])
def test_sound_programs_get_none(script, options, tmp_path):
    needed = {"fabric_loop.py": "lightning_fabric", "accelerate_loop.py": "accelerate"}.get(script.rpartition("/")[2])
    if needed and not importlib.util.find_spec(needed):
        pytest.skip(f"{needed} is not installed (requirements-optional.txt)")
    done, found = doctor(2, script, *options, out=tmp_path / "found.json")
    assert found == [] and done.returncode == 0, done.stderr


def test_the_program_that_learners_imitate_gets_none(tmp_path):
    done, found = doctor(2, "--steps", 20, "scripts/lessons/minimal_ddp.py", out=tmp_path / "found.json")
    assert found == [] and done.returncode == 0, done.stderr


TRAINING = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
images = TensorDataset(torch.randn(60, 4), torch.randn(60, 1))
tests = TensorDataset(torch.randn(31, 4), torch.randn(31, 1))
plain = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
torch.manual_seed(rank)
model = DistributedDataParallel(plain)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(images)
loader = DataLoader(images, 5, sampler=sampler)
mine = torch.utils.data.Subset(tests, range(rank, len(tests), ranks))
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    plain.eval()
    sums = torch.zeros(2)
    with torch.no_grad():
        for x, y in DataLoader(mine, 5):
            sums += torch.tensor([(plain(x) - y).square().sum(), len(x)])
    dist.all_reduce(sums)
if rank == 0:
    torch.save(plain.state_dict(), __file__ + ".pt")
dist.destroy_process_group()
"""

CHANGES = {  # what is changed in the training above: the finding
    "same_data": (", sampler=sampler)", ", shuffle=True)"),
    "set_epoch": ("    sampler.set_epoch(epoch)\n", ""),
    "padded_evaluation": ("DataLoader(mine, 5)",
                          "DataLoader(tests, 5, sampler=DistributedSampler(tests, shuffle=False))"),
    "rank_0_loss": ("    dist.all_reduce(sums)\n", ""),
    "not_wrapped": ("model = DistributedDataParallel(plain)", "model = plain"),
    "ddp_module": ("(model(x) - y)", "(plain(x) - y)"),
    "same_seed": ("torch.manual_seed(rank)\n", ""),
    "optimizer_misses": ("model.parameters(), lr", "plain[0].parameters(), lr"),
    "optimizer_foreign": ("SGD(model.parameters()", "SGD(nn.Linear(4, 8).requires_grad_().parameters()"),
    "clip_early": ("        loss = (model(x) - y).square().mean()\n        optimizer.zero_grad()\n"
                   "        loss.backward()\n",
                   "        optimizer.zero_grad()\n        with model.no_sync():\n"
                   "            loss = (model(x) - y).square().mean()\n            loss.backward()\n"
                   "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                   "        for one in model.parameters():\n            dist.all_reduce(one.grad / ranks)\n"
                   "            one.grad.zero_()\n"),
    "drift": ("        optimizer.step()\n", "        optimizer.step()\n        if rank == 1:\n"
              "            plain[0].weight.data += 0.1\n"),
    "every_rank_writes": ("if rank == 0:\n    torch.save", "if True:\n    torch.save"),
    "module_prefix": ("torch.save(plain.", "torch.save(model."),
    "not_destroyed": ("dist.destroy_process_group()", ""),
}


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sound_training_gets_none(ranks, tmp_path):
    done, found = doctor(ranks, written(tmp_path, TRAINING), out=tmp_path / "found.json")
    assert found == [] and done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CHANGES)
def test_one_mistake_in_a_training_is_the_one_finding(name, tmp_path):
    old, new = CHANGES[name]
    assert old in TRAINING
    done, found = doctor(2, written(tmp_path, TRAINING.replace(old, new)), out=tmp_path / "found.json")
    assert found == [name] and done.returncode == 1, done.stderr


def test_steps_end_it_early(tmp_path):
    done, found = doctor(2, "--steps", 3, written(tmp_path, TRAINING), out=tmp_path / "found.json")
    assert found == [] and done.returncode == 0 and "3 updates, each of 2 x 5 = 10 samples" in done.stderr, done.stderr


# ---------------------------------------------------------------------------------------------------- unruly scripts


UNRULY = {  # name: (script, exit status, what must be said)
    "raises": ("import torch.distributed as dist\ndist.init_process_group('gloo')\n1 / 0\n", 1, "ZeroDivisionError"),
    "exits": ("import sys\nsys.exit(7)\n", 7, "It made no process group."),
    "exits with a word": ("import sys\nsys.exit('a word')\n", 1, "a word"),
    "leaves at once": ("import os\nos._exit(5)\n", 5, "os._exit(5)"),
    "no group": ("print('hello')\n", 0, "It made no process group."),
    "replaces print": ("import builtins\nbuiltins.print = None\n", 0, "doctor: nothing found."),
    "starts threads": ("import threading\nthreading.Thread(target=print, args=('hi',)).start()\n", 0, "nothing found"),
    "forks": ("import os\nif not os.fork():\n    os._exit(0)\nos.wait()\n", 0, "nothing found"),
    "is no Python": ("this is\n", 1, "SyntaxError"),
}


@pytest.mark.parametrize("name", UNRULY)
def test_an_unruly_script_ends_as_it_would_and_is_told(name, tmp_path):
    text, status, said = UNRULY[name]
    done, _ = doctor(2, written(tmp_path, text))
    assert done.returncode == status and said in done.stderr, done.stderr


HANG = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(1000)
dist.barrier()
"""


def test_a_hang_is_bounded_and_both_places_are_named(tmp_path):
    begin = time.monotonic()
    out = tmp_path / "found.json"
    done, found = doctor(2, written(tmp_path, HANG), timeout=4, out=out)
    assert time.monotonic() - begin < 60 and done.returncode == 1 and found == ["hang_rank_0"]
    said = json.loads(out.read_text())["findings"][0]["seen"]
    assert re.search(r"rank 0: `barrier` at \S*my_train.py:7; rank 1: none: it is at \S*my_train.py:6\.", said), said


def test_a_copy_of_the_folder_serves_under_torchrun(tmp_path):
    """As on a cluster: nothing of the course is there."""
    shutil.copytree(launch.ROOT / "course" / "doctor", tmp_path / "doctor",
                    ignore=shutil.ignore_patterns("__pycache__"))
    script = written(tmp_path, TRAINING.replace("    sampler.set_epoch(epoch)\n", ""))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "doctor",
                           script.name], cwd=tmp_path, env=launch.environment(PYTHONPATH=None), capture_output=True,
                          text=True, timeout=launch.LIMIT)
    assert done.returncode == 1 and "doctor: wrong: my_train.py:" in done.stderr and "set_epoch" in done.stderr


@pytest.mark.parametrize(("options", "said"), [
    (["no_such.py"], "there is no script no_such.py"), (["--timeout", 0, "main.py"], "0 is not a positive number"),
    (["--steps", "x", "main.py"], "invalid"), (["--json", "/no/such/folder/x", "main.py"], "there is no folder"),
    ([], "the following arguments are required: script")])
def test_bad_input_is_one_line_and_status_2(options, said):
    done = launch.run(0, "course.doctor", *options, script="-m")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and said in done.stderr, done.stderr
