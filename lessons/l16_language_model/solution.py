"""Exam text A for many ranks: all together train what one process trains. --fsdp shards the model.

    torchrun --nproc_per_node=2 lessons/l16_language_model/solution.py --updates 60 [--fsdp]
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from examples.minimal_gpt import GPT, ROWS, options, rate, read_text, write
from lessons.l16_language_model.targets import loss_of
from lessons.l16_language_model.targets import paragraph as targets_of


@torch.no_grad()
def validate(model, held_out):
    """Mean loss over all targets of the held-out windows; all ranks call it together."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = torch.zeros(())
    for windows in held_out.split(ROWS * ranks):  # equally many on all ranks: a forward of FSDP is a collective
        part = windows[rank::ranks]
        total += loss_of(model, part, targets_of(part), "sum")  # of none, at the end, it is 0
    dist.all_reduce(total)
    return total.item() / (targets_of(held_out) >= 0).sum().item()


def train(args):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same first weights: DDP would send rank 0's, fully_shard sends nothing
    learnt, held_out = read_text(args)
    model = GPT(args.context, args.width, args.layers)
    if args.fsdp:
        for part in (*model.blocks, model):  # a block's weights are gathered together; the rest with the model
            fully_shard(part)
    wrapped = model if args.fsdp else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW([  # after fully_shard, which puts other parameters in place
        {"params": [parameter for parameter in model.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in model.parameters() if parameter.ndim == 1], "weight_decay": 0.0},
    ], lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, args.updates))
    crops = torch.Generator().manual_seed(0)  # on all ranks the same: each takes its share of what is drawn
    val_loss = validate(model, held_out)  # on all ranks: it holds collectives
    if rank == 0:
        print(f"update 0, val loss {val_loss:.4f}", flush=True)
    for update in range(1, args.updates + 1):
        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)
        windows = learnt[begins[:, None] + torch.arange(args.context + 1)]
        count = (targets_of(windows) >= 0).sum()  # of the whole update: this rank has drawn all of its crops
        loss = 0
        parts = windows[rank::ranks].chunk(args.accumulate)
        for number, part in enumerate(parts, 1):
            last = number == len(parts)  # only then need gradients be sent, all that have added up
            if args.fsdp:
                model.set_requires_gradient_sync(last)
            with nullcontext() if last or args.fsdp else wrapped.no_sync():
                micro = loss_of(wrapped, part, targets_of(part), "sum") / count
                (micro * ranks).backward()  # the mean over the ranks divides by their number
            loss += micro.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # of the mean gradient
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if update % args.report == 0 or update == args.updates:
            dist.all_reduce(loss)
            val_loss = validate(model, held_out)
            if rank == 0:
                print(f"update {update}, loss {loss.item():.4f}, val loss {val_loss:.4f}", flush=True)
    written = write(model, args)  # on all ranks, for FSDP's forward
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        print(written)
        if args.save:
            torch.save(weights, args.save)


if __name__ == "__main__":
    parser = options()
    parser.add_argument("--fsdp", action="store_true", help="shard the model")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()
