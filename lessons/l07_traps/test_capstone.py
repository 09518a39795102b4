"""The capstone of lesson 07: each mistake gets its message, and a right program is right however it is written.

All programs are examples/minimal_ddp.py with some lines changed.
"""

import pytest

from course import exercise
from lessons.l07_traps import capstone
from tests import runner

ONE, MANY = (runner.ROOT.joinpath(f"examples/{name}.py").read_text() for name in ("minimal", "minimal_ddp"))
GROUP = 'dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=5))'
GPU = "torch.cuda.set_device(local_rank)"
SAMPLER = "sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)"
SET_EPOCH = "    sampler.set_epoch(epoch)  # without it every epoch has the order of the first\n"
TRAIN_LOADER = "DataLoader(train_set, BATCH // world_size, sampler=sampler)"
WRAP = "DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)"
SUMS = "    dist.all_reduce(sums)"
SAVE = "if rank == 0:\n    torch.save(model.state_dict(), SAVE)"

RIGHT = {
    "minimal_ddp.py": {},
    "gradients averaged by hand, losses in each step": {
        WRAP: "model\nfor tensor in model.state_dict().values():\n    dist.broadcast(tensor, 0)",
        "        optimizer.step()": "        for each in model.parameters():\n            dist.all_reduce(each.grad)\n"
        "            each.grad /= world_size\n        optimizer.step()",
        "sums[0] += loss.detach() * len(labels)":
            "dist.all_reduce(share := loss.detach() * len(labels))\n        sums[0] += share / world_size"},
    "images repeated, not left out, and loaded in parallel": {
        ", drop_last=True": "", "world_size, sampler=sampler)": "world_size, sampler=sampler, num_workers=1)"},
    "other options, and a file in another order": {
        WRAP: "DistributedDataParallel(model, bucket_cap_mb=1)", "manual_seed(rank)": "manual_seed(1234 + 7 * rank)",
        SUMS: "    all_sums = [0] * world_size\n    dist.all_gather_object(all_sums, sums)\n    sums = sum(all_sums)",
        "(model.state_dict(), SAVE)": "(dict(sorted(ddp_model.module.state_dict().items())), SAVE)"},
}
MISTAKES = {  # what is changed in minimal_ddp.py; a part of the message
    "never met": ({GROUP: "", '(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))': "0, 0, 1",
                   "dist.all_reduce(have_mnist, dist.ReduceOp.MIN)": "pass", WRAP: "model", SUMS: "    pass",
                   SAMPLER: "sampler = DistributedSampler(train_set, 1, 0)", "dist.destroy_process_group()": ""},
                  "the processes never met"),
    "no sampler": ({TRAIN_LOADER: TRAIN_LOADER.replace("sampler=sampler", "shuffle=True"), SET_EPOCH: ""},
                   "took all 210 images"),
    "shards overlap": ({SAMPLER: SAMPLER.replace("drop_last", "seed=rank, drop_last")}, "different ones of 210"),
    "same order": ({SET_EPOCH: ""}, "sampler.set_epoch(epoch)"),
    "not wrapped": ({WRAP: "model"}, "All must begin with the same weights"),
    "raw model called": ({"ddp_model(images)": "model(images)"}, "call the wrapper in training"),
    "always no_sync": ({"    model.train()": "    model.train(); ddp_model.require_backward_grad_sync = False"},
                       "All batches go through DDP"),
    "batch for each rank": ({"BATCH // world_size": "BATCH"}, "an update takes 192 images;"),
    "rate": ({"lr=0.01": "lr=0.01 * world_size"}, "Is the learning rate that of one process?"),
    "divided twice": ({"        loss.backward()": "        (loss / world_size).backward()"},
                      "the gradient is 0.5 times as large"),
    "blocks": ({SAMPLER: "sampler = DistributedSampler(train_set, 1, 0, shuffle=True)",
                "    for images, labels in train_loader:": """\
    block = list(sampler)[rank * 210 // world_size:(rank + 1) * 210 // world_size]
    for images, labels in DataLoader(train_set, BATCH // world_size, sampler=block):"""},
               "the images that one process takes in it"),
    "no zero_grad": ({"        optimizer.zero_grad()\n": ""}, "the order of zero_grad"),
    "all print": ({"    if rank == 0:\n        print(f\"Epoch": "    if True:\n        print(f\"Epoch"},
                  "printed 6 lines"),
    "rank 0's loss": ({SUMS: SUMS.replace("sums", "sums[2]")}, "the loss printed for epoch 0 is"),
    "mean of means": ({SUMS: f"    sums[2] /= len(shard)\n{SUMS}", "sums[2] / len(test_set)": "sums[2] / world_size"},
                      "the accuracy printed for epoch 0 is"),
    "padded evaluation": ({"sampler=shard": "sampler=DistributedSampler(test_set, shuffle=False)"},
                          "24 images were tested per epoch"),
    "images left out": ({"sampler=shard": "sampler=DistributedSampler(test_set, drop_last=True)"},
                        "22 images were tested per epoch"),
    "all save": ({SAVE: "torch.save(model.state_dict(), SAVE)"}, "torch.save was called 2 times"),
    "module.": ({"model.state_dict()": "ddp_model.state_dict()"}, "begin with `module.`"),
    "collective for rank 0": ({f"{SUMS}  #": "    #", "        print(f\"Epoch": f"    {SUMS}\n        print(f\"Epoch"},
                              "same collectives, in the same order"),
    "only rank 0 wraps": ({WRAP: f"{WRAP} if rank == 0 else model"}, "same collectives, in the same order"),
    "more steps on one rank": ({"    for images, labels in train_loader:": """\
    own = list(sampler)[:len(sampler) - 40 * rank]
    for images, labels in DataLoader(train_set, BATCH // world_size, sampler=own):"""},
                               "same collectives, in the same order"),
    "rank 1 hangs": ({"    model.train()": "    model.train()\n    import time; time.sleep(1000 * rank)"},
                     "same collectives, in the same order"),
    "rank 1 dies": ({SUMS: "    os._exit(3) if rank else 0\n" + SUMS}, "it did not come to its end"),
    "an error": ({SUMS: "    sums / no_such_name\n" + SUMS}, "NameError"),
    "no GPU": ({'("RANK", "LOCAL_RANK", "WORLD_SIZE"))': '("RANK", "RANK", "WORLD_SIZE"))', "local_rank": "place"},
               "names LOCAL_RANK"),
}


def edited(changes):
    """minimal_ddp.py with these changes."""
    return exercise.edited(MANY, changes)


def verdict(text, folder):
    (folder / "program.py").write_text(text)
    return capstone.program.verdict(folder / "program.py")


@pytest.mark.weekly
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_right_however_it_is_written(name, tmp_path):
    outcome, message = verdict(edited(RIGHT[name]), tmp_path)
    assert outcome == "right", message
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["program.py"]


@pytest.mark.weekly
@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_gets_its_message(name, tmp_path, monkeypatch):
    monkeypatch.setattr(capstone, "RANKS", [2])  # and one process
    changes, words = MISTAKES[name]
    outcome, message = verdict(edited(changes), tmp_path)
    assert outcome == "wrong" and words in message, message


@pytest.mark.parametrize("text", [None, ONE, "# mine\n" + ONE.split('"""', 2)[2]])
def test_minimal_py_itself_or_no_file_is_untried(text, tmp_path, monkeypatch):
    monkeypatch.delattr(capstone, "compare")  # no rank is started
    expected = "untried", "Not tried yet."
    assert (verdict(text, tmp_path) if text else capstone.program.verdict(tmp_path / "none.py")) == expected


def test_a_file_that_is_not_python_is_wrong(tmp_path):
    assert verdict("import data\nif rank =", tmp_path)[0] == "wrong"
