"""main.py, whose ranks agree to stop by `must_stop` of a learner's file; by ours where there is no file, or the stub.

    torchrun --nproc_per_node=2 lessons/l11_fault_tolerance/stop_together.py results/live/11_must_stop.py \\
        --epochs 6 --checkpoint build/kept --log-file build/run.jsonl

The file comes first, then main.py's options.
"""

import runpy
import sys
from pathlib import Path

import run
from course import rank_program
from course.on_ranks import theirs_or_ours
from lessons.l11_fault_tolerance import check

if __name__ == "__main__":
    parser = rank_program.parser(__doc__)
    with parser.one_line():
        if not sys.argv[1:2] or sys.argv[1].startswith("-"):
            raise ValueError("the first argument is the file with must_stop; main.py's options follow")
        must_stop, whose = theirs_or_ours(Path(sys.argv.pop(1)), "must_stop", check.must_stop)
    print(f"must_stop is {whose}")
    run.Run.must_stop = lambda self: must_stop(self.stop_signal is not None, self.progress.total_steps + 1)
    runpy.run_path("main.py", run_name="__main__")
