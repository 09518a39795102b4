"""Run the commands whose outputs are the evidence of lesson 12, and write them to evidence/: some minutes.

    python lessons/l12_break_it/record.py [4802] [4815]
"""

import os
import shlex
import sys
import uuid
from pathlib import Path

from course import processes

EVIDENCE = Path("lessons/l12_break_it/evidence")
TWO = "torchrun --nproc_per_node=2"
A, B = ("lessons/l12_break_it/jobs/job_4802.py", "lessons/l12_break_it/jobs/job_4815.py")
FILM = "-m doctor --film lessons/l12_break_it/evidence/{}/{}.json"
COMMANDS = {
    "4802": {"log": f"{TWO} {A} --save results/live/12_last.pt",
             "file": f"python {A} --evaluate results/live/12_last.pt",
             "compare": f"python -m course.one_process --ranks 2 --updates 6 {A}",
             "compare more": f"python -m course.one_process --ranks 2,3 --updates 18 {A}",
             "film": f"{TWO} {FILM.format('4802', 'film')} --steps 2:5 {A} --images 672 --epochs 2"},
    "4815": {"log": f"{TWO} {B}",
             "alone": f"torchrun --nproc_per_node=1 {B}",
             "slow network": f"{TWO} -m course.dial --rate 1gbit {B}",
             "own network": f"{TWO} -m course.dial --rate 10gbit {B}",
             "film": f"{TWO} -m course.dial --rate 10gbit {FILM.format('4815', 'film')} --steps 6:8 {B}"},
}


def main():
    Path("results/live").mkdir(parents=True, exist_ok=True)
    for case in sys.argv[1:] or COMMANDS:
        (EVIDENCE / case).mkdir(parents=True, exist_ok=True)
        for name, command in COMMANDS[case].items():
            status, text = processes.run_and_read(shlex.split(command), 300, uuid.uuid4().hex,
                                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            lines = [line for line in text.splitlines() if "WARNING" not in line and "****" not in line]
            said = "\n".join([f"$ {command}", *lines, *([f"exit status {status}"] if status else [])])
            (EVIDENCE / case / f"{name.replace(' ', '-')}.txt").write_text(said + "\n", encoding="utf-8")
            print(case, name, status, flush=True)


if __name__ == "__main__":
    main()
