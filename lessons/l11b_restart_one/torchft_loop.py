"""One of several groups that train one model under torchft: where a group dies, the others go on without it.

    torchft_lighthouse --min_replicas 1 --join_timeout_ms 2000 --heartbeat_timeout_ms 1500
    export TORCHFT_LIGHTHOUSE=http://localhost:29510    # and then, for each group, in a terminal of its own:
    torchrun --nproc_per_node=1 --max-restarts=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:0
        lessons/l11b_restart_one/torchft_loop.py --group 0 --groups 2 --epochs 2 --log-file results/live/group0.jsonl

The training is main.py's: model, data, order of images, optimizer. A group is one rank here, and has a torchrun of its
own, which starts it again. The lighthouse knows which groups are alive. It takes main.py's options, but those that
torchft decides. lessons/l11b_restart_one/restart_nothing.py starts all of it, and kills a group.

The gradients are averaged by hand: DistributedDataParallel of torchft 0.2.0 ends with an AssertionError where another
group dies during its all-reduce.

The log has main.py's `run` record, and a `step` record for each step: `step` from 1, and `groups` that took part in it;
an `attempt` record for each that did not count, and was made again.
torchft comes with `pip install -e '.[rivals]'`.
"""

import dataclasses
import functools
import math
import os
import time
from datetime import timedelta

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DistributedSampler

import utils
from course import framework_run, rank_program
from trainer import checkpoint, data, models, options, run_log


def managed(args, raw_model, optimizer):
    """(manager, optimizer) of torchft: the manager knows which groups take part in a step."""
    from torchft import Manager, Optimizer, ProcessGroupGloo

    def state():  # what a group that comes back is sent by one that is alive
        return {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(sent):
        raw_model.load_state_dict(sent["model"])
        optimizer.load_state_dict(sent["optimizer"])

    longest = timedelta(seconds=args.timeout)
    manager = Manager(pg=ProcessGroupGloo(timeout=longest), state_dict=state, load_state_dict=load, min_replica_size=1,
                      init_sync=False,  # the seed is the same, so are the first weights
                      replica_id=f"group{args.group}", timeout=longest, quorum_timeout=longest, connect_timeout=longest)
    return manager, Optimizer(manager, optimizer)


def wait_for_all(manager, groups, seconds):
    """Let the first step wait until all groups are there, or for so long: torchft itself would begin with one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        manager.start_quorum()
        manager.wait_quorum()
        if manager.num_participants() == groups:
            break


def learn(manager, model, optimizer, batch, steps, log):
    """Go on until `steps` steps are made, wherever the other groups are. `batch(step)`: this group's part of it."""
    while (step := manager.current_step()) < steps:
        images, labels = batch(step)
        optimizer.zero_grad()  # asks which groups are there
        loss = cross_entropy(model(images), labels)
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        mean = parameters_to_vector(gradients)
        manager.allreduce(mean).wait()  # of the gradients of those groups; a failure is noted, and raises nothing
        vector_to_parameters(mean, gradients)
        optimizer.step()  # nothing, unless all of them have come so far
        made = manager.current_step()
        log.write("step" if made > step else "attempt", step=max(made, step + 1), groups=manager.num_participants(),
                  loss=loss.item())


def train(args, placement):
    torch.manual_seed(args.seed)
    train_set, test_set = data.load(args, placement)
    raw_model = models.make_model(args, train_set, placement.device)
    manager, optimizer = managed(args, raw_model, utils.make_optimizer(raw_model.parameters(), args))
    sampler = DistributedSampler(train_set, args.groups, args.group, shuffle=args.shuffle, seed=args.seed)
    per_epoch = math.ceil(len(sampler) / args.batch_size)

    @functools.lru_cache(maxsize=1)
    def order(epoch):
        sampler.set_epoch(epoch)
        return list(sampler)

    def batch(step):  # the step alone says which images: a group that comes back takes those of the step it joins
        epoch, place = divmod(step, per_epoch)
        return train_set.__getitems__(order(epoch)[place * args.batch_size:][:args.batch_size])

    with run_log.RunLog(args.log_file) as log:
        run_log.describe(args, dataclasses.replace(placement, rank=args.group, world_size=args.groups), sampler, log)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":  # one that comes back joins whoever is there
            wait_for_all(manager, args.groups, args.timeout)
        learn(manager, raw_model, optimizer, batch, args.epochs * per_epoch, log)
        loss, accuracy = utils.evaluate(raw_model, utils.shard_loader(test_set, placement), placement.device)
        log.write("result", val_loss=float(loss), val_accuracy=float(accuracy))
    if args.save_model:
        checkpoint.save_model(raw_model, args.save_model)
    manager.shutdown(wait=False)


def main():
    parser = options.get_parser(__doc__)
    parser.add_argument("--group", type=options.from_zero, default=0, help="which of them this is, from 0")
    parser.add_argument("--groups", type=options.positive(int), default=2, help="how many there are; default: 2")
    args = framework_run.parse(parser, "torchft")
    with parser.one_line():
        placement = framework_run.resolve(args)
        if placement.world_size != 1:
            raise ValueError(f"a group is one rank, and torchrun started {placement.world_size}: --nproc_per_node=1")
        if args.group >= args.groups:
            raise ValueError(f"--group {args.group}: groups count from 0, and there are {args.groups}")
        if placement.launcher != "torchrun":
            raise ValueError("without a torchrun of its own a group has nowhere to meet: start it as --help says")
        if "TORCHFT_LIGHTHOUSE" not in os.environ:
            raise ValueError("TORCHFT_LIGHTHOUSE is not set: start torchft_lighthouse, and set it as --help says")
    train(args, placement)


if __name__ == "__main__":
    rank_program.start(main)
