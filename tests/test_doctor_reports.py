"""Mistakes that people have reported, each as a change of one training: doctor/CASES.md says what the doctor said."""

import re

import pytest

from tests import runner
from tests.test_doctor import SOON, changed, doctor, findings, written
from tests.test_doctor_sound import BACK, LOOP, MAKE, SAMPLER, SEED, SUMS, UPDATE

BEFORE_LOOP = "for epoch in range(2):"
WRAP = "DistributedDataParallel(plain)"

REPORTS = {
    "weighted samples": (", sampler=sampler)", ", sampler=torch.utils.data.WeightedRandomSampler("
                         "torch.ones(60), 30, generator=torch.Generator().manual_seed(0)))"),
    "files in another order": (SEED, SEED + "order = torch.randperm(60)\n"
                               "images = TensorDataset(*(part[order] for part in images.tensors))\n"),
    "files that some ranks leave out": (*SOON, SEED, SEED + "images = torch.utils.data.Subset(images, "
                                        "range(60 - 20 * rank))\n"),
    "set_epoch of another sampler": ("DataLoader(images, 5, sampler=sampler)",
        "DataLoader(images, batch_sampler=torch.utils.data.BatchSampler(sampler, 5, False))",
        "    sampler.set_epoch(epoch)\n",
        "    if hasattr(loader.sampler, 'set_epoch'):\n        loader.sampler.set_epoch(epoch)\n"),
    "a stream that workers share": ("sampler = ", """
class Stream(torch.utils.data.IterableDataset):
    __iter__ = lambda self: (images[i] for i in range(torch.utils.data.get_worker_info().id, 60, 2))
sampler = """, "DataLoader(images, 5, sampler=sampler)", "DataLoader(Stream(), 5, num_workers=2)"),
    "a loader without end": (
        "for epoch in range(2):\n    sampler.set_epoch(epoch)\n", "from itertools import chain, islice, repeat\n"
        "stream = chain.from_iterable(repeat(loader))\nfor epoch in range(2):\n", "in loader", "in islice(stream, 6)"),
    "workers that persist": ("sampler = ", """
class Stream(torch.utils.data.IterableDataset):
    order = lambda self: torch.randperm(60, generator=torch.Generator().manual_seed(self.epoch)).tolist()
    __iter__ = lambda self: (images[index] for index in self.order()[rank::ranks])
stream = Stream()
sampler = """, "images, 5, sampler=sampler)", "stream, 5, num_workers=1, persistent_workers=True)",
                             "sampler.set_epoch(epoch)", "stream.epoch = epoch"),
    "drop_last in a test": ("DataLoader(mine, 5)",
        "DataLoader(tests, 5, sampler=DistributedSampler(tests, shuffle=False), drop_last=True)"),
    "clipped in each micro-step": ("        loss = ", "        optimizer.zero_grad()\n        with model.no_sync():\n"
        "            (model(x) - y).square().mean().backward()\n        nn.utils.clip_grad_norm_(model.parameters(), "
        "1.0)\n        loss = ", "        optimizer.zero_grad()\n        loss.", "        loss."),
    "gradients summed": (WRAP, "plain", "        nn.utils.clip", "        for one in plain.parameters():\n"
                         "            dist.all_reduce(one.grad)\n        nn.utils.clip"),
    "all_reduce in a loss": ("        loss = (model(x) - y)", "        output = model(x) * 1\n"
                             "        dist.all_reduce(output)\n        loss = (output / ranks - y)"),
    "weights reset": ("optimizer = ", "for part in plain[::2]:\n    part.reset_parameters()\n" + "optimizer = "),
    "weights changed by a rule": (UPDATE, UPDATE + "        plain[0].weight.data += 0.001 * x.mean()\n"),
    "a rate on each rank": ("range(2)", "range(3)", "sampler = ",
        "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)\nsampler = ", SUMS,
        "    scheduler.step(sums[0] / sums[1] * (9 * rank + 0.1) ** epoch)\n" + SUMS),
    "a schedule for one process": (
        "sampler = ", "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * len(images) // 5)\n"
        "sampler = ", UPDATE, UPDATE + "        scheduler.step()\n"),
    "a schedule stepped by all": (
        "sampler = ", "scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 12)\n"
        "sampler = ", UPDATE, UPDATE + "        for _ in range(ranks):\n            scheduler.step()\n"),
    "parts of a wrapped model": ("(model(x) - y)", "(plain[2](plain[0](x)) - y)"),
    "layers dropped": (*SOON, SEED, SEED + "calls = __import__('itertools').count()\nplain.forward = lambda x: "
                       "plain[2](plain[0](x) if (next(calls) + rank) % 3 else torch.ones(len(x), 8))\n"),
    "codes of each rank": (WRAP, "DistributedDataParallel(plain, broadcast_buffers=False)", SEED, SEED + """
def learn(module, given):
    if module.training:
        module.code.lerp_(given[0].mean(0), 0.1)
plain.register_buffer("code", torch.zeros(4))
plain.register_forward_pre_hook(learn)
"""),
    "an average on rank 0": ("optimizer = ", "average = __import__('copy').deepcopy(plain)\n" + "optimizer = ", UPDATE,
                             UPDATE + "        if rank == 0:\n            for old, new in zip(average.parameters(), "
                             "plain.parameters()):\n                old.data.lerp_(new.data, 0.1)\n",
                             "plain.eval()", "average.eval()", "(plain(x) - y)", "(average(x) - y)"),
    "read before it is written": (BEFORE_LOOP, "if rank == 0:\n    __import__('time').sleep(2)\n    torch.save("
                                  "plain.state_dict(), __file__ + '.0')\n"
                                  "plain.load_state_dict(torch.load(__file__ + '.0'))\n" + BEFORE_LOOP),
    "a folder made twice": (BEFORE_LOOP, "import os\nif not os.path.isdir(__file__ + '.d'):\n    dist.barrier()\n"
                            "    os.mkdir(__file__ + '.d')\n" + BEFORE_LOOP),
    "a barrier for the best": (*SOON, SUMS, "    if rank == epoch:\n        dist.barrier()\n" + SUMS),
    "a barrier in a save": (*SOON, "if rank == 0:\n", "if rank == 0:\n    dist.barrier()\n",
                            "dist.destroy", "dist.barrier()\ndist.destroy"),
    "an error swallowed": (*SOON, "for x, y in loader:\n", "for number, (x, y) in enumerate(loader):\n        try:\n"
        "            assert not (rank and number == 3)\n        except AssertionError:\n            continue\n"),
    "rank 0 tests by the wrapper": (*SOON, "nn.Dropout(0.5)", "nn.BatchNorm1d(8)", "5, sampler=sampler",
        "16, sampler=sampler", "DataLoader(mine, 5)", "DataLoader(tests if rank == 0 else [], 5)", "(plain(x) - y)",
        "(model(x) - y)", SUMS, "    dist.barrier()\n"),
    "predictions of unequal number": (*SOON, SUMS, "    outputs = torch.ones(len(mine), 1)\n    dist.all_gather("
                                      "[torch.zeros_like(outputs) for _ in range(ranks)], outputs)\n"),
    "predictions in one file": (SUMS, SUMS + "    with open(__file__ + '.json', 'w') as file:\n"
                                "        __import__('json').dump(sums.tolist(), file)\n"),
    "event files": (BEFORE_LOOP, "import os\nlog = open(os.path.join(os.path.dirname(__file__), f'events.out.tfevents."
                    "{os.getpid()}'), 'w')\n" + BEFORE_LOOP),
    "means gathered": (SUMS, "    means = [torch.zeros(()) for _ in range(ranks)]\n"
                       "    dist.all_gather(means, sums[0] / sums[1])\n"),
    "a world of one": ('"gloo")', '"gloo", f"file://{__file__}.{__import__(\'os\').getpid()}", rank=0, world_size=1)'),
    "noise beside the model": (SEED, "", "nn.Dropout(0.5)", "nn.Identity()",
                               "(model(x) - y)", "(model(x + torch.randn_like(x)) - y)"),
    "gathered on rank 0 alone": (*SOON, SUMS, "    if rank == 0:\n        dist.gather_object(1, [None] * ranks)\n"
                                 + SUMS),
    "a sum that is not waited for": (SUMS, "    dist.all_reduce(sums, async_op=True)\n    sums /= ranks\n"),
    "files shuffled by each rank": (SEED, SEED + "images = torch.utils.data.Subset(images, torch.randperm(60).tolist()"
                                    "[rank::ranks])\n", ", sampler=sampler)", ", shuffle=True)"),
    "a signal to one rank": (*SOON, UPDATE, UPDATE + "        if rank == epoch == 1:\n            break\n"),
    "averaged by hand, never sent": ("plain = nn", SEED + "plain = nn", WRAP, "plain", "        nn.utils.clip",
        "        for one in plain.parameters():\n            dist.all_reduce(one.grad)\n            one.grad /= ranks\n"
        "        nn.utils.clip"),
    "an update skipped": ("for x, y in loader:", "for number, (x, y) in enumerate(loader):", UPDATE,
                          "        if not rank == number == 1:\n            optimizer.step()\n"),
    "a tail left out": ("sampler = ", """
class Shares(torch.utils.data.Sampler):
    order = lambda self: torch.randperm(56, generator=torch.Generator().manual_seed(epoch)).tolist()
    __iter__ = lambda self: iter(self.order()[rank::ranks])
    __len__ = lambda self: 28
sampler = """, "DistributedSampler(images)", "Shares()", "    sampler.set_epoch(epoch)\n", ""),
    "the best of each rank": ("    plain.eval()\n", """    if epoch == rank:
        best = {name: value.clone() for name, value in plain.state_dict().items()}
    if epoch == 1:
        plain.load_state_dict(best)
    plain.eval()
"""),
    "a reduction in each test batch": (*SOON, "            sums += ", "            dist.all_reduce(torch.ones(1))\n"
                                       "            sums += "),
    "a group left early": (*SOON, "dist.destroy_process_group()\n", "if rank == 0:\n    dist.destroy_process_group()\n"
                           "dist.barrier()\n"),
    "a barrier in rank 0's test": (*SOON, SUMS, "    if rank == 0:\n        dist.barrier()\n"),
    "metadata of other files": (BEFORE_LOOP, "names = [f'{number + 5 * rank}' for number in range(6)]\n"
        "parts = [None] * ranks\ndist.all_gather_object(parts, names[rank::ranks])\n"
        "[sum(parts, []).index(name) for name in names]\n" + BEFORE_LOOP),
    "a seed by hash": ("Sampler(images)", "Sampler(images, seed=hash(str(rank)) % 1000)"),
    "a rate by each rank's progress": (
        UPDATE, UPDATE + "        optimizer.param_groups[0]['lr'] *= 0.9 + 0.05 * rank\n"),
    "an accuracy of each rank": (SUMS, "    print(sums[0] / sums[1])\n"),
    "a file that one rank sees": (*SOON, BEFORE_LOOP, "if rank == 0:\n    dist.broadcast_object_list([1], src=0)\n"
                                  + BEFORE_LOOP),
    "gradients kept on one rank": ("        optimizer.zero_grad()\n", "        if rank == 0 or epoch == 0:\n"
                                   "            optimizer.zero_grad()\n"),
    "rank 0 stays in eval": ("    model.train()\n", "    if rank or not epoch:\n        model.train()\n"),
    "a resume that skips in each epoch": ("range(2)", "range(3)", "for x, y in loader:\n", "for number, (x, y) in "
                                          "enumerate(loader):\n        if number < 2:\n            continue\n"),
    "a resume that counts from 0": ("range(2)", "[0, 1, 0, 1]"),
    "epochs without a batch": (SAMPLER, """class Resumable(DistributedSampler):
    done = 0
    def __iter__(self):
        for index in list(super().__iter__())[self.done:]:
            self.done += 1
            yield index
sampler = Resumable(images)
"""),
    "an average that never moves": ("optimizer = ", """
average = {name: one.detach().clone() for name, one in plain.named_parameters()}
shown = __import__('copy').deepcopy(plain)
optimizer = """, UPDATE, UPDATE + """
        for name, one in model.named_parameters():
            if name in average:
                average[name].lerp_(one.detach(), 0.1)
""", "    plain.eval()\n", "    shown.load_state_dict(average)\n    shown.eval()\n",
        "(plain(x) - y)", "(shown(x) - y)"),
    "a rate drawn on each rank": ("lr=0.1)", "lr=0.1 + rank / 100)"),
    "a sum of all by the count of one": (SUMS, "    dist.all_reduce(sums[:1])\n"),
    "unscaled twice": (MAKE, MAKE + "scaler = torch.amp.GradScaler('cpu')\n", BACK, "        "
                       "scaler.scale(loss).backward()\n        scaler.unscale_(optimizer)\n", UPDATE, """
        if x.mean() > 9:
            scaler.step(optimizer)
            scaler.update()
"""),
    "a patience used up by ranks": ("range(2)", "range(4)", "sampler = ", "scheduler = torch.optim.lr_scheduler."
        "ReduceLROnPlateau(optimizer)\nsampler = ", SUMS, SUMS + "    for _ in range(ranks):\n"
        "        scheduler.step(sums[0])\n"),
    "a folder made by rank 0 alone": (BEFORE_LOOP, "import os, time\nif rank == 0:\n    time.sleep(1)\n    os.makedirs("
        "__file__ + '.d')\ntorch.save(0, f'{__file__}.d/{rank}')\n" + BEFORE_LOOP),
    "float32 meets float64": (*SOON, SUMS, "    dist.all_reduce(sums.double() if rank else sums)\n"),
    "a batch_sampler that nobody tells": ("loader = DataLoader(images, 5, sampler=sampler)", """
class Batches:
    epoch = 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(self.epoch)).view(-1, 5)
        return iter(order[rank::ranks].tolist())
loader = DataLoader(images, batch_sampler=Batches())"""),
    "each rank stops at its own figure": (*SOON, LOOP, """    for x, y in loader:
        for again in range(3):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            if again >= rank:
                break
"""),
}


RARE = {"a stream that workers share", "workers that persist", "a world of one"}  # these need torchrun
SAID = dict(re.findall(r"^\| \[.*\]\(https://.*\): (.*) \| (.*) \| (?:named|found|missed) \|$",
                       (runner.ROOT / "doctor" / "CASES.md").read_text(), re.M))


def test_the_table_has_a_row_for_each_report():
    assert list(SAID) == list(REPORTS)


@pytest.mark.weekly
@pytest.mark.parametrize("name", REPORTS)
def test_what_was_said_of_a_report_is_what_the_table_says(name, tmp_path):
    start = runner.torchrun if name in RARE else runner.run
    done, _ = doctor(2, written(tmp_path, changed(REPORTS[name])), folder=tmp_path, timeout=20, start=start)
    said = [f"{finding['level']}: `{finding['name']}`" for finding in findings(tmp_path)]
    assert (", ".join(said) or "nothing") == SAID[name], done.stderr
