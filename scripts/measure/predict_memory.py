"""Predict for your own figures the way to share out a model that fits and is fast, by course/memory.py.

    python scripts/measure/predict_memory.py --parameters 70e9 --devices 64 --between 1.5
"""

from course import memory, rank_program
from trainer.options import positive


def predict(args):
    """A row for each way that fits; ValueError, one line, for what cannot be."""
    if args.devices > args.per_node and args.devices % args.per_node:
        raise ValueError(f"--devices {args.devices} do not fill nodes of {args.per_node}: choose --per-node")
    cluster = memory.Cluster(args.devices, args.memory * 1e9, per_node=args.per_node, within=args.within * 1e9,
                             between=args.between * 1e9)
    chosen, fits = memory.choose(args.parameters, cluster, args.sequences)
    print(f"{'way':18} {'GB a device':>11}  data x tensor x pipeline  micro-batch  recompute  s a step")
    for way in memory.WAYS:
        if way in fits:
            plan = fits[way]
            shared = f"{plan.data} x {plan.tensor} x {plan.pipeline}"
            print(f"{way:18} {sum(plan.bytes.values()) / 1e9:11.1f}  {shared:>24}  {plan.micro_batch:11}  "
                  f"{plan.recompute:>9}  {plan.seconds:8.2f}{'  <- take this' if plan is chosen else ''}")
    if not chosen:
        print("nothing fits: take more devices or, where there are very many, more --sequences for them to share")


def main():
    parser = rank_program.parser(__doc__)
    add = parser.add_argument
    add("--parameters", type=positive(float), required=True, help="of the model, as 7e9")
    add("--devices", type=positive(int), required=True, help="how many there are")
    add("--memory", type=positive(float), default=80, help="of a device, GB; default: 80")
    add("--per-node", type=positive(int), default=8, help="devices of a node; default: 8")
    add("--within", type=positive(float), default=450, help="link within a node, GB/s; default: 450 (NVLink)")
    add("--between", type=positive(float), default=50,
        help="link to another node, GB/s a device; default: 50 (InfiniBand)")
    add("--sequences", type=positive(int), default=memory.BATCH,
        help=f"a step, of all devices together; default: {memory.BATCH}, 4 million tokens")
    args = parser.parse_args()
    with parser.one_line():
        predict(args)


if __name__ == "__main__":
    main()
