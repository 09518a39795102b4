"""The capstone of lesson 06: programs that are right are, however they are written, and each mistake is told apart.

All are made from scripts/minimal_ddp.py, or from minimal.py, by edits of their lines.
"""

import textwrap

import pytest

from course import forked_ranks
from course.exercise import Wrong
from lessons.l06_ddp import capstone
from tests import runner

pytestmark = pytest.mark.usefixtures("ranks_find_all_modules_imported")
ONE, MANY = (runner.ROOT.joinpath(f"scripts/{name}.py").read_text() for name in ("minimal", "minimal_ddp"))
SET_EPOCH = "    sampler.set_epoch(epoch)  # without it every epoch has the order of the first\n"
SAMPLER = "sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)"
TRAIN_LOADER = "DataLoader(train_set, BATCH // world_size, sampler=sampler, collate_fn=train_set.collate)"
GPU = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
SUMS = "    dist.all_reduce(sums)"
SAVE = "if rank == 0:\n    torch.save(model.state_dict(), SAVE)"
PLAIN_LOADER = TRAIN_LOADER.replace("sampler=sampler", "shuffle=True")
OWN_LOSS = SUMS.replace("sums", "sums[2]")
MEAN_OF_BATCHES = {"loss.detach() * len(labels)": "loss.detach()", "+= len(labels)": "+= 1"}


def edited(text, changes):
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def written(text, folder):
    (folder / "my_ddp.py").write_text(text)
    return folder / "my_ddp.py"


# ------------------------------------------------------------------------------------------------ right

OWN_SAMPLER = {SAMPLER: """
class Shuffled:
    \"\"\"Every rank draws the same order, and takes its part.\"\"\"
    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return len(range(rank, len(train_set), world_size))

    def __iter__(self):
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(self.epoch))
        self.epoch += 1
        return iter(order[rank::world_size].tolist())

sampler = Shuffled()""", SET_EPOCH: "", " DataLoader, DistributedSampler": " DataLoader"}
PADDED_AND_CUT = {  # DistributedSampler for the test set too, and what it repeats is cut off after a gather
    "sampler=shard": "sampler=DistributedSampler(test_set, shuffle=False)",
    "    with torch.no_grad():": "    found = []\n    with torch.no_grad():",
    "            sums[2] += (model(images.to(device)).argmax(1) == labels.to(device)).sum()":
        "            found.append((model(images.to(device)).argmax(1) == labels.to(device)).int())",
    SUMS: """
    found = torch.cat(found)
    of_ranks = [torch.empty_like(found) for _ in range(world_size)]
    dist.all_gather(of_ranks, found)
    hits = torch.stack(of_ranks, dim=1).flatten()[:len(test_set)].sum()
    dist.all_reduce(sums)""",
    "{sums[2] / len(test_set):.4f}": "{hits / len(test_set):.4f}"}


def in_functions():
    """A main function, an evaluate of its own, DDP with options, all but the last line in float; LOCAL_RANK by torch,
    a device with its number, device_ids where there are GPUs, objects gathered, saved each epoch, another seed."""
    text = edited(MANY, {
        GPU: "torch.cuda.set_device(dist.get_node_local_rank())",
        'device = torch.device("cuda" if': 'device = torch.device(f"cuda:{dist.get_node_local_rank()}" if',
        "manual_seed(rank)": "manual_seed(1234 + 7 * rank)",
        "DistributedDataParallel(model)": "DistributedDataParallel(model, gradient_as_bucket_view=True, "
        'bucket_cap_mb=1, device_ids=[device.index] if device.type == "cuda" else None)',
        "model.parameters()": "ddp_model.parameters()",
        "sums[2] += (model(": "sums[2] += (ddp_model.module(",
        SUMS: "    all_sums = [0] * world_size\n    dist.all_gather_object(all_sums, sums)\n    sums = sum(all_sums)",
        "flush=True)": "flush=True)\n        torch.save(ddp_model.module.state_dict(), SAVE)",
        SAVE: "if False:\n    pass"})
    head, body = text.split("dist.init_process_group", 1)
    body = textwrap.indent("dist.init_process_group" + body, "    ")
    return f'{head}\n\ndef main():\n{body}\n\nif __name__ == "__main__":\n    main()\n'


def with_helpers():
    """The evaluation in a function; rank 0 tests all images alone, and the others wait at a barrier."""
    return edited(MANY, {
        "for epoch in range(EPOCHS):": """
@torch.no_grad()
def evaluate():
    model.eval()
    loader = DataLoader(test_set, 5, collate_fn=test_set.collate)
    return sum((model(images.to(device)).argmax(1) == labels.to(device)).sum().item() for images, labels in loader)


for epoch in range(EPOCHS):""",
        "            sums[2] += (model(images.to(device)).argmax(1) == labels.to(device)).sum()": "            pass",
        "in test_loader": "in []",
        SUMS: "    hits = evaluate() if rank == 0 else 0\n    dist.barrier()\n    dist.reduce(sums, 0)",
        "sums[2] / len(test_set)": "hits / len(test_set)"})


RIGHT = {
    "minimal_ddp.py": MANY,
    "a sampler of one's own": edited(MANY, OWN_SAMPLER),
    "images repeated, not left out": edited(MANY, {", drop_last=True": ""}),
    "tests gathered": edited(MANY, PADDED_AND_CUT),
    "in functions": in_functions(),
    "rank 0 tests alone": with_helpers(),
    "a loss that is reduced each step": edited(MANY, {
        "sums[0] += loss.detach() * len(labels)":
            "dist.all_reduce(share := loss.detach() * len(labels))\n        sums[0] += share / world_size"}),
    "each GPU is the only one that is seen": edited(MANY, {
        GPU: "pass", "import os\n": 'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n'}),
    "objects that load in parallel": edited(MANY, {
        "collate_fn=train_set.collate)": "collate_fn=train_set.collate, num_workers=1)"}),
    "gradients averaged by hand": edited(MANY, {
        "DistributedDataParallel(model)":
            "model\nfor tensor in model.state_dict().values():\n    dist.broadcast(tensor, 0)",
        "        optimizer.step()": "        for one in model.parameters():\n            dist.all_reduce(one.grad)\n"
        "            one.grad /= world_size\n        optimizer.step()"}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_right_however_it_is_written(name, tmp_path):
    outcome, message = capstone.my_ddp.verdict(written(RIGHT[name], tmp_path))
    assert outcome == "right", message
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["my_ddp.py"]


# ------------------------------------------------------------------------------------------------ mistakes

MISTAKES = {  # what is changed in minimal_ddp.py; a part of the message
    "never met": ({'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")': "",
                   "dist.get_rank(), dist.get_world_size()": "0, 1", "DistributedDataParallel(model)": "model",
                   SAMPLER: "sampler = DistributedSampler(train_set, 1, 0)", SUMS: "    pass",
                   "dist.destroy_process_group()": ""}, "the processes never met"),
    "too late": ({'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")': ""}, "have not met yet"),
    "nccl without GPUs": ({'"nccl" if torch.cuda.is_available() else "gloo"': '"nccl"'}, "the backend is gloo"),
    "device_ids on a CPU": ({"DistributedDataParallel(model)": "DistributedDataParallel(model, device_ids=[rank])"},
                            "takes no device_ids"),
    "no sampler": ({TRAIN_LOADER: PLAIN_LOADER, SET_EPOCH: ""}, "took all 151 images"),
    "shards overlap": ({SAMPLER: SAMPLER.replace("drop_last", "seed=rank, drop_last")}, "Their shards overlap"),
    "same order": ({SET_EPOCH: ""}, "sampler.set_epoch(epoch)"),
    "not shuffled": ({"shuffle=True": "shuffle=False"}, "nothing is shuffled"),
    "not wrapped": ({"DistributedDataParallel(model)": "model"}, "nobody averages the gradients"),
    "raw model called": ({"ddp_model(images": "model(images"}, "training calls the unwrapped one"),
    "always no_sync": ({"    model.train()": "    model.train(); ddp_model.require_backward_grad_sync = False"},
                       "all goes through DDP, and still"),
    "batch for each rank": ({"BATCH // world_size": "BATCH"}, "Divide the batch among the ranks"),
    "batch and rate": ({"BATCH // world_size": "BATCH", "lr=0.01": "lr=0.01 * world_size"}, "linear scaling rule"),
    "rate": ({"lr=0.01": "lr=0.01 * world_size"}, "the rate stays"),
    "divided twice": ({"        loss.backward()": "        (loss / world_size).backward()"},
                      "divided by the number of ranks already"),
    "multiplied": ({"        loss.backward()": "        (loss * world_size).backward()"}, "times too long"),
    "no zero_grad": ({"        optimizer.zero_grad()\n": ""}, "the order of zero_grad"),
    "seed": ({"manual_seed(rank)": "manual_seed(0)"}, "random numbers of the ranks are the same"),
    "all print": ({"    if rank == 0:\n        print": "    if True:\n        print"}, "of them print each epoch"),
    "nobody prints": ({"Loss: ": "Done "}, "no rank printed a line"),
    "rank 0's loss": ({SUMS: OWN_LOSS}, "It is that of rank 0's own images: what the others saw"),
    "loss added up only": ({"sums[0] / sums[1]": "sums[0] / sums[1] * world_size"}, "not divided by what was added up"),
    "loss of all images": ({SUMS: "    dist.all_reduce(sums[1:])"}, "sum was divided by the images of all ranks"),
    "mean of means, loss": (MEAN_OF_BATCHES, "It is a mean of means"),
    "rank 0's mean of means": ({**MEAN_OF_BATCHES, SUMS: OWN_LOSS}, "It is the mean of rank 0's means"),
    "rank 0's accuracy": ({SUMS: SUMS.replace("sums", "sums[:2]"), "/ len(test_set)": "/ len(shard)"},
                          "what the others found"),
    "rank 0's hits of all": ({SUMS: SUMS.replace("sums", "sums[:2]")}, "own hits were divided by all images"),
    "mean of means": ({SUMS: f"    sums[2] /= len(shard)\n{SUMS}", "sums[2] / len(test_set)": "sums[2] / world_size"},
                      "the mean of the ranks' accuracies"),
    "padded evaluation": ({"sampler=shard": "sampler=DistributedSampler(test_set, shuffle=False)"},
                          "of them a second time"),
    "images left out": ({"sampler=shard": "sampler=DistributedSampler(test_set, drop_last=True)"},
                        "the shards were made equal by leaving"),
    "all test all": ({", sampler=shard": ""}, "divided by the images of one"),
    "all save": ({SAVE: "torch.save(model.state_dict(), SAVE)"}, "of them saved the model"),
    "nobody saves": ({SAVE: "if False:\n    pass"}, "nobody saved"),
    "module.": ({"model.state_dict()": "ddp_model.state_dict()"}, "begin with `module.`: module.0.weight"),
    "saved before": ({"ddp_model = ": "first = {name: one.clone() for name, one in model.state_dict().items()}\n"
                      "ddp_model = ", "(model.state_dict()": "(first"}, "after the last update"),
    "collective for rank 0": ({f"{SUMS}  #": "    #", "        print": f"    {SUMS}\n        print"},
                              "rank 0 is at dist.all_reduce"),
    "only rank 0 wraps": ({"DistributedDataParallel(model)": "DistributedDataParallel(model) if rank == 0 else model"},
                          "rank 0 is at DistributedDataParallel"),
    "more steps on one rank": ({"sampler=sampler": "sampler=list(sampler)[:25 * (3 - rank)]", SET_EPOCH: "",
                                "BATCH // world_size": "25"}, "more batches in this epoch"),
    "another size": ({SUMS: "    dist.all_reduce(sums[rank:])"}, "differ in size"),
    "rank 1 hangs": ({"    model.train()": "    model.train()\n    import time; time.sleep(1000 * rank)"},
                     "not come anywhere"),
    "rank 1 dies": ({SUMS: "    os._exit(3) if rank else 0\n" + SUMS}, "with exit status 3"),
    "an error": ({SUMS: "    sums / no_such_name\n" + SUMS}, "NameError"),
    "augmented": ({"ddp_model(images.to(device))": "ddp_model(images.to(device).flip(-1))"},
                  "not those of data.get_dataset"),
    "a batch left out": ({"collate_fn=train_set.collate)": "collate_fn=train_set.collate, drop_last=True)"},
                         "leaves a whole batch out"),
    "one epoch": ({"EPOCHS = 3": "EPOCHS = 1"}, "there was one epoch"),
    "one GPU": ({f"    {GPU}": "    pass"}, "Two ranks of one machine share a GPU"),
    "GPU of the rank": ({GPU: "torch.cuda.set_device(rank)"}, "The rank counts over all machines"),
    "no GPU": ({'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")': 'device = "cpu"'},
               "although it has GPUs"),
    "half on another GPU": ({f"    {GPU}": "    pass", "optimizer = ": f"if torch.cuda.is_available():\n    {GPU}\n"
                             "optimizer = "}, "another elsewhere"),
}
ON_GPUS = ("one GPU", "GPU of the rank", "no GPU", "half on another GPU")


def told(said, expected):
    """Only this mistake's message has these words."""
    assert [words for _, words in MISTAKES.values() if words in said] == [expected], said


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_gets_a_message_of_its_own(name, tmp_path, monkeypatch):
    monkeypatch.setattr(capstone, "WAIT", 4 if name == "rank 1 hangs" else capstone.WAIT)
    changes, said = MISTAKES[name]
    program = written(edited(MANY, changes), tmp_path)
    outcome, message = capstone.my_ddp.verdict(program)
    assert outcome == "wrong"
    told(message, said)
    if name not in ON_GPUS:
        with pytest.raises(Wrong) as wrong:
            capstone.judge(*capstone.watched(program, 3))
        told(str(wrong.value), said)


@pytest.mark.parametrize("name", ["never met", "same order", "not shuffled", "rate", "nobody prints",
                                  "mean of means, loss", "nobody saves", "module.", "an error"])
def test_some_mistakes_show_on_one_rank(name, tmp_path):
    changes, said = MISTAKES[name]
    with pytest.raises(Wrong) as wrong:
        capstone.judge(*capstone.watched(written(edited(MANY, {
            old: new.replace("* world_size", "* 2") for old, new in changes.items()}), tmp_path), 1))
    told(str(wrong.value), said)


def test_ranks_that_never_end_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(capstone, "LIMIT", 8)
    program = written(edited(MANY, {SUMS: "    import time\n    time.sleep(1000)"}), tmp_path)
    outcome, message = capstone.my_ddp.verdict(program)
    assert outcome == "wrong" and "did not come to its end within 8 s" in message


@pytest.mark.parametrize(("device", "right"), [
    ('int(os.environ["LOCAL_RANK"])', True),
    ('f"cuda:{rank % torch.cuda.device_count()}"', True),
    ('torch.device("cuda", dist.get_node_local_rank())', True),
    ("rank", False),
    ('"cuda"', False),
])
def test_each_rank_asks_for_the_gpu_of_its_local_rank(device, right, tmp_path):
    program = written(edited(MANY, {f"    {GPU}": "    pass", 'torch.device("cuda" if': f"({device} if",
                                    "DistributedDataParallel(model)": "DistributedDataParallel(model.cuda(device))"}),
                      tmp_path)
    found = capstone.watched(program, 3, 2)
    if right:
        return capstone.judge_gpus(*found)
    with pytest.raises(Wrong, match="GPU"):
        capstone.judge_gpus(*found)


# ------------------------------------------------------------------------------------------------ not tried; the rest


@pytest.mark.parametrize("text", [None, ONE, "# mine\n" + ONE.split('"""', 2)[2]])
def test_for_minimal_py_itself_or_no_file_no_rank_is_started(text, tmp_path, monkeypatch, capsys):
    monkeypatch.delattr(forked_ranks, "run")
    program = written(text, tmp_path) if text else tmp_path / "none.py"
    assert capstone.my_ddp.verdict(program) == ("untried", "Not tried yet.")
    capstone.my_ddp(str(program))
    assert capsys.readouterr().out == "Not tried yet.\n"


def test_a_file_that_is_no_python_is_told(tmp_path):
    assert "Line 2 of your file is no Python" in capstone.my_ddp.verdict(written("import data\nif rank =", tmp_path))[1]


def test_what_is_compared_with_is_minimal_py(tmp_path):
    """The training that the check repeats in one process on a program's images is that of minimal.py."""
    found, one = capstone.watched(written(ONE, tmp_path), 1)
    assert one["off"] < 1e-4 and abs(one["times"] - 1) < 1e-4
    assert {len(update["batches"]) for update in found[0]["updates"]} == {1} and len(found[0]["said"]) == 3


def test_hint_and_solution_are_one_call_away(capsys):
    capstone.my_ddp.solution()
    assert capsys.readouterr().out == MANY + "\n"
    capstone.my_ddp.hint()
    assert "DistributedSampler" in capsys.readouterr().out
