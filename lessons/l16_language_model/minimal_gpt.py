"""Train a small language model on the course's own pages, byte by byte, in one process. Lesson 16 asks for many.

    python lessons/l16_language_model/minimal_gpt.py
"""

import json
import math
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from trainer import files
from trainer.options import Parser, nonempty_path, positive

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("TROUBLESHOOTING.md", "*.py", "course/**/*.py", "doctor/*.py", "lessons/*/show.py", "notebooks/[0-9]*.ipynb")
ROWS = 128  # windows of the held-out text that are judged at one time
tell = partial(print, flush=True)  # at once, also where it goes to a file


def options():
    parser = Parser(description=__doc__.partition("\n\n")[0])
    for name, default, what in (("updates", 800, "of the weights"), ("batch", 16, "crops of an update"),
                                ("accumulate", 2, "micro-batches of an update"), ("context", 64, "bytes of a crop"),
                                ("width", 128, "of the model, a multiple of 4"), ("report", 100, "every N updates"),
                                ("write", 300, "bytes, in the end")):
        parser.add_argument(f"--{name}", type=positive(int), default=default, help=f"{what} ({default})")
    parser.add_argument("--lr", type=positive(float), default=3e-3, help="the highest learning rate (%(default)s)")
    parser.add_argument("--clip", type=positive(float), default=1.0, help="longest gradient (%(default)s)")
    parser.add_argument("--text", type=nonempty_path, help="a file to learn, in place of the course's pages")
    parser.add_argument("--save", type=nonempty_path, help="a file for the weights")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser


def arguments(parser):
    args = parser.parse_args()
    with parser.one_line():
        if args.text:
            files.check_input("--text", args.text)
        if args.save:
            files.check_output("--save", args.save)
        if args.width % 4:
            raise ValueError(f"--width {args.width} is not a multiple of 4, the number of heads")
    return args


def text(args):
    """Bytes to learn, and windows of the rest, [n, context + 1], each beginning with the last byte of the one before.
    The last tenth of every page is held out."""
    learnt, held_out = bytearray(), bytearray()
    for path in [args.text] if args.text else sorted(path for form in PAGES for path in ROOT.glob(form)):
        page = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".ipynb":
            cells = [cell for cell in json.loads(page)["cells"] if cell["cell_type"] == "markdown"]
            page = "\n\n".join("".join(cell["source"]) for cell in cells)
        cut = len(page) * 9 // 10
        learnt += page[:cut].encode()
        held_out += page[cut:].encode()
    if min(len(learnt), len(held_out)) <= args.context:
        options().error(f"{args.text or 'the text'} is too short for --context {args.context}")
    learnt, held_out = (torch.frombuffer(part, dtype=torch.uint8).to(args.device) for part in (learnt, held_out))
    return learnt, held_out.unfold(0, args.context + 1, args.context)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):  # [crops, bytes, width]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)  # [crops, heads, bytes, …]
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

    def forward(self, tokens):  # [crops, bytes]; returns a score for each next byte, [crops, bytes, 256]
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def loss_of(model, windows, reduction="mean"):
    """Of the prediction of each byte but the first. windows: bytes, [crops, context + 1]."""
    windows = windows.long()
    return cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten(), reduction=reduction)


def rate(update, updates):
    """Share of the highest learning rate: it rises over the first quarter, then falls along a cosine to a tenth."""
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
    learnt, held_out = text(args)
    model = GPT(args.context, args.width).to(args.device)
    optimizer = torch.optim.AdamW([
        {"params": [parameter for parameter in model.parameters() if parameter.ndim > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in model.parameters() if parameter.ndim == 1], "weight_decay": 0.0},
    ], lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, args.updates))
    crops = torch.Generator().manual_seed(0)  # chooses the crops, and nothing else
    tell(f"update 0, val loss {validate(model, held_out):.4f}")
    seconds = 0
    for update in range(1, args.updates + 1):
        start = time.perf_counter()
        begins = torch.randint(len(learnt) - args.context, (args.batch,), generator=crops)
        loss = 0
        for part in begins.chunk(args.accumulate):
            windows = learnt[part[:, None] + torch.arange(args.context + 1)]
            micro = loss_of(model, windows) / args.accumulate
            micro.backward()
            loss += micro.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - start
        if update % args.report == 0 or update == args.updates:
            tell(f"update {update}, loss {loss:.4f}, val loss {validate(model, held_out):.4f}, "
                 f"{update * args.batch * args.context / seconds:,.0f} tokens/s")
    tell(write(model, args))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    train(arguments(options()))
