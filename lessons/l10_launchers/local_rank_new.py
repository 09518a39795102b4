"""local_rank_old.py with its cure: it works with torchrun, and with torch.distributed.launch of any version.

    torchrun --nproc_per_node=2 lessons/l10_launchers/local_rank_new.py
    python -m torch.distributed.launch --nproc_per_node=2 lessons/l10_launchers/local_rank_new.py
"""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
args = parser.parse_args()
print(f"local rank {args.local_rank}, {args.epochs} epoch(s)", flush=True)
