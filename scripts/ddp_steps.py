"""DistributedDataParallel from nothing, a small difference at a time, and questions about it. Notebook 06 draws this.

    torchrun --nproc_per_node=2 scripts/ddp_steps.py --step independent broadcast --out results/live/06_start.json

The first six steps are whole training loops. Each starts from other weights on every rank, and is compared after every
update between the ranks, and with one process that trains on the whole batches. The other steps each answer a question
about DDP. All of it runs on CPUs with gloo, so that every machine shows the same; only SyncBatchNorm asks for a GPU.
"""

import argparse
import os
import runpy
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the repository root
import utils
from options import Parser, check_out, get_dataset, positive

BUCKET_BYTES = 40_000  # of the steps `bucketed` and `overlapped`: LeNet's gradients then fill three
WARM_UP, TIMED = 3, 9  # steps of `timeline`

# ---------------------------------------------------------------------------------------------- from nothing to DDP


def independent(model, batches, optimizer):
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def broadcast(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def average(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def bucketed(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    buckets = make_buckets(model)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for bucket in buckets:
            flat = pack(bucket)
            dist.all_reduce(flat)
            unpack(flat / dist.get_world_size(), bucket)
        optimizer.step()


def overlapped(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    buckets = make_buckets(model)
    underway = []

    def gradient_is_there(bucket, parameter):
        if all(other.grad is not None for other in bucket):  # full: send it, while backward goes on
            flat = pack(bucket)
            underway.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    for bucket in buckets:
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(partial(gradient_is_there, bucket))
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for bucket, flat, work in underway:
            work.wait()
            unpack(flat / dist.get_world_size(), bucket)
        underway.clear()
        optimizer.step()


def ddp(model, batches, optimizer):
    parallel = DistributedDataParallel(model)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(parallel(images), labels).backward()
        optimizer.step()


def make_buckets(model):
    """The parameters in lists of about BUCKET_BYTES; the last layer first, as backward reaches it first."""
    buckets, filled = [[]], 0
    for parameter in reversed(list(model.parameters())):
        if filled >= BUCKET_BYTES:
            buckets, filled = [*buckets, []], 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


def pack(bucket):
    return torch.cat([parameter.grad.flatten() for parameter in bucket])


def unpack(flat, bucket):
    for parameter, part in zip(bucket, flat.split([parameter.numel() for parameter in bucket]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


# ---------------------------------------------------------------------------------------------- the proof


@dataclass
class Lab:
    """What every step gets: who this rank is, and the images."""

    args: object
    here: utils.Placement
    whole: list
    """(images, labels) of each training step, for one process: all ranks' images."""
    test_set: utils.ImageSet
    judges: dist.ProcessGroup | None = None
    """A group of its own, which no exercise's answer can break."""

    cpu = torch.device("cpu")

    @property
    def shards(self):
        """This rank's part of each whole batch, strided as DistributedSampler's."""
        return [(images[self.here.rank::self.here.world_size], labels[self.here.rank::self.here.world_size])
                for images, labels in self.whole]

    def model(self, kind=utils.ConvNet, seed=0):
        torch.manual_seed(seed)
        info = utils.DATASETS[self.test_set.name]
        return kind(info.shape[0], len(info.classes), info.shape[1])

    def sgd(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.args.lr)


def flat_weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def between_ranks(rows):
    """Largest difference between any two ranks in each row of [n, values], as a list of n."""
    high, low = rows.clone(), rows.clone()
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    return (high - low).amax(dim=1).tolist()


def worst(differences):
    """Largest absolute value in each row of [n, values] on any rank, as a list of n."""
    rows = differences.abs().amax(dim=1)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return rows.tolist()


def watched(batches, model, states, clock):
    """The batches, with the weights and the time before each step and after the last."""
    for batch in batches:
        states.append(flat_weights(model))
        clock.append(time.perf_counter())
        yield batch
    states.append(flat_weights(model))
    clock.append(time.perf_counter())


def prove(step, lab):
    """Largest difference of a weight, between the ranks and from one process: a value before and after each update."""
    states, truth, clock = [], [], []
    model, reference = lab.model(seed=lab.here.rank), lab.model(seed=0)
    step(model, watched(lab.shards, model, states, clock), lab.sgd(model))
    independent(reference, watched(lab.whole, reference, truth, []), lab.sgd(reference))
    states, truth = torch.stack(states), torch.stack(truth)
    seconds = torch.tensor(clock, dtype=torch.float64).diff().median().item()
    return {"between_ranks": between_ranks(states), "from_one_process": worst(states - truth),
            "seconds_a_step": seconds, "tensors": len(list(model.parameters())), "buckets": len(make_buckets(model)),
            "bytes": flat_weights(model).nbytes}


# ---------------------------------------------------------------------------------------------- when equal, when not


def scale(lab):
    """How many times the whole batch's gradient comes out, for each way to reduce losses and gradients."""

    def gradient(batch, reduction):
        model = lab.model()
        cross_entropy(model(batch[0]), batch[1], reduction=reduction).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    found = []
    for loss in ("mean", "sum"):
        whole, total = gradient(lab.whole[0], loss), gradient(lab.shards[0], loss)
        dist.all_reduce(total)
        for over_ranks, reduced in (("sum", total), ("mean", total / lab.here.world_size)):
            times = (reduced @ whole / (whole @ whole)).item()
            off = ((reduced / times - whole).abs().max() / whole.abs().max()).item()
            found.append({"loss": loss, "over_ranks": over_ranks, "times": times, "relative_difference": off})
    return found


class WithDropout(nn.Module):
    def __init__(self, channels, classes, side, rate=0.5):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 64), nn.ReLU(), nn.Dropout(rate),
                                    nn.Linear(64, classes))

    def forward(self, images):
        return self.layers(images)


def equality(lab):
    """Largest difference of a weight between DDP and one process on the whole batches, case by case."""
    rank, ranks, size = lab.here.rank, lab.here.world_size, len(lab.whole[0][1])
    few = size // (2 * ranks)  # images of every rank but 0, which gets all the others
    uneven = [tuple(part.split([size - (ranks - 1) * few] + [few] * (ranks - 1))[rank] for part in batch)
              for batch in lab.whole]

    def summed(logits, labels):
        return cross_entropy(logits, labels, reduction="sum")

    def by_share(logits, labels):  # DDP divides by the ranks: these add up to the mean over all images
        return summed(logits, labels) * ranks / size

    def sgd_for_sums(model):  # a sum over all images is so many times as large as their mean
        return torch.optim.SGD(model.parameters(), lr=lab.args.lr / size)

    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=lab.args.lr)

    def fit(model, batches, optimizer, loss, device):
        for images, labels in batches:
            optimizer.zero_grad()
            loss(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()

    def compare(kind=utils.ConvNet, shards=lab.shards, loss=cross_entropy, loss_of_one=cross_entropy,
                optimizer=lab.sgd, seed=0, device=lab.cpu, convert=lambda model: model):
        reference, model = lab.model(kind).to(device), convert(lab.model(kind)).to(device)
        fit(reference, lab.whole, optimizer(reference), loss_of_one, device)
        parallel = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        torch.manual_seed(seed)  # of the dropout masks
        fit(parallel, shards, optimizer(model), loss, device)
        return worst((flat_weights(model) - flat_weights(reference)).cpu()[None])[0], model

    off, resnet = compare(utils.SmallResNet)
    found = {"weights": {
        "equal shards": compare()[0],
        "unequal shards": compare(shards=uneven)[0],
        "unequal shards, loss weighted": compare(shards=uneven, loss=by_share)[0],
        "reduction='sum'": compare(loss=summed, loss_of_one=summed, optimizer=sgd_for_sums)[0],
        "dropout, one seed": compare(WithDropout, seed=0)[0],
        "dropout, a seed a rank": compare(WithDropout, seed=rank)[0],
        "dropout switched off": compare(partial(WithDropout, rate=0))[0],
        "BatchNorm": off,
        "Adam, equal shards": compare(optimizer=adam)[0],
    }}
    found["shard_sizes"] = [size - (ranks - 1) * few] + [few] * (ranks - 1)
    found["adam_updates"], found["lr"] = len(lab.whole), lab.args.lr
    found["running_means"] = between_ranks(resnet.stem[1].running_mean[None])[0]

    for name, seed in (("one seed", 0), ("a seed a rank", rank)):
        torch.manual_seed(seed)
        mask = nn.functional.dropout(torch.ones(10_000)).bool()
        first = mask.clone()
        dist.broadcast(first, src=0)
        agreeing = (mask == first).double().mean()[None]
        dist.all_reduce(agreeing, op=dist.ReduceOp.MIN)
        found[f"masks_agree, {name}"] = agreeing.item()

    try:
        synced, _ = compare(utils.SmallResNet, device=lab.here.device, convert=nn.SyncBatchNorm.convert_sync_batchnorm)
        plain, _ = compare(utils.SmallResNet, device=lab.here.device)
        found["sync_batchnorm"] = {"weights": synced, "plain": plain}
    except ValueError as error:  # on a CPU
        found["sync_batchnorm"] = {"error": f"{type(error).__name__}: {error}"}
    return found


# ---------------------------------------------------------------------------------------------- what DDP does, and when


def recorded(events, bucket):
    """A communication hook that does what DDP does without one, and writes down each bucket's all-reduce."""
    event = {"bucket": bucket.index(), "bytes": bucket.buffer().nbytes, "start": time.perf_counter(),
             "storage": bucket.buffer().untyped_storage().data_ptr()}
    events.append(event)

    def arrived(future):
        event["end"] = time.perf_counter()
        return future.value()[0]

    mean = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(mean, async_op=True).get_future().then(arrived)


def timeline(lab):
    """For each bucket size the events of a typical step, in milliseconds since a barrier, and all steps' medians.

    After `bucket_cap_mb` MiB or more a bucket is full. `wait` is what backward() does after the last bucket has
    started: nothing is left to compute. Clocks start when a rank leaves the barrier.
    """
    width, layers = lab.args.width, lab.args.layers
    inputs = torch.randn(lab.args.rows, width)

    def start(cap):
        torch.manual_seed(0)
        model = nn.Sequential(*[part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())])
        parallel, buckets = DistributedDataParallel(model, bucket_cap_mb=cap), []
        parallel.register_comm_hook(buckets, recorded)
        return parallel, torch.optim.SGD(model.parameters(), lr=0.01), buckets

    runs, steps_of_run = [start(cap) for cap in lab.args.bucket_mb], [[] for _ in lab.args.bucket_mb]
    for _ in range(WARM_UP + TIMED):
        for run, steps in zip(runs, steps_of_run, strict=True):  # in turn: what disturbs one disturbs all
            steps.append([{**event, "rank": lab.here.rank} for event in timed_step(*run, inputs)])
    found = []
    for cap, (parallel, *_), mine in zip(lab.args.bucket_mb, runs, steps_of_run, strict=True):
        of_ranks = [None] * lab.here.world_size
        dist.all_gather_object(of_ranks, mine[WARM_UP:])
        steps = [[event for events in one for event in events] for one in zip(*of_ranks, strict=True)]
        steps.sort(key=lambda events: max(event["end"] for event in events))
        found.append({"bucket_cap_mb": cap, "events": steps[len(steps) // 2],
                      "bytes": sum(parameter.nbytes for parameter in parallel.parameters()),
                      "medians": medians(steps)})
    return found


def timed_step(parallel, optimizer, buckets, inputs):
    """This rank's events of one step, a dict each, in milliseconds since a barrier."""
    buckets.clear()
    dist.barrier()
    marks = [time.perf_counter()]
    loss = parallel(inputs).square().mean()
    marks.append(time.perf_counter())
    loss.backward()
    marks.append(time.perf_counter())
    optimizer.step()
    optimizer.zero_grad()
    marks.append(time.perf_counter())
    start, forward, backward, update = marks
    last = max(bucket["start"] for bucket in buckets)
    rows = [("forward", start, forward), ("backward", forward, last), ("wait", last, backward),
            ("update", backward, update)]
    events = [{"lane": "compute", "event": name, "start": begin, "end": end} for name, begin, end in rows]
    events += [{"lane": "all-reduce", "event": "all-reduce", "text": str(bucket["bucket"]), **{
        key: bucket[key] for key in ("start", "end", "bytes")}} for bucket in buckets]
    return [{**event, "start": 1000 * (event["start"] - start), "end": 1000 * (event["end"] - start)}
            for event in events]


def medians(steps):
    """{event: milliseconds in a step on a rank}, medians over all steps and ranks."""
    sums = Counter()
    for number, events in enumerate(steps):
        for event in events:
            sums[event["event"], number, event["rank"]] += event["end"] - event["start"]
    names = {name for name, _, _ in sums}
    return {name: torch.tensor([value for key, value in sums.items() if key[0] == name]).median().item()
            for name in sorted(names)}


# ---------------------------------------------------------------------------------------------- gradient accumulation


def synchronise_each(parallel, parts):
    for images, labels in parts:
        loss = cross_entropy(parallel(images), labels) / len(parts)
        loss.backward()


def synchronise_last(parallel, parts):
    with parallel.no_sync():
        for images, labels in parts[:-1]:
            loss = cross_entropy(parallel(images), labels) / len(parts)
            loss.backward()
    images, labels = parts[-1]
    loss = cross_entropy(parallel(images), labels) / len(parts)
    loss.backward()


def misplaced(parallel, parts):
    for images, labels in parts[:-1]:
        loss = cross_entropy(parallel(images), labels) / len(parts)
        with parallel.no_sync():
            loss.backward()
    images, labels = parts[-1]
    loss = cross_entropy(parallel(images), labels) / len(parts)
    loss.backward()


def never(parallel, parts):
    with parallel.no_sync():
        for images, labels in parts:
            loss = cross_entropy(parallel(images), labels) / len(parts)
            loss.backward()


def around_ddp(parallel, parts):
    for images, labels in parts:
        loss = cross_entropy(parallel.module(images), labels) / len(parts)
        loss.backward()


def no_sync(lab):
    """The gradient of a batch from four parts of it, in five ways: all-reduces, and how far from one process's."""
    whole, found = lab.model(), {}
    cross_entropy(whole(lab.whole[0][0]), lab.whole[0][1]).backward()
    truth = pack(list(whole.parameters()))
    images, labels = lab.shards[0]
    parts = list(zip(images.chunk(4), labels.chunk(4), strict=True))
    for way in (synchronise_each, synchronise_last, misplaced, never, around_ddp):
        model, events = lab.model(), []
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(events, recorded)
        way(parallel, parts)
        gradient = pack(list(model.parameters()))
        found[way.__name__] = {
            "parts": len(parts), "all_reduces": len(events), "bytes": sum(event["bytes"] for event in events),
            "between_ranks": between_ranks(gradient[None])[0], "from_one_process": worst((gradient - truth)[None])[0]}
    return found


class WithSpareLayer(utils.ConvNet):
    """A layer that forward leaves out: it gets no gradient."""

    def __init__(self, channels, classes, side):
        super().__init__(channels, classes, side)
        self.spare = nn.Linear(84, classes)


def unused(lab):
    """What DDP says when a parameter gets no gradient, with `find_unused_parameters` and without."""
    found = {}
    for option in (False, True):
        model = lab.model(WithSpareLayer)
        parallel = DistributedDataParallel(model, find_unused_parameters=option)
        try:
            steps = 0
            for images, labels in lab.shards[:3]:
                cross_entropy(parallel(images), labels).backward()
                steps += 1
            error = None
        except RuntimeError as raised:
            error = str(raised)
        found[str(option)] = {"error": error, "steps": steps, "spare_has_gradient": model.spare.weight.grad is not None}
    return found


# ---------------------------------------------------------------------------------------------- around the training


def metrics(lab):
    """Accuracy of one model on a test set cut in unequal shards, computed in three ways, and by one process."""
    model = lab.model()
    ddp(model, 5 * lab.shards, torch.optim.Adam(model.parameters(), lr=0.002))  # to be better than blind guessing
    model.eval()
    count, ranks = len(lab.test_set), lab.here.world_size
    few = count // (4 * (ranks - 1))
    cuts = [count - (ranks - 1) * few] + [few] * (ranks - 1)
    first = sum(cuts[:lab.here.rank])
    images, labels = lab.test_set.__getitems__(range(first, first + cuts[lab.here.rank]))
    with torch.no_grad():
        hits = (model(images).argmax(1) == labels).sum().item()
        everything, answers = lab.test_set.__getitems__(range(count))
        truth = (model(everything).argmax(1) == answers).sum().item() / count

    own = [None] * ranks
    dist.all_gather_object(own, {"hits": hits, "images": len(labels)})
    average = torch.tensor(hits / len(labels), dtype=torch.float64)
    dist.all_reduce(average)
    sums = torch.tensor([hits, len(labels)], dtype=torch.float64)
    dist.all_reduce(sums)
    return {"ranks": own, "own_hits_of_all_images": [one["hits"] / count for one in own],
            "average_of_averages": average.item() / ranks, "sums": (sums[0] / sums[1]).item(), "one_process": truth}


def save(lab):
    """Rank 0 writes the weights beside --out, and all ranks read them: the barrier, and the names of the weights."""
    file = lab.args.out.with_suffix(".pt")
    parallel = DistributedDataParallel(lab.model(seed=lab.here.rank))
    if lab.here.rank == 0:
        file.unlink(missing_ok=True)
    dist.barrier()
    if lab.here.rank == 0:
        time.sleep(0.3)  # stands for a model of some gigabytes
        torch.save(parallel.module.state_dict(), file)
    before = file.exists()
    dist.barrier()
    after = file.exists()
    model = lab.model(seed=100 + lab.here.rank)
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

    seen = [None] * lab.here.world_size
    dist.all_gather_object(seen, {"before": before, "after": after})
    found = {"file_there": seen, "from_saved": worst((flat_weights(model) - flat_weights(parallel.module))[None])[0],
             "names": {"parallel.state_dict()": list(parallel.state_dict())[:2],
                       "parallel.module.state_dict()": list(parallel.module.state_dict())[:2]}}
    prefixed = parallel.state_dict()
    try:
        model.load_state_dict(prefixed)
    except RuntimeError as error:
        found["error"] = str(error)
    consume_prefix_in_state_dict_if_present(prefixed, "module.")
    found["after_cutting_the_prefix"] = str(model.load_state_dict(prefixed))
    return found


def memory(lab):
    """Bytes that each rank holds for training, by kind, as DDP is by default and with gradient_as_bucket_view=True."""
    found = []
    for view in (False, True):
        model, events = lab.model(), []
        parallel = DistributedDataParallel(model, gradient_as_bucket_view=view)
        parallel.register_comm_hook(events, recorded)
        optimizer = torch.optim.Adam(model.parameters())
        for batch in lab.shards[:3]:  # DDP orders its buckets anew after the first
            events.clear()
            ddp_step(parallel, batch, optimizer)
        in_buckets = {event["storage"] for event in events}
        own = [parameter.grad for parameter in model.parameters()
               if parameter.grad.untyped_storage().data_ptr() not in in_buckets]
        state = [value for values in optimizer.state.values() for value in values.values()]
        sizes = torch.tensor([sum(tensor.nbytes for tensor in tensors) for tensors in (model.parameters(), own, state)]
                             + [sum(event["bytes"] for event in events)])
        of_ranks = [torch.empty_like(sizes) for _ in range(lab.here.world_size)]
        dist.all_gather(of_ranks, sizes)
        names = ("parameters", "gradients", "Adam's state", "buckets")
        found.append({"gradient_as_bucket_view": view, "values": flat_weights(model).numel(),
                      "ranks": [dict(zip(names, sizes.tolist(), strict=True)) for sizes in of_ranks]})
    return found


def ddp_step(parallel, batch, optimizer):
    optimizer.zero_grad()
    cross_entropy(parallel(batch[0]), batch[1]).backward()
    optimizer.step()


def answer(lab):
    """What the functions in --answer do on these ranks; notebook 06's exercises judge it."""
    from scripts.checks import lesson_06  # only this step needs it

    try:
        functions = runpy.run_path(str(lab.args.answer))
    except Exception as error:  # a bracket forgotten, say: the checks tell it
        told = {"error": f"The file of your functions cannot be run: {type(error).__name__}: {error}"}
        return dict.fromkeys(lesson_06.MEASURES, told)
    return lesson_06.measure_all(functions, lab.judges)


PROOFS = {step.__name__: step for step in (independent, broadcast, average, bucketed, overlapped, ddp)}
QUESTIONS = {step.__name__: step
             for step in (scale, equality, timeline, no_sync, unused, metrics, save, memory, answer)}

# ---------------------------------------------------------------------------------------------- command


def get_parser():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--step", nargs="+", required=True, choices=[*PROOFS, *QUESTIONS], metavar="NAME",
        help=f"one or more of: {', '.join([*PROOFS, *QUESTIONS])}")
    add("--out", type=Path, required=True, help="write what was found to this file, as JSON: {step: findings}")
    add("--dataset", choices=["auto", *utils.DATASETS], default="auto", help="auto: cifar10, or else synthetic")
    add("--data-path", default="./data", help="folder of the data files")
    add("--steps", type=positive(int), default=20, help="updates of each training loop")
    add("--batch-size", type=positive(int), default=16, help="images a step, for each rank (8, 12, 16 ...)")
    add("--lr", type=positive(float), default=0.05, help="learning rate")
    add("--test-samples", type=positive(int), default=1000, help="images of `metrics`")
    add("--bucket-mb", type=positive(float), nargs="+", default=[4, 1000], help="bucket_cap_mb of each `timeline`, MiB")
    add("--width", type=positive(int), default=1024, help="of the layers in `timeline`")
    add("--layers", type=positive(int), default=6, help="of the model in `timeline`")
    add("--rows", type=positive(int), default=128, help="samples a step, for each rank, in `timeline`")
    add("--answer", type=Path, help="file of the functions that `answer` looks at")
    add("--timeout", type=positive(float), default=60, help="longest wait for another rank, seconds")
    return parser


def check(args, here):
    """ValueError, one line, for what cannot work; before any rank waits for another."""
    if here.world_size < 2:
        raise ValueError("this compares ranks: start two or more, torchrun --nproc_per_node=2 scripts/ddp_steps.py")
    if args.batch_size < 8 or args.batch_size % 4:
        raise ValueError(f"--batch-size {args.batch_size}: some steps cut each rank's batch in four equal parts, so "
                         "take 8, 12, 16 ...")
    if args.test_samples < 4 * here.world_size:
        raise ValueError(f"--test-samples {args.test_samples}: take {4 * here.world_size} or more, four for each rank")
    if "answer" in args.step and not (args.answer and args.answer.is_file()):
        raise ValueError(f"--answer {args.answer}: no such file; --step answer needs a file of functions")
    sizes = utils.DATASETS["cifar10" if args.dataset == "auto" else args.dataset].sizes
    needed = args.steps * args.batch_size * here.world_size
    if needed > sizes[0] or args.test_samples > sizes[1]:
        raise ValueError(f"{needed} training and {args.test_samples} test images are asked for; {args.dataset} has "
                         f"{sizes[0]} and {sizes[1]}: use less --steps, --batch-size or --test-samples")
    check_out(args.out)


@record  # a rank that fails leaves its traceback where torchrun finds it
def main():
    parser = get_parser()
    args = parser.parse_args()
    with parser.one_line():
        here = utils.find_placement(backend="gloo")
        check(args, here)
        train_set, test_set = get_dataset(args)
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # before CUDA starts: SyncBatchNorm is compared in full precision
    torch.set_num_threads(utils.threads_per_rank(here))
    utils.init_distributed_mode(here, timeout=args.timeout)
    utils.defer_compiler()  # nothing is compiled here
    judges = dist.new_group(timeout=timedelta(seconds=2 * args.timeout))
    size = args.batch_size * here.world_size
    lab = Lab(args, here, [train_set.__getitems__(range(step * size, (step + 1) * size)) for step in range(args.steps)],
              test_set.first(args.test_samples), judges)

    found = {"world_size": here.world_size, "dataset": train_set.name, "batch_size": args.batch_size}
    for name in args.step:
        start = time.perf_counter()
        found[name] = prove(PROOFS[name], lab) if name in PROOFS else QUESTIONS[name](lab)
        if here.rank == 0:
            say(name, found[name], time.perf_counter() - start)
    dist.barrier(judges)  # all have come this far: the findings are whole
    if here.rank == 0:
        utils.write_json(args.out, found)
    utils.end_distributed_mode()


def say(name, found, seconds):
    if name in PROOFS:
        print(f"{name:11} largest difference of a weight: between ranks {found['between_ranks'][-1]:.1e}, from one "
              f"process {found['from_one_process'][-1]:.1e}", flush=True)
    else:
        print(f"{name:11} done in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
    utils.exit_now()
