"""`--scale`: law 5 on two world sizes. From one nobody can tell: a weighted sum of two losses looks like 1/2 ranks.

    python -m doctor --scale my_train.py        two short runs, on 2 and on 3 ranks, without torchrun
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import report
from .laws import scale_by_ranks
from .runner import PACKAGE

SIZES = (2, 3)
UPDATES = 8  # of each run, unless --steps says it
PATIENCE = 20  # times --timeout: then a run is ended


def compare(args: argparse.Namespace) -> int:
    """Run the script on 2 and on 3 ranks, and report whether the scale of its gradients depends on that. Returns the
    exit status: 2 where a run shows no scale."""
    found: dict[int, dict[str, float]] = {}
    for ranks in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m",
                 "doctor", "--json", file, "--steps", str(args.steps or UPDATES), "--timeout", str(args.timeout),
                 args.script, *args.options], env=os.environ | {"PYTHONPATH": os.pathsep.join(
                     filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))},
                capture_output=True, text=True, timeout=PATIENCE * args.timeout, check=False)
            found[ranks] = json.loads(file.read_text())["scale"] if file.exists() else {}
        if not found[ranks]:
            sys.stderr.write(done.stderr)
            print(f"doctor: error: on {ranks} ranks no loss of torch.nn.functional reached an update", file=sys.stderr)
            return 2
    facts = [f"{line}: its mean loss enters the gradient with a factor of " + " and ".join(
        f"{found[ranks][line]:.3g} on {ranks} ranks" for ranks in SIZES if line in found[ranks]) + "."
        for line in found[SIZES[0]]]
    return int(report.publish(report.Report(list(scale_by_ranks(found)), facts, []), args.json) > 0)
