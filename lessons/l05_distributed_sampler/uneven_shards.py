"""Shards of unequal length under DDP: who waits for whom, what repairs it, and how much each image then counts.

    torchrun --nproc_per_node=3 lessons/l05_distributed_sampler/uneven_shards.py --out results/live/05_uneven.json

The ranks go once through the same few images, one image a step, in several ways. The weights stay as they are, so that
the ways can be compared with one another, and with one process. The ranks run on CPUs with gloo. Notebook 05 draws it.
"""

import copy
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from course import rank_program, shortcuts
from trainer import launch, models
from trainer.files import check_output

IMAGES = 10  # that the ranks share
LR = 0.02
BEFORE = 100  # steps of training with 64 other images each: of a new model all losses are about the same


def epoch(ddp_model, shard, around, seen):
    with around(ddp_model):
        for image, label in shard:
            loss = cross_entropy(ddp_model(image), label)
            ddp_model.zero_grad()
            loss.backward()  # averages the gradients of the ranks
            seen.append((loss.item(), flat_gradient(ddp_model)))


def padded(n):
    return DistributedSampler(range(n), shuffle=False)


def dropped(n):
    return DistributedSampler(range(n), shuffle=False, drop_last=True)


def uneven(n):
    return range(dist.get_rank(), n, dist.get_world_size())


WAYS = {  # the shard of a rank, and what stands around its loop
    "padded": (padded, nullcontext),
    "dropped": (dropped, nullcontext),
    "uneven": (uneven, nullcontext),
    "Join": (uneven, lambda ddp_model: Join([ddp_model])),
    "Join, False": (uneven, lambda ddp_model: ddp_model.join(divide_by_initial_world_size=False)),
}


def flat_gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()


def go_through(way, model, images, timeout):
    """This rank's {"shard", "losses", "gradient" (the sum over its steps), "seconds", "error" (or None)}."""
    deal, around = WAYS[way]
    dist.barrier()  # a late rank must not use up the few seconds in which the new group has to meet
    group = dist.new_group(timeout=timedelta(seconds=timeout))  # a way that breaks its group leaves the next one alone
    ddp_model = DistributedDataParallel(model, process_group=group)
    shard, seen, error = list(deal(len(images))), [], None
    dist.barrier()
    start = time.perf_counter()
    try:
        epoch(ddp_model, [images[item] for item in shard], around, seen)
    except RuntimeError as raised:
        error = str(raised)
    losses, gradients = zip(*seen, strict=True)
    return {"shard": shard, "losses": losses, "gradient": sum(gradients), "seconds": time.perf_counter() - start,
            "error": error}


def who_waited(ranks):
    """Which ranks waited in vain, how long, and in which step: {"ranks", "seconds", "step" (1 is the first)}."""
    waited = [rank for rank, rank_result in enumerate(ranks) if rank_result["error"]]
    if not waited:
        raise RuntimeError("no rank waited in vain for a rank with fewer images")
    return {"ranks": waited, "seconds": max(ranks[rank]["seconds"] for rank in waited),
            "step": 1 + len(ranks[waited[0]]["losses"])}


def of_one_process(model, batches):
    """(losses [steps], gradients [steps, parameters]) of one process on these batches, float64."""
    losses, gradients = [], []
    for images, labels in batches:
        model.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        losses.append(loss.item())
        gradients.append(flat_gradient(model))
    return torch.tensor(losses, dtype=torch.float64), torch.stack(gradients)


def counts(gradient, gradients, ranks):
    """How often each image counts in a gradient that is a sum of theirs: 1 is a rank's share of one step.

    By least squares, from one process's `gradients` [images, parameters] of each image alone.
    """
    return ranks * torch.linalg.lstsq(gradients.T, gradient[:, None]).solution.flatten()


def judged(ranks, gradients):
    """How often each image counts in one of WAYS, and how far its average gradient is from the mean of `gradients`,
    those of each image alone, as a share of that mean's length. Rank 0 has made every step: no shard is longer.
    """
    times, truth = counts(ranks[0]["gradient"], gradients, len(ranks)), gradients.mean(0)
    average = ranks[0]["gradient"] * len(ranks) / times.sum()
    return {"shards": [rank["shard"] for rank in ranks], "losses": [rank["losses"] for rank in ranks],
            "counts": times.tolist(), "gradient_off": ((average - truth).norm() / truth.norm()).item()}


def apart(model, images, momentum, timeout):
    """Largest difference between the ranks' weights after the first step of a second epoch. Both epochs use Join."""
    model = copy.deepcopy(model)
    ddp_model = DistributedDataParallel(model, process_group=dist.new_group(timeout=timedelta(seconds=timeout)))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    for _ in range(2):
        with Join([ddp_model]):
            for step, item in enumerate(uneven(len(images))):
                image, label = images[item]
                optimizer.zero_grad()
                cross_entropy(ddp_model(image), label).backward()
                optimizer.step()
                if step == 0:
                    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    of_ranks = torch.stack(launch.gathered(weights))
    return (of_ranks.amax(0) - of_ranks.amin(0)).max().item()


def train(model, train_set):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for start in range(IMAGES, IMAGES + 64 * BEFORE, 64):
        images, labels = train_set.__getitems__(range(start, start + 64))
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def look(ranks, train_set, timeout):
    """The results of all WAYS, a dict for JSON; the same on every rank."""
    torch.manual_seed(0)
    model = models.ConvNet(train_set.images.shape[1], image_size=train_set.images.shape[-1])
    if dist.get_rank() == 0:
        train(model, train_set)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    images = [train_set.__getitems__([item]) for item in range(IMAGES)]
    losses, gradients = of_one_process(model, images)
    batches = [train_set.__getitems__(part) for part in torch.arange(IMAGES).split(ranks)]
    alone = of_one_process(model, batches)[1].sum(0)
    results = {"images": IMAGES, "dataset": train_set.name, "loss": losses.mean().item(),
               "one process": counts(alone, gradients, ranks).tolist()}
    for way in WAYS:
        of_ranks = launch.gathered(go_through(way, model, images, timeout))
        results[way] = who_waited(of_ranks) if way == "uneven" else judged(of_ranks, gradients)
    return results | {"apart": {name: apart(model, images, momentum, timeout)
                                for name, momentum in (("plain SGD", 0), ("momentum", 0.9))}}


def main():
    parser = rank_program.parser(__doc__, out="write the results to this file, as JSON", dataset=True, timeout=3)
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        ranks = placement.world_size
        if ranks > IMAGES or IMAGES % ranks == 0:
            raise ValueError(f"{ranks} rank(s) cannot have uneven shards of {IMAGES} images with an image each: "
                             "take --nproc_per_node=3")
        check_output("--out", args.out)
        train_set, _ = rank_program.dataset(args)
    torch.set_num_threads(1)
    with rank_program.ranks(placement, 30 + 2 * args.timeout):
        shortcuts.defer_compiler()  # this program compiles nothing
        results = look(ranks, train_set, args.timeout)
    if placement.rank == 0:
        waited = results["uneven"]
        lengths = ", ".join(str(len(shard)) for shard in results["Join"]["shards"])
        print(f"shards of {lengths} images: rank {', '.join(map(str, waited['ranks']))} waited "
              f"{waited['seconds']:.1f} s in step {waited['step']}, then gave up")
        rank_program.write_json(args.out, results)


if __name__ == "__main__":
    rank_program.start(main)
