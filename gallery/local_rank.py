"""A script of before PyTorch 2.0: its launcher is expected to pass --local_rank."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
print(f"local rank {args.local_rank}, {args.epochs} epoch(s)", flush=True)
