"""Lesson 07: what a film tells of a trap, and where main.py has the lines of train.py."""

from pathlib import Path

# What it is for; a part of train.py's line; of main.py's program the file and a part of its line; what is added there.
SAME = [
    ("ranks and their group", "= join()", "main.py", "launch.init_distributed_mode(",
     "torchrun, Slurm and MPI; it names the ranks that have not come"),
    ("images and labels", "= get_dataset(", "main.py", "= data.load(args",
     "one rank per node prepares them; data sets of your own"),
    ("the wrapped model", "= MyDDP(", "main.py", "model = parallelise(", "DDP, DataParallel, or a class of your own"),
    ("which images, in which order", "= shard(", "main.py", "= Shard(", "a resumed run goes on within an epoch"),
    ("random numbers", "torch.manual_seed(", "main.py", "torch.manual_seed(args.seed + placement.rank)",
     "the same first weights, and dropout of its own for each rank"),
    ("micro-batches", "backward(parallel", "main.py", "else no_sync():", "a smaller last batch; bf16"),
    ("the update", "optimizer.step()", "main.py", "optimizer.step()",
     "clipping of the averaged gradient; a schedule of the learning rate"),
    ("the accuracy", "= evaluate(", "main.py", "utils.evaluate(", "rank 0's BatchNorm statistics for all ranks"),
    ("one line per epoch", 'print(f"epoch', "main.py", "run.end_epoch(", "a log that plots read"),
    ("are the ranks one model?", "sums = torch.zeros(", "trainer/run.py", "utils.weight_norm(", "after every epoch"),
    ("the saved weights", "save(parallel", "main.py", "checkpoint.save_model(raw_model",
     "the whole file, or the old one stays"),
]


def same_program(mine: str = "mine/train.py") -> list[dict]:
    """A row for each thing that both programs do: the number of its line in each. "–": theirs has other lines."""
    return [{"what": what, "train.py, line": _line(mine, own), "the same in": f"{file}, line {_line(file, theirs)}",
             "what it adds": added} for what, own, file, theirs, added in SAME]


def _line(file: str, part: str) -> int | str:
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if part in line), "–")


def step_by_step(film: dict) -> list[dict]:
    """A row per step of a film: each rank's loss, and whether the ranks had the same gradients, and then the same
    weights."""
    steps: dict[int, list[dict]] = {}
    for each in sorted(film["steps"], key=lambda each: each["rank"]):
        steps.setdefault(each["step"], []).append(each)

    def alike(of_ranks, kind):
        return "the same" if all(each[kind] == of_ranks[0][kind] for each in of_ranks) else "differ"

    return [{"step": step, **{f"loss of rank {each['rank']}": f"{each['loss']:.5f}" for each in of_ranks},
             "gradients": alike(of_ranks, "gradients"), "weights after it": alike(of_ranks, "values")}
            for step, of_ranks in sorted(steps.items())]
