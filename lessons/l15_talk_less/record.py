"""Record what strategies learn from the same tokens, with tuned rates and several seeds.

    python lessons/l15_talk_less/record.py

The model, text, optimizer and crops are those of lessons/start/train_gpt.py on four ranks. The ranks take turns in this
one process: they train on their own between two messages, and a message is a mean here. test_talk_less.py shows that
the weights are those of four processes under torchrun with the course's strategies. Nothing recorded depends on the
machine's speed, so it may be busy.

The learning rate of each strategy, and DiLoCo's outer rate, are the best by the val loss with seed 0, of a search by
factors of 2 that ends when both neighbours of the best are worse. Lines are added to
results/recorded/talk-less/trainings.jsonl; what is there is not trained again.

A line: strategy, every (updates between two messages), lr, outer (DiLoCo's outer rate), seed, updates, tokens (per
batch), parameters, val ([[update, val loss of the weights that all ranks have]]).
"""

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from examples.minimal_gpt import GPT, loss_of, rate, read_text, validate

FILE = Path("results/recorded/talk-less/trainings.jsonl")
UPDATES, BATCH, CONTEXT, WIDTH, LAYERS = 800, 8, 64, 64, 2
RANKS, REPORT = 4, 80
SEEDS = (0, 1, 2)
LARGE = 8  # ordinary batches in a large one
# (strategy, batches between two messages)
STRATEGIES = [("ddp", 1), ("local", 8), ("diloco", 8), ("large", LARGE)]


def train(strategy: str, every: int, lr: float, outer: float | None, seed: int, updates: int = UPDATES,
          context: int = CONTEXT, width: int = WIDTH, layers: int = LAYERS,
          before: Callable[[list[GPT]], None] = lambda models: None) -> Iterator[list[GPT]]:
    """The models of all ranks, after each batch. DDP is one process with the whole batch: one model. "large" is DDP
    that makes one update of `every` batches.
    `before` is called with them before each message."""
    learnt, _ = read_text(Namespace(text=None, device="cpu", context=context))
    ranks, trained = 1 if strategy in ("ddp", "large") else RANKS, []
    batches = every if strategy == "large" else 1  # of an update
    for _ in range(ranks):
        torch.manual_seed(seed)
        model = GPT(context, width, layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: rate(update, updates // batches))
        trained.append((model, optimizer, schedule))
    agreed = parameters_to_vector(model.parameters()).detach()
    sgd = torch.optim.SGD([agreed], lr=outer, momentum=0.9, nesterov=True) if outer else None
    crops = torch.Generator().manual_seed(seed)
    for update in range(1, updates + 1):
        begins = torch.randint(len(learnt) - context, (BATCH,), generator=crops)
        for rank, (model, optimizer, schedule) in enumerate(trained):
            (loss_of(model, learnt[begins[rank::ranks, None] + torch.arange(context + 1)]) / batches).backward()
            if update % batches == 0:
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        if update % every == 0 and ranks > 1:
            before([each for each, _, _ in trained])
            mean = torch.stack([parameters_to_vector(each.parameters()).detach() for each, _, _ in trained]).mean(0)
            if sgd:
                agreed.grad = agreed - mean
                sgd.step()
                mean = agreed
            for each, _, _ in trained:
                vector_to_parameters(mean.clone(), each.parameters())
        yield [each for each, _, _ in trained]


def training(strategy: str, every: int, lr: float, outer: float | None, seed: int) -> dict:
    """The line of one training: from the file, or trained now, and added to it."""
    asked = {"strategy": strategy, "every": every, "lr": lr, "outer": outer, "seed": seed, "updates": UPDATES,
             "tokens": BATCH * CONTEXT}
    for line in FILE.read_text().splitlines() if FILE.exists() else ():
        if asked.items() <= json.loads(line).items():
            return json.loads(line)
    _, held_out = read_text(Namespace(text=None, device="cpu", context=CONTEXT))
    val = [[update, round(validate(models[0], held_out), 5)]
           for update, models in enumerate(train(strategy, every, lr, outer, seed), 1) if update % REPORT == 0]
    parameters = sum(each.numel() for each in GPT(CONTEXT, WIDTH, LAYERS).parameters())
    line = asked | {"parameters": parameters, "val": val}
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(*asked.values(), *val[-1], flush=True)
    return line


def best(first: float, loss_with) -> float:
    """The rate with the least loss, searched from `first` on by factors of 2."""
    losses = {first: loss_with(first)}
    while True:
        found = min(losses, key=losses.get)
        new = [each for each in (2 * found, found / 2) if each not in losses]
        if not new:
            return found
        losses |= {each: loss_with(each) for each in new}


def tune(strategy: str, every: int) -> tuple[float, float | None]:
    """(learning rate, outer rate): the learning rate with the least val loss of seed 0, at outer rate 0.7; then the
    outer rate at that learning rate. Momentum stays 0.9."""
    def loss(lr, outer):
        return training(strategy, every, lr, outer, 0)["val"][-1][1]

    first = 0.7 if strategy == "diloco" else None
    lr = best(0.006, lambda rate: loss(rate, first))
    return lr, first and best(first, lambda rate: loss(lr, rate))


def main():
    torch.set_num_threads(1)
    tuned = {each: tune(*each) for each in STRATEGIES}
    for seed in SEEDS[1:]:
        for (strategy, every), rates in tuned.items():
            training(strategy, every, *rates, seed)


if __name__ == "__main__":
    main()
