"""The doctor: what it finds in broken programs, that it is silent about sound ones, and that it always ends."""

import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from course.rendezvous import free_port
from doctor import __version__, laws
from doctor.report import known
from gallery import guide
from gallery.table import read_messages, read_table
from lessons.l07_traps import capstone, test_capstone
from tests import runner

ABORTED = "terminate called without an active exception"  # by gloo, when all is over: TROUBLESHOOTING, entry 28
TABLE = read_table()
FOUND = {name: entry.doctor for name, entry in TABLE.items() if entry.doctor}
README = (runner.ROOT / "doctor/README.md").read_text()
# Sound programs. (In wrong_traceback only the message is repaired: the run fails all the same.)
REPAIRED = sorted(set(FOUND) - {"wrong_traceback"} | {
    "batchnorm", "busbw", "rank_0_loss", "resume_mid_epoch", "same_seed", "unequal_tokens"})


def doctor(ranks, script, *options, folder, timeout=60, start=runner.run, **env):
    """(finished process, names of the findings or None where there was no report, which goes into `folder`)."""
    out = folder / "report.json"
    done = start(ranks, "doctor", "--timeout", timeout, "--json", out, script, *options, script="-m", **env)
    return done, [finding["name"] for finding in findings(folder)] if out.exists() else None


def findings(folder):
    return json.loads((folder / "report.json").read_text())["findings"]


def written(folder, text):
    path = folder / "my_train.py"
    path.write_text(text)
    return path


def ranks(name):
    return 0 if TABLE[name].run == "python {script}" else TABLE[name].ranks


@pytest.mark.parametrize("name", runner.sampled(sorted(name for name in FOUND if "hang" not in name)))
def test_a_broken_program_gets_its_finding(name, tmp_path):
    # started by hand, rank 0 would take the store along as it fails, and the others could say nothing of it
    start = runner.torchrun if name == "wrong_traceback" else runner.run
    done, names = doctor(ranks(name), TABLE[name].program, folder=tmp_path, start=start)
    assert names == [FOUND[name]] and done.returncode, done.stderr
    assert findings(tmp_path)[0]["where"].startswith(f"{TABLE[name].program}:")


@pytest.mark.weekly
@pytest.mark.parametrize("name", REPAIRED)
def test_a_repaired_program_gets_none(name, tmp_path):
    done, names = doctor(ranks(name), written(tmp_path, TABLE[name].text("repaired")), folder=tmp_path)
    assert names == [] and done.returncode == 0, done.stderr


SMALL = ["--dataset", "synthetic", "--samples", 301, "--test-samples", 101, "--epochs", 2, "--device", "cpu"]


PROGRAMS = [
    ("main.py", SMALL), pytest.param("main.py", [*SMALL, "--comm-hook", "bf16"], marks=pytest.mark.weekly),
    pytest.param("scripts/rivals/fabric_loop.py", SMALL, marks=pytest.mark.weekly),
    pytest.param("scripts/rivals/accelerate_loop.py", SMALL, marks=pytest.mark.weekly),
    pytest.param("examples/minimal_ddp.py", [], marks=pytest.mark.weekly)]


@pytest.mark.parametrize(("script", "options"), PROGRAMS)
def test_sound_programs_get_none(script, options, tmp_path):
    needed = {"fabric_loop.py": "lightning_fabric", "accelerate_loop.py": "accelerate"}.get(script.rpartition("/")[2])
    if needed and not importlib.util.find_spec(needed):
        pytest.skip(f"{needed} is not installed (pip install -e '.[rivals]')")
    steps = ["--steps", 20] if "minimal" in script else []
    done, names = doctor(2, *steps, script, *options, folder=tmp_path)
    assert names == [] and done.returncode == 0, done.stderr


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

SOON = ('"gloo")', '"gloo", timeout=__import__("datetime").timedelta(seconds=8))')  # for ranks that wait
CHANGES = {  # the findings: what is changed in the training above
    "module_prefix not_destroyed padded_evaluation same_seed wrapped_twice": (
        "torch.save(plain.", "torch.save(model.", "dist.destroy_process_group()", "", "torch.manual_seed(rank)\n", "",
        "DataLoader(mine, 5)", "DataLoader(tests, 5, sampler=DistributedSampler(tests, shuffle=False))",
        "DistributedDataParallel(plain)", "DistributedDataParallel(DistributedDataParallel(plain))"),
    "no_eval no_zero_grad": ("    plain.eval()\n", "", "        optimizer.zero_grad()\n", "", "model = Dist",
                             "plain[0].bias.requires_grad_(False)\nmodel = Dist"),
    "not_wrapped": ("model = DistributedDataParallel(plain)", "model = plain"),
    "optimizer_foreign": ("SGD(model.parameters()", "SGD(nn.Linear(4, 8).requires_grad_().parameters()"),
    "other_shapes": ("nn.Linear(4, 8)", "nn.Linear(4, 8 + dist.get_rank())"),
    "parted: stopped": (*SOON, "    dist.all_reduce(sums)\n", "    if rank:\n        break\n"),
    "parted: skipped": (*SOON, "        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n"
                         "        if rank and epoch:\n            continue\n",
                         "    dist.all_reduce(sums)\n", "    __import__('time').sleep(2)\n    dist.all_reduce(sums)\n"),
    "unsynchronised_step": ("        loss = (model(x) - y).square().mean()\n        optimizer.zero_grad()\n"
        "        loss.backward()\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "        optimizer.zero_grad()\n        (model(x) - y).square().mean().backward()\n"
        "        with model.no_sync():\n            (model(x) - y).square().mean().backward()\n"),
    "resumed_apart": ("lr=0.1)\n", "lr=0.1, momentum=0.9)\nif rank == 1:\n    for one in model.parameters():\n"
                      "        optimizer.state[one]['momentum_buffer'] = torch.ones_like(one)\n"
                      "    optimizer.load_state_dict(optimizer.state_dict())\n"),
    "split_on_each_rank": ("mine = ", "images, tests = torch.utils.data.random_split(images, [30, 30])\n"
        "sampler = DistributedSampler(images)\nloader = DataLoader(images, 5, sampler=sampler)\nmine = "),
    "other_labels": ("torch.randn(60, 1))\n", "(torch.arange(60) + rank) % 7)\n",
                     "(model(x) - y)", "(model(x) - y.float()[:, None])"),
}


def changed(parts):
    """The training above, with each `old` of (old, new, old, new, ...) replaced."""
    text = TRAINING
    for old, new in zip(parts[::2], parts[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.weekly
def test_a_sound_training_gets_none_on_three_ranks(tmp_path):
    done, names = doctor(3, written(tmp_path, TRAINING), folder=tmp_path)
    assert names == [] and done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", runner.sampled(CHANGES))
def test_mistakes_in_a_training_are_the_only_findings(name, tmp_path):
    done, names = doctor(2, written(tmp_path, changed(CHANGES[name])), folder=tmp_path)
    assert sorted(names) == name.partition(":")[0].split() and done.returncode, done.stderr
    if names == ["parted"]:  # the branch, and no barrier or backward behind it
        text = (tmp_path / "my_train.py").read_text().splitlines()
        assert "if rank" in text[int(findings(tmp_path)[0]["where"].rpartition(":")[2]) - 1], done.stderr


@pytest.mark.weekly
@runner.in_a_group_of_one
def test_an_error_of_torch_is_known_by_its_message():
    import torch.distributed as dist
    from torch import nn, ones
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    mistakes = {
        "wrapper_attribute": DistributedDataParallel(nn.Linear(1, 1)).__getattr__,
        "nothing_to_train": lambda _: DistributedDataParallel(nn.ReLU()),
        "batch_of_one": lambda _: nn.BatchNorm1d(8)(ones(1, 8)),
        "sampler_and_shuffle": lambda _: DataLoader(ones(9), sampler=range(9), shuffle=True),
        "group_twice": dist.init_process_group,  # the group is there, so none is made
        "module_missing": __import__,
        "group_missing": lambda _: dist.destroy_process_group() or dist.get_rank(),
    }
    for name, mistake in mistakes.items():
        with pytest.raises(Exception) as caught:
            mistake("no_such_name")
        ended = {"how": "", "where": "", "error": str(caught.value), "status": 1}
        assert [finding.name for finding in laws.failures([{"rank": 0, "ended": ended}])] == [name]


@runner.in_a_group_of_one
def test_a_parameter_that_has_gone_leaves_its_number_to_no_other():
    import torch
    from torch.utils.weak import WeakIdKeyDictionary

    from doctor.hooks import Hooks

    hooks = object.__new__(Hooks)  # made in the usual way it would hook into this process
    hooks.numbers, hooks.number = WeakIdKeyDictionary(), itertools.count()
    assert len({hooks.number_of(torch.ones(1)) for _ in range(9)}) == 9


# ---------------------------------------------------------------------------------------------------- the capstone


# mistake of lesson 07's test_capstone.py: the finding; what the others do is no event, or ends in a plain error
CAPSTONE = {
    "never met": "no_group", "no sampler": "same_data", "shards overlap": "same_data", "same order": "set_epoch",
    "not wrapped": "not_wrapped", "raw model called": "ddp_module", "always no_sync": "unsynchronised_step",
    "padded evaluation": "padded_evaluation", "images left out": "missing_data", "all save": "every_rank_writes",
    "module.": "module_prefix", "only rank 0 wraps": "parted", "more steps on one rank": "parted",
    "rank 1 hangs": "parted", "rank 1 dies": "wrong_traceback",
}


def on_small_sets(program, folder):
    """The program, saving there, and its options: the few images that the capstone's check gives it."""
    capstone.write_mnist(folder / "data")
    path = written(folder, program.replace("SAVE)", f"{str(folder / 'saved.pt')!r})"))
    return path, "--data", folder / "data"


@pytest.mark.weekly
@pytest.mark.parametrize("name", CAPSTONE)
def test_a_mistake_in_the_capstone_is_the_one_finding(name, tmp_path):
    program = test_capstone.edited(test_capstone.MISTAKES[name][0])
    # without a group and a launcher's store the doctors of three ranks never meet
    start = runner.torchrun if name == "never met" else runner.run
    done, names = doctor(3, *on_small_sets(program, tmp_path), folder=tmp_path, timeout=8, start=start)
    assert names == [CAPSTONE[name]] and done.returncode, done.stderr


@pytest.mark.weekly
@pytest.mark.parametrize("name", [name for name in test_capstone.RIGHT if "join" not in name])  # site/pages/doctor.md
def test_a_right_capstone_gets_none(name, tmp_path):
    start = runner.torchrun if "in parallel" in name else runner.run  # forked ranks cannot have workers
    program = on_small_sets(test_capstone.edited(test_capstone.RIGHT[name]), tmp_path)
    done, names = doctor(3, *program, folder=tmp_path, start=start)
    assert names == [] and (done.returncode == 0 or ABORTED in done.stderr), done.stderr
    assert "own look" not in done.stderr


# ---------------------------------------------------------------------------------------------------- other starts

SPAWNED = """
import os, sys
import torch.multiprocessing as mp

def train(rank, ranks):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1], "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    BODY

if __name__ == "__main__":
    mp.spawn(train, (2,), 2)
"""
# The same with names of its own, which it imported before the doctor came.
SPAWNED_BY_NAME = SPAWNED.replace("mp.spawn", "spawn").replace("import torch.multiprocessing as mp\n", """
from torch.distributed import init_process_group
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel as DDP
""")
STARTED = SPAWNED.replace("mp.spawn(train, (2,), 2)\n", "ranks = [mp.Process(target=train, args=(rank, 2)) for rank in "
                          "range(2)]\n    [rank.start() for rank in ranks]\n    [rank.join() for rank in ranks]\n")


@pytest.mark.weekly
@pytest.mark.parametrize(("script", "old", "new", "expected"), [
    (SPAWNED, "", "", []),
    (SPAWNED, ", sampler=sampler)", ", shuffle=True)", ["same_data"]),
    (STARTED, ", sampler=sampler)", ", shuffle=True)", ["same_data"]),
    (SPAWNED, "for epoch", "1 / (1 - rank)\nfor epoch", ["wrong_traceback"]),
    (SPAWNED_BY_NAME, ", sampler=sampler)", ", shuffle=True)", ["same_data"])],
    ids=["sound", "same data", "by Process", "an error", "names of its own"])
def test_processes_that_the_script_spawns_are_looked_at(script, old, new, expected, tmp_path):
    body = TRAINING.replace(old, new)
    if script == SPAWNED_BY_NAME:
        body = body.replace("dist.init_process_group", "init_process_group").replace(
            "from torch.nn.parallel import DistributedDataParallel\n", "").replace("DistributedDataParallel", "DDP")
    path = written(tmp_path, script.replace("BODY", body.replace("\n", "\n    ")))
    done, names = doctor(0, path, free_port(), folder=tmp_path)
    assert names == expected and done.returncode == bool(expected), done.stderr
    assert len(re.findall(r"^doctor: (nothing found|\d+ findings?)\.$", done.stderr, re.M)) == 1, done.stderr


def test_ranks_that_never_meet_are_judged_alone(tmp_path):
    done, names = doctor(0, written(tmp_path, "print('hello')\n"), folder=tmp_path, RANK="0", WORLD_SIZE="2")
    assert names == [] and "Only one rank ran" in done.stderr and "made no process group" in done.stderr, done.stderr


@pytest.mark.weekly
def test_the_weights_after_the_last_step_are_compared(tmp_path):
    text = TRAINING.replace("dist.destroy", "if rank:\n    plain[0].weight.data += 1\ndist.destroy")
    done, names = doctor(2, written(tmp_path, text), folder=tmp_path)
    assert names == ["drift"], done.stderr


@pytest.mark.weekly
def test_steps_end_it_early(tmp_path):
    done, names = doctor(2, "--steps", 3, written(tmp_path, TRAINING), folder=tmp_path)
    assert names == [] and done.returncode == 0 and "3 updates, of 10 samples on average" in done.stderr, done.stderr


# ---------------------------------------------------------------------------------------------------- unruly scripts


UNRULY = {  # name: (script, exit status, what must be said)
    "raises": ("import torch.distributed as dist\ndist.init_process_group('gloo')\n1 / 0\n", 1, "ZeroDivisionError"),
    "exits": ("import sys\nsys.exit(7)\n", 7, "Every rank failed: exit status 7."),
    "exits with a word": ("import sys\nsys.exit('a word')\n", 1, "a word"),
    "leaves at once": ("import os\nos._exit(5)\n", 5, "os._exit(5)"),
    "starts a thread, forks, replaces print": (
        "import builtins, os, threading\nthreading.Thread(target=print, args=('hi',)).start()\n"
        "if not os.fork():\n    os._exit(0)\nos.wait()\nbuiltins.print = None\n", 0, "doctor: nothing found."),
    "is no Python": ("this is\n", 1, "SyntaxError"),
}


@pytest.mark.parametrize("name", runner.sampled(UNRULY))
def test_an_unruly_script_ends_as_it_would_and_is_told(name, tmp_path):
    text, status, said = UNRULY[name]
    done, _ = doctor(2, written(tmp_path, text), folder=tmp_path)
    assert done.returncode == status and said in done.stderr, done.stderr
    assert ("nothing found" in done.stderr) == (status == 0), done.stderr


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
    done, names = doctor(2, written(tmp_path, HANG), timeout=2, folder=tmp_path)
    assert time.monotonic() - begin < 60 and done.returncode == 1 and names == ["parted"]
    finding = findings(tmp_path)[0]
    assert finding["where"].endswith("my_train.py:5") and finding["law"] == 6  # the branch
    assert re.search(r"Rank 0: .*in `barrier` at \S*my_train.py:7.*Rank 1: .*at \S*my_train.py:6", finding["seen"])


@pytest.mark.weekly
def test_a_rank_that_works_while_the_others_wait_is_no_hang(tmp_path):
    busy = "end = time.monotonic() + 5\n    while time.monotonic() < end:\n        sum(range(999))"
    script = written(tmp_path, HANG.replace("time.sleep(1000)", busy) + "dist.destroy_process_group()\n")
    done, names = doctor(2, script, timeout=2, folder=tmp_path)
    assert names == [] and done.returncode == 0, done.stderr


@pytest.mark.weekly
def test_a_rank_that_is_killed_at_the_end_is_told_by_the_other(tmp_path):
    kill = "dist.destroy_process_group()\nimport os, time\nif rank:\n    time.sleep(3)\n    os.kill(os.getpid(), 9)\n"
    script = written(tmp_path, TRAINING.replace("dist.destroy_process_group()\n", kill))
    begin = time.monotonic()
    done, names = doctor(2, script, folder=tmp_path, start=runner.torchrun)  # which ends the other rank
    assert names == ["silent"] and done.returncode and time.monotonic() - begin < 60, done.stderr


@pytest.mark.weekly
def test_a_copy_of_the_folder_serves_under_torchrun_where_loaders_have_workers(tmp_path):
    """As on a cluster: nothing of the course is there."""
    shutil.copytree(runner.ROOT / "doctor", tmp_path / "doctor", ignore=shutil.ignore_patterns("__pycache__"))
    script = written(tmp_path, TRAINING.replace("    sampler.set_epoch(epoch)\n", "").replace(
        "DataLoader(images, 5,", "DataLoader(images, 5, num_workers=1,").replace("DataLoader(mine, 5)", "[mine[0]]"))
    command = runner.command(2, "-m", "doctor", "--json", "report.json", script.name)
    done = subprocess.run(command, cwd=tmp_path, env=runner.environment(PYTHONPATH=None), capture_output=True,
                          text=True, timeout=runner.LIMIT)
    assert done.returncode == 1 and "doctor: wrong: my_train.py:" in done.stderr, done.stderr
    assert "More: TROUBLESHOOTING.md, entry 6\n" in done.stderr
    assert done.stderr.splitlines()[-2].endswith(": The doctor found set_epoch: see its report above.")  # torchrun's
    report = json.loads((tmp_path / "report.json").read_text())
    (finding,), types = report["findings"], {str: "string", list: "list", int: "number", dict: "object"}
    assert finding["name"] == "set_epoch"
    parts = report | {f"findings[].{key}": value for key, value in finding.items()} | {
        "findings[].usually[]": "a title"} | {
        f"{key}[]": report[key][0] for key in ("facts", "unjudged")}
    documented = re.findall(r"^\| `([a-z.[\]]+)` \| (\w+) \|", README.partition("## JSON")[2], re.M)
    assert {key: types[type(value)] for key, value in parts.items()} == dict(documented)


@pytest.mark.weekly
def test_the_installed_tool_runs_from_any_folder(tmp_path):
    source, target = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(runner.ROOT / "doctor", source, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index",
                    "--target", target, source], check=True, timeout=runner.LIMIT)
    script = written(tmp_path, "import doctor\nprint(doctor.__file__)\n")
    done = subprocess.run([sys.executable, target / "bin/ddp-doctor", script], cwd=target / "bin", capture_output=True,
                          text=True, env=runner.environment(PYTHONPATH=target))
    assert done.returncode == 0 and done.stdout == f"{target / 'doctor/__init__.py'}\n", done.stderr
    assert {"SKILL.md", "entries.json", "laws.toml"} < {path.name for path in (target / "doctor").iterdir()}
    assert (target / f"ddp_doctor-{__version__}.dist-info").is_dir()


def test_every_finding_is_explained_and_stands_in_the_readme_and_its_entry_exists(doctor_ended):
    listed = re.findall(r"`(\w+)`", README.partition("## The eight laws")[2].partition("[CASES")[0])
    assert sorted(listed) == sorted(known()), "doctor/README.md: the findings"
    assert {name for message in read_messages() for name in (message.doctor, *message.leads)} <= {"", *known()}
    assert doctor_ended("--version") == (0, f"ddp-doctor {__version__}\n", "")
    assert [line.split()[0] for line in doctor_ended("--explain")[1].splitlines()] == sorted(known())
    said = " ".join(doctor_ended("--explain", "every_rank_writes")[1].split())
    assert laws.TABLE["every_rank_writes"]["repair"] in said and "every_rank_writes: worth a look" in said
    assert said.endswith(f" More: TROUBLESHOOTING.md, entry {TABLE['every_rank_writes'].number}")


def test_entries_have_links_once_the_course_is_published(tmp_path, monkeypatch):
    monkeypatch.setattr(guide, "ROOT", tmp_path)
    (tmp_path / "CITATION.cff").write_text('version: "1.2"\nrepository-code: "https://github.com/ann/course"\n')
    assert guide.doctors_entries()["set_epoch"]["link"] == (
        "https://github.com/ann/course/blob/v1.2/TROUBLESHOOTING.md#6-the-same-order-in-every-epoch")


@pytest.mark.parametrize(("options", "said"), [
    (["no_such.py"], "there is no script no_such.py"), (["--timeout", 0, "main.py"], "0 is not a positive number"),
    (["--scale", "--film", "x.html", "main.py"], "--scale goes alone"),
    (["--steps", "x", "main.py"], "x are no steps"), (["--json", "/no/such/folder/x", "main.py"], "there is no folder"),
    (["--json", ".", "main.py"], "is no regular file"), (["--json", "", "main.py"], "is no regular file"),
    (["--json", os.devnull, "main.py"], "is no regular file"), (["--explain", "sam_data"], "near it: same_data,"),
    (["--explain", "xyzzy"], "no finding xyzzy; --explain lists all"),
    ([], "name a script")])
def test_bad_input_is_one_line_and_status_2(options, said, doctor_ended):
    status, _, errors = doctor_ended(*options)
    assert status == 2 and len(errors.splitlines()) == 1 and said in errors, errors
