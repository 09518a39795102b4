"""Predict for your own figures: the time of a step on W ranks, or the way to share out a model that fits and is fast.

    python scripts/measure/predict.py time --fixed-ms 2 --image-us 60 --gradient-mb 0.25 --latency-us 30 \\
        --bandwidth-gbs 1
    python scripts/measure/predict.py memory --parameters 70e9 --devices 64 --between 1.5

The models are those of lessons 08 and 13, scaling.py and memory.py, where nodes, buckets and cores can be set, too.
"""

from course import rank_program
from lessons.l08_predict_scaling import scaling
from lessons.l13_beyond_ddp import memory
from options import positive


def predict_time(args):
    """A row for each world size; ValueError, one line, for what cannot be."""
    step, gradient_bytes = scaling.StepTime(args.fixed_ms / 1e3, args.image_us / 1e6), args.gradient_mb * 1e6
    link = scaling.Link(args.latency_us / 1e6, args.bandwidth_gbs * 1e9)
    job = scaling.Job(step, gradient_bytes, link, scaling.ddp_buckets(gradient_bytes))
    rows = scaling.table(job, args.world_sizes, args.batch_size, args.samples, args.strong)
    print("ranks  batch  step ms  all-reduce ms  not hidden ms  s/epoch   images/s  speed-up  efficiency")
    for row in rows:
        step, sent, exposed = (1e3 * row[f"{part}_seconds"] for part in ("step", "communication", "exposed"))
        print(f"{row['world_size']:5}  {row['batch_size']:5}  {step:7.2f}  {sent:13.3f}  {exposed:13.3f}  "
              f"{row['seconds']:7.2f}  {row['images_per_second']:9,.0f}  {row['speedup']:8.2f}  "
              f"{row['efficiency']:10.0%}")


def predict_memory(args):
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
    kinds = parser.add_subparsers(required=True, metavar="time|memory")
    kind = kinds.add_parser("time", help="of a step and of an epoch, from one rank's step and the links")
    kind.set_defaults(predict=predict_time)
    add = kind.add_argument
    add("--fixed-ms", type=float, required=True, help="a, milliseconds a step")
    add("--image-us", type=float, required=True, help="b, microseconds an image")
    add("--gradient-mb", type=float, required=True, help="megabytes of gradients: 4 bytes a parameter")
    add("--latency-us", type=float, required=True, help="of a link between ranks, microseconds")
    add("--bandwidth-gbs", type=float, required=True, help="of such a link, gigabytes a second")
    add("--world-sizes", type=positive(int), nargs="+", default=[1, 2, 4, 8], help="default: 1 2 4 8")
    add("--batch-size", type=positive(int), default=64, help="of each rank; with --strong of all (default: 64)")
    add("--samples", type=positive(int), default=50_000, help="images an epoch (default: 50000)")
    add("--strong", action="store_true", help="the ranks share one batch")
    kind = kinds.add_parser("memory", help="of each device, and the simplest way that is fast enough")
    kind.set_defaults(predict=predict_memory)
    add = kind.add_argument
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
        args.predict(args)


if __name__ == "__main__":
    main()
