"""How long does an update take with each strategy, on two nodes of two ranks with a link of chosen speed between them?

    torchrun --nproc_per_node=4 lessons/l15_talk_less/speeds.py --between 20mbit 1gbit --strategies ddp hook \\
        --mine hook --out results/live/15_speeds.json

The strategies train the small GPT of the lesson in turns. Those of --mine are the learner's, of mine/, the others ours,
and ddp is PyTorch's. Within a node a pair of ranks has 1 Gbit/s (course/dial.py). A round of `local` is EVERY updates
and their message, one of the others two updates.

The file is one JSON object: the machine; `parameters`; `every`; `whose`, {strategy: "yours", "ours" or "PyTorch's"};
`rounds`, {rate between nodes: {strategy: [seconds per update, of the slowest rank]}}.
"""

import runpy
from functools import partial

import torch

from course import dial, rank_program, shortcuts
from course.timing import interleave, slowest, timed
from lessons.start.gpt_step import GPTStep
from trainer import files, launch
from trainer.options import positive

CPU, WITHIN, NODES, WARM_UP = torch.device("cpu"), "1gbit", "2x2", 3
STRATEGIES = {"ddp": "pytorch", "hook": "ours", "hierarchical": "ours", "local": "ours"}
BATCH, CONTEXT, WIDTH, LAYERS = 8, 64, 64, 2  # as in record.py


def measure(args):
    dial.pace(WITHIN, NODES, args.between[0])  # before the strategies make groups, whose connections it has to learn
    programs, every = {}, 1
    for name in args.strategies:
        module = runpy.run_path(f"{'mine' if name in args.mine else f'lessons/start/{STRATEGIES[name]}'}/{name}.py")
        training, calls = GPTStep(BATCH, CONTEXT, WIDTH, LAYERS, module["parallelize"]), module.get("EVERY", 2)
        every = module.get("EVERY", every)
        for _ in range(max(WARM_UP, calls)):  # a round begins after a message
            training.update()
        programs[name] = partial(timed, training.update, calls, CPU)
    rounds = {}
    for rate in args.between:
        dial.pace(WITHIN, NODES, rate)
        rounds[rate] = {name: slowest(seconds) for name, seconds in interleave(programs, args.rounds).items()}
    whose = {name: "yours" if name in args.mine else STRATEGIES[name].replace("pytorch", "PyTorch's")
             for name in args.strategies}
    return {"parameters": training.parameters, "every": every, "whose": whose, "rounds": rounds}


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--between", nargs="+", default=["20mbit", "1gbit"], metavar="RATE",
                        help="between two ranks on different nodes, one after the other (%(default)s)")
    parser.add_argument("--strategies", nargs="+", default=[*STRATEGIES], choices=STRATEGIES, metavar="STRATEGY",
                        help="which (%(default)s)")
    parser.add_argument("--rounds", type=positive(int), default=12, help="of each strategy (%(default)s)")
    parser.add_argument("--mine", nargs="*", default=[], choices=[*STRATEGIES][1:], metavar="STRATEGY",
                        help="take these from mine/")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size != 4:
            raise ValueError("two nodes of two ranks: torchrun --nproc_per_node=4")
        for rate in args.between:
            dial.bits(rate)
        if why := dial.missing():
            raise OSError(why)
        files.check_output("--out", args.out)
        for name in args.mine:
            files.check_input("--mine", f"mine/{name}.py")
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        results = measure(args)
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | results)


if __name__ == "__main__":
    rank_program.start(main)
