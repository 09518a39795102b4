"""The capstone of lesson 06b: each mistake gets its message, and a right program is right however it is written.

All programs are examples/minimal_ddp.py with some lines changed.
"""

import pytest

from lessons.l06b_ddp_traps import capstone
from tests import runner

ONE, MANY = (runner.ROOT.joinpath(f"examples/{name}.py").read_text() for name in ("minimal", "minimal_ddp"))
GROUP = 'dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=5))'
GPU = "torch.cuda.set_device(local_rank)"
DEVICE = 'torch.device("cuda" if cuda else "cpu")'
SAMPLER = "sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)"
SET_EPOCH = "    sampler.set_epoch(epoch)  # without it every epoch has the order of the first\n"
TRAIN_LOADER = "DataLoader(train_set, BATCH // world_size, sampler=sampler)"
TRAIN_LOOP = "    for images, labels in train_loader:"
WRAP = "DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)"
PLAIN = "DistributedDataParallel(model)"
SUMS = "    dist.all_reduce(sums)"
SAVE = "if rank == 0:\n    torch.save(model.state_dict(), SAVE)"

RIGHT = {
    "minimal_ddp.py": {},
    "gradients averaged by hand, losses in each step, and a single visible GPU": {
        GPU: "pass", "import os\n": 'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n',
        WRAP: "model\nfor tensor in model.state_dict().values():\n    dist.broadcast(tensor, 0)",
        "        optimizer.step()": "        for each in model.parameters():\n            dist.all_reduce(each.grad)\n"
        "            each.grad /= world_size\n        optimizer.step()",
        "sums[0] += loss.detach() * len(labels)":
            "dist.all_reduce(share := loss.detach() * len(labels))\n        sums[0] += share / world_size"},
    "images repeated, not left out, and loaded in parallel": {
        ", drop_last=True": "", "world_size, sampler=sampler)": "world_size, sampler=sampler, num_workers=1)"},
    "other options, and a file in another order": {
        GPU: "torch.accelerator.set_device_index(local_rank)", "manual_seed(rank)": "manual_seed(1234 + 7 * rank)",
        DEVICE: 'torch.device(f"cuda:{dist.get_node_local_rank()}" if torch.cuda.is_available() else "cpu")',
        WRAP: "DistributedDataParallel(model, bucket_cap_mb=1, device_ids=[device.index] if device.index else None)",
        SUMS: "    all_sums = [0] * world_size\n    dist.all_gather_object(all_sums, sums)\n    sums = sum(all_sums)",
        "(model.state_dict(), SAVE)": "(dict(sorted(ddp_model.module.state_dict().items())), SAVE)"},
    "more steps on rank 0, under join()": {
        SAMPLER: "sampler = DistributedSampler(train_set, 1, 0)  # the order of all ranks",
        ", momentum=0.9": "",  # the ranks would have momentums of their own after the first epoch
        TRAIN_LOOP: """    order = list(sampler)
    own = order[31:][rank::world_size] + (order[:31] if rank == 0 else [])
    own_loader = DataLoader(train_set, BATCH // world_size, sampler=own)
    with ddp_model.join():
     for images, labels in own_loader:"""},
}
MISTAKES = {  # what is changed in minimal_ddp.py; a part of the message
    "never met": ({GROUP: "", '(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))': "0, 0, 1",
                   "dist.all_reduce(have_mnist, dist.ReduceOp.MIN)": "pass", WRAP: "model", SUMS: "    pass",
                   SAMPLER: "sampler = DistributedSampler(train_set, 1, 0)", "dist.destroy_process_group()": ""},
                  "the processes never met"),
    "no sampler": ({TRAIN_LOADER: TRAIN_LOADER.replace("sampler=sampler", "shuffle=True"), SET_EPOCH: ""},
                   "took all 223 images"),
    "shards overlap": ({SAMPLER: SAMPLER.replace("drop_last", "seed=rank, drop_last")}, "166 different ones of 223"),
    "same order": ({SET_EPOCH: ""}, "sampler.set_epoch(epoch)"),
    "one GPU": ({GPU: "pass", WRAP: PLAIN}, "rank 0 uses GPU 0; rank 1 uses GPU 0; rank 2 uses GPU 0"),
    "not wrapped": ({WRAP: "model"}, "nothing averages their gradients"),
    "raw model called": ({"ddp_model(images)": "model(images)"}, "training calls the unwrapped one"),
    "always no_sync": ({"    model.train()": "    model.train(); ddp_model.require_backward_grad_sync = False"},
                       "although all batches go through DDP"),
    "batch for each rank": ({"BATCH // world_size": "BATCH"}, "an update takes 192 images at learning rate 0.01;"),
    "rate": ({"lr=0.01": "lr=0.01 * world_size"}, "an update takes 96 images at learning rate 0.02;"),
    "divided twice": ({"        loss.backward()": "        (loss / world_size).backward()"},
                      "the gradient is 0.5 times"),
    "no zero_grad": ({"        optimizer.zero_grad()\n": ""}, "the order of zero_grad"),
    "seed": ({"manual_seed(rank)": "manual_seed(0)"}, "the same random numbers"),
    "all print": ({"    if rank == 0:\n        print(f\"Epoch": "    if True:\n        print(f\"Epoch"},
                  "2 ranks printed 3 lines"),
    "rank 0's loss": ({SUMS: SUMS.replace("sums", "sums[2]")}, "the loss printed for epoch 0 is 2.2966"),
    "mean of means": ({SUMS: f"    sums[2] /= len(shard)\n{SUMS}", "sums[2] / len(test_set)": "sums[2] / world_size"},
                      "the accuracy printed for epoch 0 is 0.6818"),
    "padded evaluation": ({"sampler=shard": "sampler=DistributedSampler(test_set, shuffle=False)"},
                          "counts 24 test images, although there are 23"),
    "images left out": ({"sampler=shard": "sampler=DistributedSampler(test_set, drop_last=True)"},
                        "tested 22 of the 23 test images"),
    "all save": ({SAVE: "torch.save(model.state_dict(), SAVE)"}, "2 ranks saved"),
    "module.": ({"model.state_dict()": "ddp_model.state_dict()"}, "begin with `module.`"),
    "collective for rank 0": ({f"{SUMS}  #": "    #", "        print(f\"Epoch": f"    {SUMS}\n        print(f\"Epoch"},
                              "rank 0 is at dist.all_reduce of 3 values (line 94); rank 1 is at a step of training"),
    "only rank 0 wraps": ({WRAP: f"{WRAP} if rank == 0 else model"},
                          "rank 0 is at DistributedDataParallel (line 73); rank 1 is at dist.all_reduce"),
    "more steps on one rank": ({"sampler=sampler": "sampler=list(sampler)[:30 * (3 - rank)]", SET_EPOCH: "",
                                "BATCH // world_size": "30"}, "rank 0 is at a step of training (line 81)"),
    "rank 1 hangs": ({"    model.train()": "    model.train()\n    import time; time.sleep(1000 * rank)"},
                     "rank 1 has met no other rank for 3 s (line 80)"),
    "rank 1 dies": ({SUMS: "    os._exit(3) if rank else 0\n" + SUMS}, "rank 1 died (exit status 3)"),
    "an error": ({SUMS: "    sums / no_such_name\n" + SUMS}, "raised NameError"),
}


def edited(changes):
    """minimal_ddp.py with these changes."""
    text = MANY
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def verdict(text, folder):
    (folder / "06b_program.py").write_text(text)
    return capstone.program.verdict(folder / "06b_program.py")


@pytest.mark.parametrize("name", runner.sampled(RIGHT, 2))
def test_a_right_program_is_right_however_it_is_written(name, tmp_path, monkeypatch):
    if RIGHT[name]:  # on three ranks with GPUs a program does all that it does on fewer and without
        monkeypatch.setattr(capstone, "RUNS", [(3, capstone.GPUS)])
    outcome, message = verdict(edited(RIGHT[name]), tmp_path)
    assert outcome == "right", message
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["06b_program.py"]


@pytest.mark.parametrize("name", runner.sampled(MISTAKES, 5))
def test_each_mistake_gets_a_message_of_its_own(name, tmp_path, monkeypatch):
    monkeypatch.setattr(capstone, "LIMIT", 3 if name == "rank 1 hangs" else capstone.LIMIT)
    if "GPU" in name:  # on two ranks without GPUs nothing is wrong
        monkeypatch.setattr(capstone, "RUNS", [(3, capstone.GPUS)])
    changes, words = MISTAKES[name]
    outcome, message = verdict(edited(changes), tmp_path)
    assert outcome == "wrong"
    assert [words for _, words in MISTAKES.values() if words in message] == [words], message


@pytest.mark.parametrize("text", [None, ONE, "# mine\n" + ONE.split('"""', 2)[2]])
def test_minimal_py_itself_or_no_file_is_untried(text, tmp_path, monkeypatch):
    monkeypatch.delattr(capstone, "run")  # no rank is started
    expected = "untried", "Not tried yet."
    assert (verdict(text, tmp_path) if text else capstone.program.verdict(tmp_path / "none.py")) == expected


def test_a_file_that_is_not_python_is_wrong(tmp_path):
    assert verdict("import data\nif rank =", tmp_path)[0] == "wrong"
