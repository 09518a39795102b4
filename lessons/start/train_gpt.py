"""Your language model: a small GPT learns Python's manual, byte by byte, on one process or on many. Change any line.

    python mine/train_gpt.py                                                one process
    torchrun --nproc_per_node=2 mine/train_gpt.py                           two ranks share every batch: DDP
    torchrun --nproc_per_node=2 mine/train_gpt.py --strategy zero           mine/zero.py, or the course's
    torchrun --nproc_per_node=2 mine/train_gpt.py --strategy zero --parts torch
    torchrun --nproc_per_node=2 -m course.dial --rate 300mbit mine/train_gpt.py --strategy fsdp

A strategy is a file with `parallelize(model, make_optimizer)`. Every rank calls it with the same whole model. It
returns `parallel`, which is called in the model's place, and `optimizer`, with step() and zero_grad().
`make_optimizer(parameters)` makes an AdamW that follows this program's learning rate. Where the strategy does not
fit the ranks or the model, it ends with `sys.exit("why")`. Where `parallel` has one of these, the program uses it:

    no_sync()           as DDP's: within it a backward() only adds up; used for all micro-batches but the last
    backward(windows, micro_batches)    forward and backward of all micro-batches; returns their mean loss
    finish()            waits until the gradients are there
    clip(max_norm)      shortens the gradient to that norm, all ranks' parts together
    share               (i, n): this rank takes crops i, i + n, i + 2n … of each batch; otherwise (rank, world size)
    whole()             {name: tensor}, all of the weights, on each rank; all ranks call it together
"""

import argparse
import importlib
import os
import sys
from contextlib import nullcontext

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", default="ddp", help="how several ranks train one model; default: ddp")
parser.add_argument("--parts", choices=("mine", "ours", "torch"), default="mine", help="whose strategy: yours where "
                    "you have written it, the course's, or PyTorch's own; default: mine")
parser.add_argument("--updates", type=int, default=60, help="optimizer steps; default: 60")
parser.add_argument("--batch", type=int, default=48, help="crops per update, of all ranks together; default: 48")
parser.add_argument("--micro-batches", type=int, default=1, help="parts of each rank's batch, one after another")
parser.add_argument("--context", type=int, default=64, help="bytes per crop; default: 64")
parser.add_argument("--width", type=int, default=128, help="of the model, a multiple of its 4 heads; default: 128")
parser.add_argument("--layers", type=int, default=4, help="blocks of the model; default: 4")
parser.add_argument("--lr", type=float, default=3e-3, help="largest learning rate; default: 0.003")
parser.add_argument("--clip", type=float, help="largest norm of the gradient; default: no limit")
parser.add_argument("--seed", type=int, default=0, help="of the first weights and the crops; default: 0")
parser.add_argument("--report", type=int, default=20, help="updates between two lines; default: 20")
parser.add_argument("--validate", action="store_true", help="tell the val loss, too, in each of these lines")
parser.add_argument("--text", help="a file to learn, in place of Python's manual")
parser.add_argument("--write", type=int, default=0, help="bytes that the trained model writes; default: 0")
parser.add_argument("--save", metavar="FILE", help="write the trained weights")
args = parser.parse_args()

if not os.path.isdir("lessons/start"):
    parser.exit(2, "start train_gpt.py in the course's folder: the parts that you have not written stand there\n")
ours, pytorch = os.path.abspath("lessons/start/ours"), os.path.abspath("lessons/start/pytorch")
sys.path[:1] = {"mine": [sys.path[0], ours], "ours": [ours], "torch": [pytorch, ours]}[args.parts] + [os.getcwd()]

from join import join, leave  # lesson 03
from stopwatch import now  # lesson 01
from examples.minimal_gpt import GPT, HEADS, loss_of, rate, read_text, validate, write

torch.set_num_threads(1)  # a process computes on one core, as in a cluster on one GPU
rank, world_size, args.device = join()
if args.width % HEADS or min(vars(args)[name] for name in ("batch", "micro_batches", "width", "layers", "context",
                                                           "updates", "report")) < 1 or args.lr <= 0 or (
        args.clip is not None and args.clip <= 0):
    parser.exit(2, f"--width must be a multiple of {HEADS}, sizes and counts at least 1, --lr and --clip above 0\n")
if args.text and not (os.path.isfile(args.text) and os.path.getsize(args.text) > 10 * args.context):
    parser.exit(2, f"--text {args.text} is not a file of more than {10 * args.context} bytes\n")
if args.save is not None and (
        not args.save or os.path.isdir(args.save) or not os.path.isdir(os.path.dirname(args.save) or ".")):
    parser.exit(2, f"--save {args.save!r} must be a file in a folder that is there\n")
if world_size > 1:
    try:
        strategy = importlib.import_module(args.strategy or "none")
    except ModuleNotFoundError as error:
        if not f"{args.strategy or 'none'}.".startswith(f"{error.name}."):
            raise  # of an import in the strategy's file
        parser.exit(2, f"--strategy {args.strategy}: there is no {args.strategy}.py in {', '.join(sys.path[:2])}\n")
    if not hasattr(strategy, "parallelize"):
        parser.exit(2, f"--strategy {args.strategy}: {strategy.__file__} has no parallelize()\n")

learnt, held_out = read_text(args)
torch.manual_seed(args.seed)  # the same first weights on all ranks
model = GPT(args.context, args.width, args.layers).to(args.device)
schedules = []


def make_optimizer(parameters):
    """AdamW, whose rate rises over the first quarter of the updates, then falls along a cosine to a tenth."""
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedules.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, args.updates)))
    return optimizer


def backward(windows, micro_batches):
    """Leave the gradient of the mean loss in the parameters; return that loss, without its graph."""
    total = 0.0
    for number, part in enumerate(windows.chunk(micro_batches), 1):
        quiet = number < micro_batches and hasattr(parallel, "no_sync")
        with parallel.no_sync() if quiet else nullcontext():
            loss = loss_of(parallel, part) / micro_batches
            loss.backward()
        total += loss.detach()
    return total


def whole():
    weights = model.state_dict().items()
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in weights}


def whole_model():
    """A GPT with all of the weights, as one process has it. All ranks call it together; it ends the program where they
    are not one model."""
    weights = getattr(parallel, "whole", whole)()
    sums = torch.zeros(world_size, dtype=torch.float64)  # a rank with other weights has another sum
    sums[rank] = sum(value.double().abs().sum() for value in weights.values())
    if world_size > 1:
        torch.distributed.all_reduce(sums)
    if not torch.isclose(sums, sums[:1], rtol=1e-6).all():
        sys.exit(f"The ranks are not one model. The sums of their weights are {sums.tolist()}.")
    alone = GPT(args.context, args.width, args.layers)
    alone.load_state_dict(weights)
    return alone


parallel, optimizer, name = model, None, "one process"
if world_size > 1:
    torch.manual_seed(1 + rank)  # from here on each rank draws numbers of its own
    name = f"{args.strategy} ({os.path.basename(os.path.dirname(strategy.__file__))})"
    try:
        parallel, optimizer = strategy.parallelize(model, make_optimizer)
    except SystemExit as refusal:
        if not isinstance(refusal.code, str):
            raise
        parser.exit(2, f"--strategy {args.strategy}: {refusal}\n")
optimizer = optimizer or make_optimizer(model.parameters())
which, shares = getattr(parallel, "share", (rank, world_size))
if args.batch % (shares * args.micro_batches):
    parser.exit(2, f"--batch {args.batch} must be a multiple of {shares} shares times --micro-batches\n")
if rank == 0:
    count = sum(parameter.numel() for parameter in GPT(args.context, args.width, args.layers).parameters())
    print(f"{name}: {count:,} parameters, {args.batch * args.context:,} tokens per update", flush=True)

crops = torch.Generator().manual_seed(args.seed)  # on all ranks the same: each takes its share of what is drawn
losses, start = [], now(args.device)
for update in range(1, args.updates + 1):
    begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)[which::shares]
    windows = learnt[begins[:, None] + torch.arange(args.context + 1)]
    optimizer.zero_grad()
    losses.append(getattr(parallel, "backward", backward)(windows, args.micro_batches))
    if hasattr(parallel, "finish"):
        parallel.finish()
    if args.clip:
        getattr(parallel, "clip", lambda norm: nn.utils.clip_grad_norm_(model.parameters(), norm))(args.clip)
    optimizer.step()
    for schedule in schedules:
        schedule.step()
    if update % args.report == 0 or update == args.updates:
        seconds = now(args.device) - start
        loss = torch.stack(losses).mean() / world_size
        if world_size > 1:
            torch.distributed.all_reduce(loss)
        line = f"update {update}: loss {loss:.4f}, {1000 * seconds / len(losses):.1f} ms per update"
        alone = whole_model() if args.validate else None
        if rank == 0:
            print(line + (f", val loss {validate(alone, held_out):.4f}" if alone else ""), flush=True)
        losses, start = [], now(args.device)

alone = whole_model()
if rank == 0:
    print(f"val loss {validate(alone, held_out):.4f} after {args.updates * args.batch * args.context:,} tokens")
    if args.write:
        print(write(alone, args))
    if args.save:
        torch.save(alone.state_dict(), args.save)
leave()
