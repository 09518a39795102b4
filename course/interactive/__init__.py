"""Small pages to try things on: the sampler, a ring all-reduce, buckets, the scaling model. `lesson.interactive` shows
them.

Each is one file NAME.html here, put into shell.html: plain JavaScript without a library or a request. What a page
computes is in its functions above the line "drawing"; tests/test_interactive.py holds their numbers against torch's and
the course's.
"""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent
ORDERS = FOLDER / "orders.json"
TITLES = {
    "sampler": "Which rank sees which item",
    "ring": "A ring all-reduce, step by step",
    "buckets": "When a bucket leaves",
    "scaling": "Speed-up of many ranks, predicted",
}
EPOCHS, MOST_ITEMS = 8, 32  # of orders.json


def page(name: str) -> str:
    """The whole HTML of a page, with all that it needs."""
    style, body = re.fullmatch(r"(?:<style>\n(.*?)</style>\n)?(.*)", _text(f"{name}.html"), re.DOTALL).groups()
    parts = {"title": TITLES[name], "style": style or "", "body": body.replace("@orders@", ORDERS.read_text().strip())}
    return re.sub(r"@(title|style|body)@\n?", lambda found: parts[found[1]].rstrip(), _text("shell.html"))


def orders() -> list[str]:
    """What DistributedSampler shuffles by, with seed 0: torch's permutations of 0 to n - 1, for n up to MOST_ITEMS.

    One string for each epoch: the permutations one after the other, n = 1 first, an item as one digit of base 32.
    """
    import torch  # late: whoever reads a page needs none

    def digits(n, epoch):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()  # the seed is seed + epoch
        return "".join("0123456789abcdefghijklmnopqrstuv"[item] for item in order)

    return ["".join(digits(n, epoch) for n in range(1, MOST_ITEMS + 1)) for epoch in range(EPOCHS)]


def write_orders() -> None:
    """Make orders.json: python -c 'from course import interactive; interactive.write_orders()'"""
    ORDERS.write_text(json.dumps(orders(), indent=0) + "\n")


def _text(name):
    return (FOLDER / name).read_text(encoding="utf-8")
