"""LeNet, trained under one wrapper after another: do the ranks stay one model, and is it the model of one process?

    torchrun --nproc_per_node=2 lessons/l06_ddp/wrapped_training.py --wrapper none lessons/l06_ddp/my_ddp.py:MyDDP ddp \
        --out results/live/06_wrapped.json

none: each rank for itself. ddp: DistributedDataParallel. FILE.py:CLASS: a class of one's own, as of main.py --wrapper.
Each training starts from other weights on every rank. After every update the weights are compared between the ranks,
and with those of one process that trains on the whole batches. The ranks run on CPUs with gloo, so that every machine
shows the same. ddp_questions.py, beside this file, asks DDP the questions that follow.
"""

from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel

from course import rank_program
from course.one_model import between_ranks, get_parser, run, sent_by, train, watched, worst
from trainer import files


def prove(wrap, lab):
    """Largest difference of a weight, between the ranks and from one process: a value before and after each update; and
    how many collectives an update calls."""
    seen, model = [], lab.model(seed=lab.placement.rank)
    train(wrap(model), watched(lab.shards, model, seen), lab.sgd(model))
    weights = torch.stack(seen)
    return {"between_ranks": between_ranks(weights), "from_one_process": worst(weights - lab.weights_of_one_process),
            "messages": sent_by(wrap, lab.model(), lab).calls.total()}


def wrapper(name):
    """The class, or function, that `--wrapper` names."""
    return {"none": lambda model: model, "ddp": DistributedDataParallel}.get(name) or files.from_file(name)


def main():
    parser = get_parser(__doc__)
    parser.add_argument("--wrapper", nargs="+", required=True, metavar="NAME", help="none, ddp or FILE.py:CLASS")
    args = parser.parse_args()
    with parser.one_line():
        experiments = {name: partial(prove, wrapper(name)) for name in args.wrapper}
    run(args, parser, experiments)


if __name__ == "__main__":
    rank_program.start(main)
