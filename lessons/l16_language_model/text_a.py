"""Exam text A, in one process: a small GPT learns Python's manual. A crop ends with its paragraph."""

import torch
import torch.distributed as dist
from torch import nn

from examples.minimal_gpt import GPT, ROWS, options, rate, read_text, write
from lessons.l16_language_model.targets import loss_of
from lessons.l16_language_model.targets import paragraph as targets_of


@torch.no_grad()
def validate(model, held_out):
    """Mean loss over all targets of the held-out windows."""
    total = sum(loss_of(model, windows, targets_of(windows), "sum") for windows in held_out.split(ROWS))
    return total.item() / (targets_of(held_out) >= 0).sum().item()


def train(args):
    torch.manual_seed(0)
    learnt, held_out = read_text(args)
    model = GPT(args.context, args.width, args.layers)
    optimizer = torch.optim.AdamW([  # matrices decay; the norms' weights and biases do not
        {"params": [parameter for parameter in model.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in model.parameters() if parameter.ndim == 1], "weight_decay": 0.0},
    ], lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, args.updates))
    crops = torch.Generator().manual_seed(0)
    print(f"update 0, val loss {validate(model, held_out):.4f}", flush=True)
    for update in range(1, args.updates + 1):
        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)
        windows = learnt[begins[:, None] + torch.arange(args.context + 1)]
        loss = loss_of(model, windows, targets_of(windows))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if update % args.report == 0 or update == args.updates:
            print(f"update {update}, loss {loss.item():.4f}, val loss {validate(model, held_out):.4f}",
                  flush=True)
    print(write(model, args))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    parser = options()
    parser.add_argument("--fsdp", action="store_true", help="for the second part of the exam")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()
