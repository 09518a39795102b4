"""Train a small GPT on text, byte by byte, in one process. minimal_gpt_ddp.py is the same program for many.

    python minimal_gpt.py                                       # learns the manual that comes with Python, on the CPU
    python minimal_gpt.py --text FILE --save gpt.pt
    python minimal_gpt.py --device cuda --bf16 --context 256 --width 512 --layers 8

Needs torch 2.6 or newer.
"""

import argparse
import math
import time
from pathlib import Path
from pydoc_data.topics import topics  # what help("topics") shows: nearly half a megabyte of English

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

HEADS = 4  # of the attention
ROWS = 128  # held-out windows per forward: all at once might not fit into memory


def options():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--text", help="a file to learn, in place of Python's manual")
    parser.add_argument("--updates", type=int, default=300, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=96, help="crops per update")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per update")
    parser.add_argument("--context", type=int, default=64, help="bytes per crop")
    parser.add_argument("--width", type=int, default=128, help="of the model, a multiple of its 4 heads")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--clip", type=float, default=1.0, help="maximum gradient norm")
    parser.add_argument("--report", type=int, default=50, help="updates between two validations")
    parser.add_argument("--write", type=int, default=300, help="bytes that the trained model writes")
    parser.add_argument("--save", help="a file for the weights")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16; the weights stay in float32")
    return parser


def mistake(args):
    """What is wrong with the options, in one line; None if nothing is."""
    if min(args.batch, args.accumulate, args.context, args.width, args.report) < 1:
        return "--batch, --accumulate, --context, --width and --report must be at least 1"
    if args.batch % args.accumulate:  # a micro-batch with fewer crops would weigh as much as the others
        return f"--batch {args.batch} cannot be divided by --accumulate {args.accumulate}"
    if args.width % HEADS:
        return f"--width {args.width} cannot be divided by {HEADS} heads"
    if args.text and not (Path(args.text).is_file() and Path(args.text).stat().st_size > 10 * args.context):
        return f"--text {args.text} is not a file of more than {10 * args.context} bytes (10 times --context)"
    if args.save and not Path(args.save).parent.is_dir():
        return f"--save {args.save}: its folder does not exist"
    return None


def read_text(args):
    """Bytes to learn, and windows of the last tenth, [n, context + 1]. A window begins with the last byte of the one
    before, so that each held-out byte but the first is predicted once."""
    text = Path(args.text).read_bytes() if args.text else "\n".join(topics.values()).encode()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(args.device)
    cut = len(tokens) * 9 // 10
    return tokens[:cut], tokens[cut:].unfold(0, args.context + 1, args.context)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):  # [crops, bytes, width]
        # Three parts of HEADS heads each: [crops, bytes, 3, heads, width of a head] to 3 x [crops, heads, bytes, ...]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, context, width, layers=2):
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks, self.norm = nn.Sequential(*(Block(width) for _ in range(layers))), nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.embedding.weight  # tied: what stands for a byte also scores it

    def forward(self, tokens):  # [crops, bytes] to a score for each possible next byte, [crops, bytes, 256]
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def loss_of(model, windows, reduction="mean"):
    """Cross entropy of the prediction of each byte but the first. windows: bytes, [crops, context + 1]."""
    windows = windows.long()
    return cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten(), reduction=reduction)


def rate(update, updates):
    """Share of the peak learning rate: it rises over the first quarter, then falls along a cosine to a tenth."""
    warm = max(1, updates // 4)
    falling = min(1, max(0, update - warm) / max(1, updates - warm))
    return min((update + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * falling))


@torch.no_grad()
def write(model, args):
    """What the model writes after a line break."""
    written = [10]
    for _ in range(args.write):
        scores = model(torch.tensor([written[-args.context:]], device=args.device))[0, -1]
        written.append(torch.multinomial((scores / 0.7).softmax(0), 1).item())
    return bytes(written).decode(errors="replace")


@torch.no_grad()
def validate(model, held_out):
    """Mean loss over the whole held-out text."""
    total = sum(loss_of(model, windows, "sum") for windows in held_out.split(ROWS))
    return total.item() / held_out[:, 1:].numel()


def train(args):
    torch.manual_seed(0)
    learnt, held_out = read_text(args)
    model = GPT(args.context, args.width, args.layers).to(args.device)
    optimizer = torch.optim.AdamW([  # matrices decay; the norms' weights and biases, which have one dimension, do not
        {"params": [parameter for parameter in model.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in model.parameters() if parameter.ndim == 1], "weight_decay": 0.0},
    ], lr=args.lr, betas=(0.9, 0.95), fused=args.device == "cuda")  # fused: one kernel for many parameters
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, args.updates))
    autocast = torch.autocast(args.device, torch.bfloat16, enabled=args.bf16)
    crops = torch.Generator().manual_seed(0)  # chooses the crops, and nothing else
    with autocast:
        print(f"update 0, val loss {validate(model, held_out):.4f}", flush=True)
    seconds, start = 0, time.perf_counter()
    for update in range(1, args.updates + 1):
        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)
        loss = 0
        for part in begins.chunk(args.accumulate):
            windows = learnt[part[:, None] + torch.arange(args.context + 1)]
            with autocast:
                micro = loss_of(model, windows) / args.accumulate  # gradients add up: of means, that makes the mean
            micro.backward()
            loss += micro.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if update % args.report == 0 or update == args.updates:
            loss = loss.item()  # waits for the GPU, so that the clock counts all of its work
            seconds += time.perf_counter() - start
            with autocast:
                val_loss = validate(model, held_out)
            print(f"update {update}, loss {loss:.4f}, val loss {val_loss:.4f}, "
                  f"{update * args.batch * args.context / seconds:,.0f} tokens/s", flush=True)
            start = time.perf_counter()  # the validation is not counted
    print(write(model, args))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    parser = options()
    args = parser.parse_args()
    if wrong := mistake(args):
        parser.exit(2, f"{wrong}\n")
    train(args)
