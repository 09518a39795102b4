"""minimal_gpt.py in many processes: all ranks together train what one process trains, from the same crops.

    torchrun --nproc_per_node=2 lessons/l16_language_model/minimal_gpt_ddp.py           each rank holds the model
    torchrun --nproc_per_node=2 lessons/l16_language_model/minimal_gpt_ddp.py --fsdp    each rank holds a part of it
"""

import os
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lessons.l16_language_model.minimal_gpt import GPT, ROWS, arguments, loss_of, options, rate, tell, text, write


@torch.no_grad()
def validate(model, held_out):
    """Mean loss over the whole held-out text."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = torch.zeros((), device=held_out.device)
    for windows in held_out.split(ROWS * ranks):  # equally many on all ranks: a forward of FSDP is a collective
        total += loss_of(model, windows[rank::ranks], "sum")  # of none, at the end, it is 0
    dist.all_reduce(total)
    return total.item() / held_out[:, 1:].numel()


def train(args):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same first weights: DDP would send rank 0's, fully_shard sends nothing
    learnt, held_out = text(args)
    model = GPT(args.context, args.width).to(args.device)
    if args.fsdp:
        for part in (*model.blocks, model):
            fully_shard(part)
    wrapped = model if args.fsdp else DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW([  # after fully_shard, which puts other parameters in place
        {"params": [parameter for parameter in model.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in model.parameters() if parameter.ndim == 1], "weight_decay": 0.0},
    ], lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, args.updates))
    crops = torch.Generator().manual_seed(0)  # on all ranks the same: each takes its share of what is drawn
    val_loss, seconds = validate(model, held_out), 0
    if rank == 0:
        tell(f"update 0, val loss {val_loss:.4f}")
    for update in range(1, args.updates + 1):
        start = time.perf_counter()
        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)
        loss = 0
        for number, part in enumerate(begins[rank::ranks].chunk(args.accumulate), 1):
            windows = learnt[part[:, None] + torch.arange(args.context + 1)]
            last = number == args.accumulate
            if args.fsdp:
                model.set_requires_gradient_sync(last)
            with nullcontext() if last or args.fsdp else wrapped.no_sync():
                micro = loss_of(wrapped, windows) / args.accumulate
                micro.backward()
            loss += micro.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # of the mean gradient
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - start
        if update % args.report == 0 or update == args.updates:
            dist.all_reduce(loss)
            val_loss = validate(model, held_out)
            if rank == 0:
                tell(f"update {update}, loss {loss / ranks:.4f}, val loss {val_loss:.4f}, "
                     f"{update * args.batch * args.context / seconds:,.0f} tokens/s")
    written = write(model, args)  # on all ranks, for FSDP's forward
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        tell(written)
        if args.save:
            torch.save(weights, args.save)


def main():
    parser = options()
    parser.add_argument("--fsdp", action="store_true", help="shard the model, with fully_shard")
    args = arguments(parser)
    if "WORLD_SIZE" not in os.environ:
        parser.error("start this with torchrun --nproc_per_node=2")
    if args.batch % (args.accumulate * int(os.environ["WORLD_SIZE"])):
        parser.error("--batch must be divisible by --accumulate times the ranks, for equal micro-batches")
    if args.device == "cuda":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", timeout=timedelta(minutes=5))
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
