"""The doctor finds nothing in trainings that are unusual, and right."""

import pytest

from tests import runner
from tests.test_doctor import changed, doctor, findings, written

LOSS = "        loss = (model(x) - y).square().mean()\n"
BACK = "        loss.backward()\n"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
UPDATE = "        optimizer.step()\n"
LOOP = "    for x, y in loader:\n" + LOSS + "        optimizer.zero_grad()\n" + BACK + CLIP + UPDATE
SUMS = "    dist.all_reduce(sums)\n"
NET = "plain = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))"
WRAP = "model = DistributedDataParallel(plain)"
ALONE = (WRAP, "model = plain")
MAKE = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
SAMPLER = "sampler = DistributedSampler(images)\n"
LOADER = "loader = DataLoader(images, 5, sampler=sampler)"
SEED = "torch.manual_seed(rank)\n"
SCALER = (MAKE, MAKE + "scaler = torch.amp.GradScaler('cpu')\n", "    loss.backward()",
          "    scaler.scale(loss).backward()", UPDATE, "        scaler.step(optimizer)\n        scaler.update()\n")
STREAM = "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        "
SHARED = """        for one in plain.parameters():
            dist.all_reduce(one.grad)
            one.grad /= ranks
"""
AVERAGED = SHARED.replace("grad", "data")
TASKS = """
class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        return self.first(self.body(x)), self.second(self.body(x))

plain = Tasks()"""
MOCO = """
class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 1), nn.Linear(4, 1).requires_grad_(False)
        self.register_buffer("queue", torch.randn(20, 1))

    def forward(self, x):
        query = self.query(x)
        if self.training:
            with torch.no_grad():
                for slow, one in zip(self.key.parameters(), self.query.parameters(), strict=True):
                    slow.lerp_(one, 0.1)
                parts = [torch.zeros(len(x), 1) for _ in range(ranks)]
                dist.all_gather(parts, self.key(x))
                self.queue = torch.cat([self.queue, *parts])[-20:]
        return query + (query @ self.queue.T).logsumexp(1, keepdim=True)

plain = Moco()"""
TENSOR_PARALLEL = """
class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.clone())
        return gradient

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone())
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient

body, first = nn.Linear(4, 4), nn.Linear(4, 4)
plain = nn.Sequential(body, first, nn.Linear(4, 1, bias=False))
nn.init.normal_(first.weight, generator=torch.Generator().manual_seed(rank))
plain.forward = lambda x: Sum.apply(plain[2](first(Copy.apply(body(x)))))"""
SOUND = {  # unusual, and right: what is changed in the training above
    "compiled": (WRAP, "model = torch.compile(DistributedDataParallel(plain), backend='eager')"),
    "a look at the model on rank 0": ("for epoch in", "if rank == 0:\n    plain(torch.ones(2, 4)).sum()\nfor epoch in"),
    "drawn with replacement": (SAMPLER, "sampler = torch.utils.data.RandomSampler(images, replacement=True)\n"
        "sampler.set_epoch = lambda epoch: None\ntorch.manual_seed(rank)\n"),
    "left before the last batch": (UPDATE, "        optimizer.step()\n        if epoch:\n            break\n"),
    "no numbers any more": ("lr=0.1", "lr=1e38"),
    "a sharded optimizer": ("torch.optim.SGD(model.parameters(), lr=0.1)",
                            "__import__('torch.distributed.optim').distributed.optim.ZeroRedundancyOptimizer("
                            "model.parameters(), torch.optim.SGD, lr=0.1)"),
    "one function for training and tests": (LOOP, """    def read(loader):
        yield from loader
    for x, y in read(loader):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    list(read(DataLoader(mine, 5)))
    dist.all_reduce(torch.zeros(2))
"""),
    "every rank tests everything, in an order of its own": (
        "DataLoader(mine, 5)", "DataLoader(tests, 5, shuffle=True)", SUMS, ""),
    "the rest is tested apart": ("DataLoader(mine, 5):", "[*DataLoader(mine, 5, sampler=range(15)), "
                                 "*DataLoader(torch.utils.data.Subset(tests, [30]), 1)]:"),
    "frozen batch norm, no dropout, and a gradient that is set": (
        "nn.Dropout(0.5)", "nn.BatchNorm1d(8), nn.Dropout(0.0)", "5, sampler=sampler", "16, sampler=sampler",
        "    model.train()\n", "    model.train()\n    plain[1].eval()\n", "    plain.eval()\n", "", MAKE, MAKE +
        "scale = nn.Parameter(torch.ones(()))\nsecond = torch.optim.SGD([scale], lr=0.1)\n", "(model(x) - y)",
        "(model(x) * scale - y)", UPDATE, UPDATE +
        "        (scale.grad,) = torch.autograd.grad(scale.square(), [scale])\n        second.step()\n"),
    "batch norm, tested through DDP, its statistics taken anew": (
        "nn.Dropout(0.5)", "nn.BatchNorm1d(8)", "5, sampler=sampler", "16, sampler=sampler",
        "    plain.eval()", "    model.eval()", "(plain(x) - y)", "(model(x) - y)",
        "DataLoader(mine, 5)", "DataLoader(mine, 8)", SUMS, SUMS +
        "    torch.optim.swa_utils.update_bn(loader, plain)\n"),
    "an argument by its name": ("clip_grad_norm_(model.parameters(), 1.0)",
        "clip_grad_norm_(parameters=model.parameters(), max_norm=0.5)", UPDATE, "        optimizer.step()\n"
        "        norm = sum(one.grad.square().sum() for one in model.parameters())\n        assert norm < 0.26\n"),
    "rank 0 alone tests": ("DataLoader(mine, 5)", "DataLoader(tests if rank == 0 else [], 5)", SUMS, ""),
    "tests added up in a group": ("for epoch in", "group = dist.new_group()\nfor epoch in",
                                  "all_reduce(sums)", "all_reduce(sums, group=group)"),
    "the best weights at the end": ("    torch.save(plain", "    state = {'o': optimizer.state_dict()}\n    torch.save("
                                    "state, __file__)\n    torch.load(__file__)\n    torch.save(plain"),
    "DDP's forward by its name, an average beside it, a loss summed for the log, the last tests on all ranks": (
        "DistributedDataParallel(plain)\n", "DistributedDataParallel(plain)\ntask = nn.ModuleList([model, nn.Linear(4, "
        "1).requires_grad_(False)])\ntask.forward = lambda x: model.forward(x)\n", "(model(x) - y)", "(task(x) - y)",
        "        optimizer.zero_grad()\n", "        shown = loss.clone()\n        dist.all_reduce(shown)\n"
        "        optimizer.zero_grad()\n",
        "DataLoader(mine, 5):", "[*DataLoader(tests, 5, sampler=DistributedSampler(tests, shuffle=False, drop_last="
        "True)), *DataLoader(torch.utils.data.Subset(tests, [30]), 5)]:"),
    "a fold of a cross-validation": (SAMPLER, "sampler = range(rank, 40, ranks)\n", "    sampler.set_epoch(epoch)\n",
        "", "Subset(tests, range(rank, len(tests), ranks))", "Subset(images, range(40 + rank, 60, ranks))"),
    "samples that each rank makes for itself": ("torch.manual_seed(0)", "torch.manual_seed(rank)"),
    "a model that is frozen by turns": (
        LOOP, LOOP + "    model.requires_grad_(False)\n    model.requires_grad_(True)\n"),
    "metrics of each batch": ("torch.randn(31, 4), torch.randn(31, 1)", "torch.randn(30, 4), torch.randn(30, 1)",
                              "            sums += ", "            for _ in range(12):\n"
                              "                dist.all_reduce(torch.ones(1))\n            sums += "),
    "accumulation": (LOOP, """    for number, (x, y) in enumerate(loader):
        import contextlib
        with model.no_sync() if number % 2 == 0 else contextlib.nullcontext():
            (model(x) - y).square().mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
"""),
    "checkpointing": ("(model(x) - y).square()",
                      "(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) - y).square()"),
    "a GAN in one wrapper": (NET, "plain = nn.ModuleDict({'g': nn.Linear(4, 4), 'd': nn.Linear(4, 1)})\n"
        "plain.forward = lambda x: plain['d'](plain['g'](x) if plain['g'].weight.requires_grad else x)",
        WRAP, "model = DistributedDataParallel(plain, find_unused_parameters=True)", LOOP,
        """    for number, (x, y) in enumerate(loader):
        plain['g'].requires_grad_(number % 2 == 0)
        plain['d'].requires_grad_(number % 2 == 1)
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""),
    "local SGD": ("DistributedDataParallel(plain)", "plain", UPDATE, "        optimizer.step()\n"
        "    for one in plain.parameters():\n        dist.all_reduce(one.data)\n        one.data /= ranks\n"),
    "a group for each rank": ("DistributedDataParallel(plain)", "DistributedDataParallel(plain, "
                              "process_group=[dist.new_group([one]) for one in range(ranks)][rank])"),
    "trainings of one epoch": ("for epoch in range(2):\n    sampler.set_epoch(epoch)\n", """for epoch in range(2):
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""),
    "epochs of unequal length": (LOOP, """    with torch.distributed.algorithms.Join([model]):
        for x, y in list(loader)[:5 + (rank == epoch)]:
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""),
    "two models": (LOOP, """    if epoch == 0:
        critic = DistributedDataParallel(nn.Linear(1, 1))
        second = torch.optim.Adam(critic.parameters(), lr=0.1)
    for x, y in loader:
        critic(model(x).detach() - y).square().mean().backward()
        second.step()
        optimizer.zero_grad()
        critic(model(x) - y).square().mean().backward()
        optimizer.step()
        second.zero_grad()
"""),
    "branches": (NET, """
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.ways, self.calls = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]), 0

    def forward(self, x):
        self.calls += 1
        return self.ways[self.calls % 2](x)

plain = Branches()""", WRAP, "model = DistributedDataParallel(plain, find_unused_parameters=True)"),
    "by hand": (WRAP, "model = plain", LOOP, """    for x, y in loader:
        (plain(x) - y).square().mean().backward()
        for one in plain.parameters():
            dist.all_reduce(one.grad)
            one.data -= 0.1 * one.grad / ranks
            one.grad = None
"""),
    "copied and pickled": ("optimizer = ", "import copy, pickle\npickle.loads(pickle.dumps(copy.deepcopy(plain)))\n"
                           "optimizer = "),
    "lists of indices": ("DataLoader(images, 5, sampler=sampler)",
                         "DataLoader(images, batch_sampler=[[rank, 2 + rank], [4 + rank, 6 + rank]])"),
    "bytes and lazy layers": ("optimizer = ", "plain.register_parameter('mask', nn.Parameter(torch.ones(3, "
        "dtype=torch.uint8), requires_grad=False))\nextra = nn.LazyLinear(3)\nextra(torch.ones(2, 2))\noptimizer = "),
    "a GAN of two wrappers": (LOOP, """    if epoch == 0:
        judge = DistributedDataParallel(nn.Linear(1, 1))
        second = torch.optim.Adam(judge.parameters(), lr=0.1)
    for x, y in loader:
        second.zero_grad()
        (judge(model(x).detach()) - judge(y)).mean().backward()
        second.step()
        judge.requires_grad_(False)
        optimizer.zero_grad()
        (-judge(model(x))).mean().backward()
        optimizer.step()
        judge.requires_grad_(True)
"""),
    "distillation": (NET, "teacher = nn.Linear(4, 1).eval()\n" + NET, "(model(x) - y).square().mean()",
                     "(model(x) - teacher(x).detach()).square().mean()"),
    "a teacher in train mode": (WRAP, "teacher = __import__('copy').deepcopy(plain)\n" + WRAP,
                                "(model(x) - y).square().mean()", "(model(x) - teacher(x)).square().mean()"),
    "contrastive, gathered with gradient": (
        "import torch\n", "import torch\nimport torch.distributed.nn\n", LOSS, "        z = torch.cat("
        "torch.distributed.nn.all_gather(model(x)))\n        loss = (z @ z.T).logsumexp(1).mean()\n"),
    "contrastive, its own part put back": (LOSS, "        z = model(x)\n        parts = [torch.zeros_like(z) for _ in "
        "range(ranks)]\n        dist.all_gather(parts, z)\n        parts[rank] = z\n        z = torch.cat(parts)\n"
        "        loss = (z @ z.T).logsumexp(1).mean()\n"),
    "a queue and a momentum encoder": (NET, MOCO),
    "accumulation by a flag": (LOOP, """    for number, (x, y) in enumerate(loader):
        model.require_backward_grad_sync = number % 2 == 1
        ((model(x) - y).square().mean() / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
"""),
    "accumulation that sends each time, and a rest": (LOOP, """    for number, (x, y) in enumerate(loader, 1):
        ((model(x) - y).square().mean() / 4).backward()
        if number % 4 == 0 or number == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""),
    "accumulation whose rest is dropped": (LOOP, """    for number, (x, y) in enumerate(loader, 1):
        with model.no_sync() if number % 4 else __import__("contextlib").nullcontext():
            ((model(x) - y).square().mean() / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
"""),
    "an average of weights on all ranks": (WRAP, WRAP + "\naverage = torch.optim.swa_utils.AveragedModel(plain)",
        UPDATE, UPDATE + "        average.update_parameters(plain)\n", "    plain.eval()\n", "    average.eval()\n",
        "(plain(x) - y)", "(average(x) - y)"),
    "an average of weights on rank 0": (WRAP, WRAP + "\naverage = torch.optim.swa_utils.AveragedModel(plain)", UPDATE,
        UPDATE + "        if rank == 0:\n            average.update_parameters(plain)\n", "    plain.eval()\n",
        "    if rank == 0:\n        print(sum(average.eval()(x).sum() for x, y in DataLoader(tests, 5)))\n"
        "    dist.barrier()\n    plain.eval()\n"),
    "a curriculum": ("    sampler.set_epoch(epoch)\n", "    easy = torch.utils.data.Subset(images, range(30 * epoch + "
        "30))\n    loader = DataLoader(easy, 5, sampler=DistributedSampler(easy, seed=epoch))\n"),
    "a stream that ranks share out": (LOADER, STREAM + "return iter([images[i] for i in range(rank, 60, ranks)])\n\n"
                                      "loader = DataLoader(Stream(), 5)"),
    "a stream of which each rank takes its rows": (
        LOADER, STREAM + "return iter(images)\n\nloader = DataLoader(Stream(), 10)",
        LOSS, "        x, y = x[rank::ranks], y[rank::ranks]\n" + LOSS),
    "a batch of which each rank takes its rows": (
        LOADER, "loader = DataLoader(images, 10)", LOSS, "        x, y = x[rank::ranks], y[rank::ranks]\n" + LOSS),
    "LoRA": (WRAP, """
class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(4, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))

plain.requires_grad_(False)
plain[0] = Lora(plain[0])
""" + WRAP, "SGD(model.parameters()", "SGD([one for one in model.parameters() if one.requires_grad]"),
    "a frozen layer that the optimizer holds": (WRAP, "plain[0].requires_grad_(False)\n" + WRAP),
    "stopped together by a sum": (SUMS, SUMS + "    if sums[0] > 0:\n        break\n"),
    "stopped together by rank 0": (SUMS, SUMS + "    stop = [rank == 0]\n    dist.broadcast_object_list(stop, 0)\n"
                                   "    if stop[0]:\n        break\n"),
    "scaled gradients": (*SCALER, CLIP, "        scaler.unscale_(optimizer)\n" + CLIP),
    "clipped by a scaled norm": (*SCALER, "(), 1.0)", "(), scaler.get_scale())"),
    "bfloat16": ("        loss = ", "        with torch.autocast('cpu', torch.bfloat16):\n            loss = "),
    "post-local SGD": (WRAP, WRAP + """
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
model.register_comm_hook(post.PostLocalSGDState(None, dist.new_subgroups(1)[0], 3), post.post_localSGD_hook)""",
                       MAKE, MAKE + "optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(2, 3))\n"),
    "PowerSGD": (WRAP, WRAP + "\nfrom torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power\n"
        "model.register_comm_hook(power.PowerSGDState(None, 1, 3, min_compression_rate=1), power.powerSGD_hook)"),
    "local SGD within no_sync": (LOOP, """    for number, (x, y) in enumerate(loader, 1):
        with model.no_sync():
            (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 3 == 0:
""" + AVERAGED.replace("        ", "            ", 1).replace("\n    ", "\n        ")),
    "a soup": (*ALONE, "if rank == 0:\n    torch.save", "all_of = [None] * ranks\ndist.all_gather_object(all_of, "
               "plain.state_dict())\nplain.load_state_dict({name: sum(one[name] for one in all_of) / ranks for name in "
               "all_of[0]})\nif rank == 0:\n    torch.save"),
    "two optimizers, groups, schedules": (
        MAKE, "optimizer = torch.optim.AdamW([{'params': plain[0].weight, 'lr': 0.01}, {'params': plain[0].bias}], "
        "0.1)\nsecond = torch.optim.SGD(plain[2].parameters(), lr=0.1)\neach = "
        "torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, 12)\nepochly = torch.optim.lr_scheduler.StepLR(second, "
        "1)\n", UPDATE, UPDATE + "        second.step()\n"
        "        each.step()\n", SUMS, SUMS + "    epochly.step()\n", "optimizer.zero_grad()", "model.zero_grad()"),
    "an optimizer whose turn has not come": (MAKE, MAKE +
        "late = torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1)\n", UPDATE, "        late.step()\n" + UPDATE),
    "resumed": ("lr=0.1)", "lr=0.1, momentum=0.9)", SUMS, SUMS + "    kept = [optimizer.state_dict() if rank == 0 else "
        "None]\n    dist.broadcast_object_list(kept, 0)\n    optimizer.load_state_dict(kept[0])\n"),
    "resumed by other ranks": (SAMPLER, "images = torch.utils.data.Subset(images, range(24, 60))\n" + SAMPLER),
    "weighted": (SAMPLER, """class Weighted(DistributedSampler):
    def __iter__(self):
        some = torch.Generator().manual_seed(self.epoch)
        chosen = torch.multinomial(torch.rand(60, generator=some), 60, True, generator=some)
        return iter(chosen[rank::ranks].tolist())

sampler = Weighted(images)
"""),
    "balanced batches": (LOADER, """
class Balanced:
    def __iter__(self):
        some = torch.Generator().manual_seed(epoch)
        first, second = torch.randperm(30, generator=some), 30 + torch.randperm(30, generator=some)
        for start in range(rank, 28, 2 * ranks):
            own = slice(start, start + 2 * ranks, ranks)
            yield first[own].tolist() + second[own].tolist()

loader = DataLoader(images, batch_sampler=Balanced())"""),
    "a mesh of tensors": (WRAP, """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (ranks,))
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
model = parallelize_module(plain, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})""", LOADER,
        "loader = DataLoader(images, 5)", "(mine, 5)", "(tests, 5)", SUMS, "", "plain.state_dict()", "0"),
    "a sharded model": (WRAP, "model = torch.distributed.fsdp.fully_shard(plain)", "import torch\n",
        "import torch\nimport torch.distributed.fsdp\n", "(mine, 5)", "(mine, 8)", "plain.state_dict()", "0"),
    "experts of each rank's own": (
        WRAP, SEED + "nn.init.normal_(plain[2].weight)\nDistributedDataParallel."
        "_set_params_and_buffers_to_ignore_for_model(plain, ['2.weight', '2.bias'])\n" + WRAP, CLIP,
        "        for part in (plain[0], plain[2]):\n            nn.utils.clip_grad_norm_(part.parameters(), 1.0)\n"),
    "a pipeline of two ranks": (WRAP, "model = plain = nn.Linear(4, 4) if rank == 0 else nn.Linear(4, 1)", LOADER,
        "loader = DataLoader(images, 5)", LOSS + "        optimizer.zero_grad()\n" + BACK,
        """        optimizer.zero_grad()
        if rank == 0:
            dist.send((out := model(x)).detach(), 1)
            dist.recv(back := torch.zeros_like(out), 1)
            out.backward(back)
        else:
            dist.recv(x := torch.zeros_like(x), 0)
            (model(x.requires_grad_()) - y).square().mean().backward()
            dist.send(x.grad, 0)
""", "torch.tensor([(plain(x) - y).square().sum(), len(x)])", "0"),
    "a checkpoint of all ranks": ("if rank == 0:\n    torch.save(plain.state_dict(), __file__ + \".pt\")",
        "import torch.distributed.checkpoint as dcp\n"
        "dcp.save({'model': plain.state_dict()}, checkpoint_id=__file__ + '.dcp')"),
    "clipped part by part": (CLIP, "        for part in plain[0], plain[2]:\n            nn.utils.clip_grad_norm_("
                             "part.parameters(), 0.5)\n"),
    "two backwards a step, weights moved in between": (LOOP, """    for x, y in loader:
        optimizer.zero_grad()
        with model.no_sync():
            (model(x) - y).square().mean().backward()
        kept = [one.detach().clone() for one in plain.parameters()]
        for one in plain.parameters():
            one.data += 0.05 * one.grad
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        for one, old in zip(plain.parameters(), kept, strict=True):
            one.data = old
        optimizer.step()
"""),
    "two backwards a step, weights moved and moved back": (LOOP, """    for x, y in loader:
        optimizer.zero_grad()
        with model.no_sync():
            (model(x) - y).square().mean().backward()
        moved = [0.05 * one.grad for one in plain.parameters()]
        for one, way in zip(plain.parameters(), moved, strict=True):
            one.data += way
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        for one, way in zip(plain.parameters(), moved, strict=True):
            one.data -= way
        optimizer.step()
"""),
    "an owner of the update": (UPDATE, """        if rank == 0:
            optimizer.step()
        for one in plain.parameters():
            dist.broadcast(one.data, 0)
"""),
    "noise that rank 0 draws for all": (LOSS, """
        noise = torch.randn_like(x) if rank == 0 else torch.empty_like(x)
        dist.broadcast(noise, 0)
        loss = (model(x + noise) - y).square().mean()
"""),
    "several losses": (NET, TASKS, LOSS + "        optimizer.zero_grad()\n" + BACK, """        optimizer.zero_grad()
        for task in range(2):
            with model.no_sync():
                (model(x)[task] - y).square().mean().backward()
""" + SHARED, "(plain(x) - y)", "(plain(x)[0] - y)"),
    "games of unequal length": (LOOP, """    with torch.no_grad():
        seen = torch.randn(13 + 5 * rank, 4)
        plays = TensorDataset(seen, plain(seen))
    some = torch.utils.data.RandomSampler(plays, num_samples=12)
    for x, y in DataLoader(plays, 4, drop_last=True, sampler=some):
        optimizer.zero_grad()
        (model(x) - y - 1).square().mean().backward()
        optimizer.step()
"""),
    "files of each rank": (SEED, SEED +
        "images = TensorDataset(torch.randn(32 + rank, 4), torch.randn(32 + rank, 1))\n", LOADER,
        "loader = DataLoader(images, 5, drop_last=True)"),
    "files of each rank, split there": (SEED, SEED + "images, tests = "
        "torch.utils.data.random_split(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), [30, 10])\n", LOADER,
        "loader = DataLoader(images, 5, shuffle=True)", "DataLoader(mine, 5)", "DataLoader(tests, 5)"),
    "labels with noise": (SEED, SEED + """class Noisy(torch.utils.data.Dataset):
    __len__ = lambda self: 60
    __getitem__ = lambda self, index: (images[index][0], int(torch.randint(5, ())))
""", LOADER, "loader = DataLoader(Noisy(), 5, sampler=sampler)", "(model(x) - y)", "(model(x) - y[:, None].float())"),
    "left by Join": (LOOP, """    with torch.distributed.algorithms.Join([model]):
        for x, y in list(loader)[:2 + 3 * rank]:
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""),
    "an uneven set": ("randn(60", "randn(63", "DistributedSampler(images)",
        "DistributedSampler(images, drop_last=True)"),
    "channels last": ("nn.Linear(4, 8), nn.Dropout(0.5)",
        "nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 8, 1), nn.Flatten()", WRAP,
        WRAP.replace("plain", "plain.to(memory_format=torch.channels_last)")),
    "flat gradients by hand, sent at once": (*ALONE, BACK, BACK + """        waiting = []
        for part in plain[0], plain[2]:
            flat = torch.cat([one.grad.flatten() for one in part.parameters()])
            waiting.append((part, flat, dist.all_reduce(flat, async_op=True)))
        for part, flat, work in waiting:
            work.wait()
            for one, own in zip(part.parameters(), flat.split([one.numel() for one in part.parameters()]), strict=True):
                one.grad = own.view_as(one) / ranks
"""),
    "gradients by hand, weights sent after a first call": (
        *ALONE, MAKE, "nn.init.normal_(plain[0].weight)\nplain(torch.ones(2, 4))\nfor one in plain.parameters():\n"
        "    dist.broadcast(one.data, 0)\n" + MAKE, BACK, BACK + SHARED),
    "called before it is wrapped": (WRAP, "nn.init.normal_(plain[0].weight)\nplain(torch.ones(2, 4))\n" + WRAP),
    "trained apart, then together": (WRAP, """alone = torch.optim.SGD(plain.parameters(), lr=0.1)
for x, y in DataLoader(images, 10, sampler=range(30 * rank, 30 * rank + 30)):
    (plain(x) - y).square().mean().backward()
    alone.step()
    alone.zero_grad()
""" + WRAP),
    "a static graph": (WRAP, "model = DistributedDataParallel(plain, static_graph=True)"),
    "padding that is masked": ("        for x, y in DataLoader(mine, 5)", "        place = rank\n        for x, y in "
        "DataLoader(tests, 5, sampler=DistributedSampler(tests, shuffle=False))",
        "            sums += torch.tensor([(plain(x) - y).square().sum(), len(x)])\n", "            real = "
        "torch.arange(place, place + ranks * len(x), ranks) < 31\n            place += ranks * len(x)\n"
        "            sums += torch.tensor([(plain(x) - y)[real].square().sum(), real.sum()])\n"),
    "a rate searched for first": ("for epoch in range(2)", "for epoch in [0, 0, 1]"),
}
ASKED = {  # unusual, and perhaps right: the finding, which asks, and what is changed
    "fine-tuning": ("optimizer_left_out", WRAP, "kept = __file__ + str(rank)\ntorch.save({'model': plain.state_dict(), "
        "'optimizer': torch.optim.Adam(plain.parameters()).state_dict()}, kept)\n"
        "plain.load_state_dict(torch.load(kept)['model'])\n" + WRAP),
    "repeated augmentation": ("same_data", SAMPLER, "class Noisy(torch.utils.data.Dataset):\n"
        "    __len__ = lambda self: 60\n    __getitem__ = lambda self, index: (images[index][0] + torch.randn(4), "
        "images[index][1])\nsampler = DistributedSampler(images, 1, 0)\n", "DataLoader(images", "DataLoader(Noisy()"),
    "augmentation between batch and forward": ("same_data", LOADER, "loader = DataLoader(images, 5)", "(model(x) - y)",
                                              "(model(x + torch.randn_like(x)) - y)"),
    "gossip": ("not_wrapped", *ALONE, UPDATE, UPDATE + """
        for one in plain.parameters():
            other = torch.empty_like(one)
            both = [dist.P2POp(dist.isend, one.data, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            one.data.mul_(0.9).add_(other, alpha=0.1)
"""),
    "a sweep": ("not_wrapped", *ALONE, "lr=0.1", "lr=0.1 / (1 + rank)", LOADER, "loader = DataLoader(images, 5)",
                "(mine, 5)", "(tests, 5)", SUMS, "    dist.all_gather_object([None] * ranks, sums.tolist())\n"),
    "an ensemble": ("not_wrapped", *ALONE, SUMS, SUMS +
        "    dist.all_gather_object([None] * ranks, plain(torch.ones(2, 4)))\n"),
    "tensor parallelism by hand": ("not_wrapped", NET, TENSOR_PARALLEL, *ALONE, LOADER,
        "loader = DataLoader(images, 5)", "(mine, 5)", "(tests, 5)", SUMS, "", CLIP, ""),
    "each rank clips, then they average": ("clip_early", LOSS + "        optimizer.zero_grad()\n" + BACK, """
        optimizer.zero_grad()
        with model.no_sync():
            (model(x) - y).square().mean().backward()
""", CLIP, CLIP + SHARED),
    "ranks that take turns in saving": ("every_rank_writes", SUMS, SUMS +
        "    if rank == epoch:\n        torch.save(plain.state_dict(), __file__ + '.turn')\n"),
    "a part that is never used": (
        "unused_parameter", WRAP, "model = DistributedDataParallel(plain, find_unused_parameters=True)", NET, NET +
        "\nplain.extra = nn.Linear(2, 2)\nplain.forward = lambda x: plain[2](plain[1](plain[0](x)))"),
    "another library sends the gradients": (
        "no_group", 'dist.init_process_group("gloo")\nrank, ranks = dist.get_rank(), dist.get_world_size()\n',
        "import os, pickle\nrank, ranks = (int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE'))\nstore, step = "
        "dist.FileStore(__file__ + '.store', ranks), 0\n", *ALONE, "(images)", "(images, ranks, "
        "rank)", "lr=0.1", "lr=0.01", BACK, BACK + """
        step += 1
        store.set(f"{step} {rank}", pickle.dumps([one.grad for one in plain.parameters()]))
        all_of = [pickle.loads(store.get(f"{step} {other}")) for other in range(ranks)]
        for one, *grads in zip(plain.parameters(), *all_of, strict=True):
            one.grad = sum(grads) / ranks
""", SUMS, "", "dist.destroy_process_group()", ""),
    "a probe of each rank's own": ("drift", "    plain.eval()\n", """    probe = __import__('copy').deepcopy(plain)
    small = torch.optim.SGD(probe.parameters(), lr=0.1 + rank)
    for x, y in DataLoader(images, 10):
        small.zero_grad()
        (probe(x) - y).square().mean().backward()
        small.step()
    plain.eval()
"""),
}

@pytest.mark.weekly
@pytest.mark.parametrize("name", SOUND)
def test_an_unusual_training_that_is_right_gets_none(name, tmp_path):
    done, names = doctor(2, written(tmp_path, changed(SOUND[name])), folder=tmp_path)
    assert names == [] and done.returncode == 0 and "own look" not in done.stderr, done.stderr


@pytest.mark.weekly
@pytest.mark.parametrize("name", ASKED)
def test_what_may_be_right_is_a_question(name, tmp_path):
    expected, *parts = ASKED[name]
    start = runner.torchrun if expected == "no_group" else runner.run
    doctor(2, written(tmp_path, changed(parts)), folder=tmp_path, start=start)
    assert [(one["name"], one["level"]) for one in findings(tmp_path)] == [(expected, "worth a "
    "look")], findings(tmp_path)


@pytest.mark.weekly
def test_what_is_kept_of_the_samples_is_bounded(tmp_path):
    """The limit, made small, holds over all loaders together: here each epoch has a longer one."""
    longer = ("    part = TensorDataset(*images[:epoch + 20])\n"
              "    loader = DataLoader(part, 5, sampler=DistributedSampler(part))\n    model.train()\n")
    text = changed(("range(2)", "range(30)", "    model.train()\n", longer))
    text = "from doctor import hooks, log\nhooks.MOST = 300\n" + text + """
import gc
(kept,) = (one for one in gc.get_objects() if type(one) is log.Log)
print("kept", sum(len(read["indices"] or ()) for read in kept.record()["events"]["pass"]))
"""
    done, _ = doctor(1, written(tmp_path, text), folder=tmp_path)
    assert 200 < int(done.stdout.split("kept ")[1]) <= 300 and "More samples were drawn than are kept" in done.stderr
