"""One rank and two ranks to the same accuracy, in turns, by train.py.

    python lessons/l09_large_batch/race.py --one "--batch 64 --lr 0.03" --two "--batch 128 --lr 0.05" --out race.json
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from lessons.l09_large_batch.record import epochs
from trainer.options import positive


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", required=True, help="options of train.py for one rank")
    parser.add_argument("--two", required=True, help="... for two ranks")
    parser.add_argument("--both", default="", help="... for both")
    parser.add_argument("--pairs", type=positive(int), default=6)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    starts = {"one": [sys.executable], "two": torchrun}
    pairs = []
    for seed in range(args.pairs):
        pair = {}
        for who in ("one", "two") if seed % 2 else ("two", "one"):
            options = f"{getattr(args, who)} {args.both} --seed {seed}".split()
            done = subprocess.run([*starts[who], "mine/train.py", *options], stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(f"train.py {' '.join(options)} has ended with exit status {done.returncode}")
            pair[who] = epochs(done.stdout)
        pairs.append(pair)
        print(f"pair {seed + 1}: one rank {len(pair['one']['ms'])} epochs, two ranks {len(pair['two']['ms'])}",
              flush=True)
    Path(args.out).write_text(json.dumps(pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
