"""Where DDP's training is not that of one process, and what it leaves to you: each trap as a small experiment.

    torchrun --nproc_per_node=2 lessons/l06b_ddp_traps/traps.py --step equality unused --out results/live/06b_traps.json

The ranks run on CPUs with gloo, so that every machine shows the same. Only torch's SyncBatchNorm needs a GPU.
"""

from functools import cache

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course import one_model, rank_program
from course.one_model import LR, between_ranks, flat_gradient, flat_weights, sent_by, worst
from course.sent import Sent
from trainer import launch, models

CPU = torch.device("cpu")


def all_reduces(sent):
    return sum(row["calls"] for row in sent.rows() if row["collective"] == "all_reduce")


# ---------------------------------------------------------------------------------------------- when equal, when not


def with_dropout(channels, classes, side):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 64), nn.ReLU(), nn.Dropout(0.5),
                         nn.Linear(64, classes))


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def mean_and_variance(x):
    """(mean, variance, number of values), each [C], of the channels of x [N, C, H, W], over the images of all ranks."""
    count = x.new_full((x.shape[1],), x.numel() / x.shape[1])
    sums = torch.stack([x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), count])
    total, squares, count = SumOverRanks.apply(sums)
    mean = total / count
    return mean, squares / count - mean.square(), count


class BatchNormOverRanks(nn.BatchNorm2d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        mean, variance, count = mean_and_variance(x)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        scale = self.weight / (variance + self.eps).sqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


def over_ranks(model):
    """Make every BatchNorm2d of the model take mean and variance over all ranks."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = BatchNormOverRanks
    return model


def unequal_sizes(count, ranks):
    """How many images each rank gets: all ranks but 0 one of 2 x `ranks` equal parts, rank 0 the rest."""
    few = count // (2 * ranks)
    return [count - (ranks - 1) * few] + [few] * (ranks - 1)


def equality(lab):
    """Largest difference of a weight between DDP and one process on the whole batches, case by case.

    In float64: in float32 the rounding of a single ReLU input can part two trainings of the residual network for good.
    """
    rank, ranks, size = lab.placement.rank, lab.placement.world_size, len(lab.whole[0][1])
    sizes = unequal_sizes(size, ranks)
    uneven = [tuple(part.split(sizes)[rank] for part in batch) for batch in lab.whole]

    def summed(logits, labels):
        return cross_entropy(logits, labels, reduction="sum")

    def by_share(logits, labels):  # DDP divides by the ranks: these add up to the mean over all images
        return summed(logits, labels) * ranks / size

    def sgd_for_sums(model):  # a sum over all images is so many times as large as their mean
        return torch.optim.SGD(model.parameters(), lr=LR / size)

    def fit(model, batches, optimizer, loss, device):
        for images, labels in batches:
            optimizer.zero_grad()
            loss(model(images.to(device, torch.float64)), labels.to(device)).backward()
            optimizer.step()

    @cache
    def weights_of_one_process(kind, loss, optimizer, device):
        model = lab.model(kind).to(device, torch.float64)
        if rank == 0:
            fit(model, lab.whole, optimizer(model), loss, device)
        weights = flat_weights(model).cpu()
        dist.broadcast(weights, src=0)
        return weights

    def compare(kind=models.ConvNet, shards=lab.shards, loss=cross_entropy, loss_of_one=cross_entropy,
                optimizer=lab.sgd, seed=0, device=CPU, convert=lambda model: model):
        right = weights_of_one_process(kind, loss_of_one, optimizer, device)
        model = convert(lab.model(kind)).to(device, torch.float64)
        parallel = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        torch.manual_seed(seed)  # of the dropout masks
        fit(parallel, shards, optimizer(model), loss, device)
        return worst((flat_weights(model).cpu() - right)[None])[0], model

    off, own = compare(models.SmallResNet)
    off_over_ranks, shared = compare(models.SmallResNet, convert=over_ranks)
    weights = {
        "equal shards": compare()[0],
        "unequal shards": compare(shards=uneven)[0],
        "unequal shards, loss weighted": compare(shards=uneven, loss=by_share)[0],
        "loss summed": compare(loss=summed, loss_of_one=summed, optimizer=sgd_for_sums)[0],
        "dropout, one seed": compare(with_dropout, seed=0)[0],
        "dropout, one seed per rank": compare(with_dropout, seed=rank)[0],
        "BatchNorm": off,
        "BatchNorm over all ranks": off_over_ranks,
    }
    batchnorm = {
        "layers": sum(isinstance(module, nn.BatchNorm2d) for module in own.modules()),
        "messages": {name: all_reduces(sent_by(DistributedDataParallel, convert(lab.model(models.SmallResNet)), lab))
                     for name, convert in (("BatchNorm", nn.Identity()), ("BatchNorm over all ranks", over_ranks))},
        "running_means": {name: between_ranks(model.stem[1].running_mean[None])[0] for name, model in (
            ("BatchNorm", own), ("BatchNorm over all ranks", shared))}}
    if lab.placement.device.type == "cuda":  # torch's own
        batchnorm["torch.nn.SyncBatchNorm"], _ = compare(models.SmallResNet, device=lab.placement.device,
                                                         convert=nn.SyncBatchNorm.convert_sync_batchnorm)
    return {"weights": weights, "batchnorm": batchnorm}


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


def first_try(parallel, parts):
    for images, labels in parts[:-1]:
        loss = cross_entropy(parallel(images), labels) / len(parts)
        with parallel.no_sync():
            loss.backward()
    images, labels = parts[-1]
    loss = cross_entropy(parallel(images), labels) / len(parts)
    loss.backward()


def never(parallel, parts):
    with parallel.no_sync():
        synchronise_each(parallel, parts)


def around_ddp(parallel, parts):
    synchronise_each(parallel.module, parts)


def no_sync(lab):
    """The gradient of a batch from four parts of it, in five ways: its all-reduces, and its distance from the gradient
    of one process."""
    whole, results = lab.model(), {}
    cross_entropy(whole(lab.whole[0][0]), lab.whole[0][1]).backward()
    truth = flat_gradient(whole)
    images, labels = lab.shards[0]
    parts = list(zip(images.chunk(4), labels.chunk(4), strict=True))
    for way in (synchronise_each, synchronise_last, first_try, never, around_ddp):
        model = lab.model()
        parallel = DistributedDataParallel(model)
        with Sent() as sent:
            way(parallel, parts)
        gradient = flat_gradient(model)
        results[way.__name__] = {
            "all_reduces": all_reduces(sent), "between_ranks": between_ranks(gradient[None])[0],
            "from_one_process": worst((gradient - truth)[None])[0]}
    return results


def unused(lab):
    """DDP's error message when a parameter gets no gradient, with `find_unused_parameters` and without."""
    results = {}
    for option in (False, True):
        model = lab.model()
        model.spare = nn.Linear(84, 10)  # forward leaves it out: it gets no gradient
        parallel = DistributedDataParallel(model, find_unused_parameters=option)
        try:
            steps = 0
            for images, labels in lab.shards[:3]:
                cross_entropy(parallel(images), labels).backward()
                steps += 1
            error = None
        except RuntimeError as raised:
            error = str(raised)
        results[str(option)] = {"error": error, "steps": steps, "tried": 3}
    return results


def order(lab):
    """How far apart the ranks' gradients are if the model changes its type before DDP wraps it, and afterwards."""
    images, labels = lab.shards[0]
    results = {}
    for name, parallel in (("DDP(model.double())", DistributedDataParallel(lab.model().double())),
                           ("DDP(model).double()", DistributedDataParallel(lab.model()).double())):
        cross_entropy(parallel(images.double()), labels).backward()
        results[name] = between_ranks(flat_gradient(parallel)[None])[0]
    return results


# ---------------------------------------------------------------------------------------------- around the training


def save(lab):
    """Rank 0 writes the weights beside --out. The result holds the first name in each state_dict()."""
    parallel = DistributedDataParallel(lab.model())
    if lab.placement.rank == 0:
        torch.save(parallel.module.state_dict(), lab.args.out.with_suffix(".pt"))
    return {"names": {"DDP(model)": next(iter(parallel.state_dict())),
                      "DDP(model).module": next(iter(parallel.module.state_dict()))}}


def memory(lab):
    """Bytes that each rank holds for training, by kind, as DDP is by default and with gradient_as_bucket_view=True."""
    results = []
    for view in (False, True):
        model, buckets = lab.model(), {}  # {place of its memory: bytes}

        def noted(_, bucket, buckets=buckets):
            buckets[bucket.buffer().untyped_storage().data_ptr()] = bucket.buffer().nbytes
            return allreduce_hook(None, bucket)

        parallel = DistributedDataParallel(model, gradient_as_bucket_view=view)
        parallel.register_comm_hook(None, noted)
        optimizer = torch.optim.Adam(model.parameters())
        for batch in lab.shards[:3]:  # DDP orders its buckets anew after the first
            buckets.clear()
            optimizer.zero_grad()
            cross_entropy(parallel(batch[0]), batch[1]).backward()
            optimizer.step()
        own = [parameter.grad for parameter in model.parameters()
               if parameter.grad.untyped_storage().data_ptr() not in buckets]
        state = [value for values in optimizer.state.values() for value in values.values()]
        sizes = {name: sum(tensor.nbytes for tensor in tensors) for name, tensors in
                 (("parameters", model.parameters()), ("gradients", own), ("Adam's state", state))}
        sizes["buckets"] = sum(buckets.values())
        results.append({"gradient_as_bucket_view": view, "values": flat_weights(model).numel(),
                        "ranks": launch.gathered(sizes)})
    return results


QUESTIONS = {step.__name__: step for step in (equality, no_sync, unused, order, save, memory)}


def main():
    parser = one_model.get_parser(__doc__)
    parser.add_argument("--step", nargs="+", required=True, choices=QUESTIONS, metavar="NAME",
                        help=f"of: {', '.join(QUESTIONS)}")
    args = parser.parse_args()
    one_model.run(args, parser, {name: QUESTIONS[name] for name in args.step})


if __name__ == "__main__":
    rank_program.start(main)
