"""Five trainings of the same small model, each with one mistake that says nothing. Lesson 12: which run has which?

    torchrun --nproc_per_node=2 lessons/l12_break_it/detective.py --out results/live/12_detective.json

It prints what each run would have logged. The letters are shuffled: check.py has them.
"""

import os

import files
import options
from course import rank_program
from lessons.l12_break_it.check import TRUTH

SAMPLES, TESTS, BATCH, EPOCHS = 96, 25, 16, 2


def training(fault):
    """The log of one run, as rank 0 collects it: {"epochs": [one dict a epoch], "test_images", "accuracy"}."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = torch.randn(SAMPLES + TESTS, 4)
    labels = (data[:, 0] + 0.5 * data[:, 1] > 0).float()
    labels[:SAMPLES:4] = 1 - labels[:SAMPLES:4]  # some are wrong, so that the ranks' losses differ
    model = DistributedDataParallel(nn.Linear(4, 1))
    forward = model.module if fault == "ddp_module" else model
    sampler = DistributedSampler(range(SAMPLES), seed=3)
    per_rank = BATCH if fault == "batch_per_process" else BATCH // ranks
    epochs = []
    for epoch in range(EPOCHS):
        if fault != "set_epoch":
            sampler.set_epoch(epoch)
        mine, updates, sums = torch.tensor(list(sampler)), 0, torch.zeros(2)
        for batch in mine.split(per_rank):
            loss = nn.functional.binary_cross_entropy_with_logits(forward(data[batch]).flatten(), labels[batch])
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
            updates += 1
            sums += torch.tensor([loss.item() * len(batch), len(batch)])
        own = (sums[0] / sums[1]).item()
        if fault != "rank_0_loss":
            dist.all_reduce(sums)
        tables = [None] * ranks
        dist.all_gather_object(tables, {"first_images": mine[:8].tolist(), "updates": updates, "images": len(mine),
                                      "loss": own, "weight_norm": model.module.weight.norm().item()})
        epochs.append({"loss": (sums[0] / sums[1]).item(), "ranks": tables})
    shard = list(DistributedSampler(range(TESTS), shuffle=False) if fault == "padded_evaluation"
                 else range(rank, TESTS, ranks))
    right = (model.module(data[SAMPLES:][shard]).flatten() > 0).float() == labels[SAMPLES:][shard]
    sums = torch.tensor([right.sum(), len(shard)])
    dist.all_reduce(sums)
    return {"epochs": epochs, "test_images": sums[1].item(), "accuracy": (sums[0] / sums[1]).item()}


def text(letter, log):
    """The log of a run, for people."""
    lines = [f"run {letter}"]
    for epoch, record in enumerate(log["epochs"]):
        lines.append(f"  Epoch {epoch}: loss {record['loss']:.4f}")
        for rank, table in enumerate(record["ranks"]):
            first = " ".join(map(str, table["first_images"]))
            lines.append(f"    rank {rank}: {table['updates']} updates, {table['images']} images ({first} …), "
                         f"loss {table['loss']:.4f}, weight norm {table['weight_norm']:.5f}")
    return "\n".join([*lines, f"  Test: accuracy {log['accuracy']:.4f}, {log['test_images']} images"])


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("--out", type=options.nonempty_path, help="write the logs to this file, as JSON")
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", 1)) < 2:
        parser.error("this needs two ranks: torchrun --nproc_per_node=2 …")
    if args.out:
        with parser.one_line():
            files.check_output("--out", args.out)
    import torch.distributed as dist

    import shortcuts

    dist.init_process_group("gloo")
    logs = {letter: training(fault) for letter, fault in TRUTH.items()}
    if dist.get_rank() == 0:
        print("\n\n".join(text(letter, log) for letter, log in logs.items()), flush=True)
        if args.out:
            rank_program.write_json(args.out, logs)
    shortcuts.exit_now()


if __name__ == "__main__":
    main()
