"""What a rank holds at most, for each number of micro-batches and of recomputed blocks. MyFSDP, ours.

    torchrun --nproc_per_node=2 lessons/l13_shard_kept/fit.py --budget 24 --out results/live/13_fit.json

The file is one JSON object: `budget`, bytes; `choices`, [{micro_batches, recomputed, most}], bytes of rank 0 at the
worst moment of an update, counted as course/step_memory.py does.
"""

import gc
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from course import rank_program
from course.step_memory import last_update, most, settle
from lessons.start.gpt_step import GPTStep
from lessons.start.ours.fsdp import parallelize
from trainer import files, launch
from trainer.options import positive

CONTEXT, WIDTH, LAYERS, BATCH = 64, 128, 4, 48  # of train_gpt.py
MICRO_BATCHES = 1, 2, 4


def recompute(model, count):
    """Activation checkpointing of the first `count` blocks: they keep their input, and backward runs them again."""
    for block in list(model.blocks)[:count]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def measured(micro_batches, recomputed):
    """Bytes at the worst moment of the last of three updates."""
    def strategy(model, make_optimizer):
        recompute(model, recomputed)
        return parallelize(model, make_optimizer)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorder:
        training = GPTStep(BATCH, CONTEXT, WIDTH, LAYERS, strategy, micro_batches)
        for _ in range(3):
            training.update()
    return most(last_update(recorder.profiler.kineto_results.events()))


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--budget", type=positive(float), required=True, help="MB per rank")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("this shards a model: start two ranks, torchrun --nproc_per_node=2")
        files.check_output("--out", args.out)
    torch.set_num_threads(1)
    settle()
    with rank_program.ranks(placement, args.timeout):
        choices = []
        for micro_batches in MICRO_BATCHES:
            for recomputed in range(LAYERS + 1):
                choices.append({"micro_batches": micro_batches, "recomputed": recomputed,
                                "most": measured(micro_batches, recomputed)})
                gc.collect()  # hooks and modules hold each other
    if placement.rank == 0:
        rank_program.write_json(args.out, {"budget": args.budget * 1e6, "choices": choices})


if __name__ == "__main__":
    rank_program.start(main)
