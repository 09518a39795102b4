"""main.py, whose ranks agree to stop by `must_stop` of a learner's file; by ours where there is no file, or the stub.

    torchrun --nproc_per_node=2 lessons/l11_fault_tolerance/stop_together.py results/live/11_must_stop.py \\
        --epochs 6 --checkpoint build/kept --log-file build/run.jsonl

The file comes first, then main.py's options.
"""

import runpy
import sys
from pathlib import Path

from course import rank_program
from course.on_ranks import theirs_or_ours
from lessons.l11_fault_tolerance import solution
from trainer import options, run


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("file", type=options.nonempty_path, help="with must_stop")
    file = parser.parse_args(sys.argv[1:2]).file
    del sys.argv[1]  # what is left is main.py's
    with parser.one_line():
        must_stop, whose = theirs_or_ours(Path(file), "must_stop", solution.must_stop)
    print(f"must_stop is {whose}")
    run.Run.must_stop = lambda self: must_stop(self.stop_signal is not None, self.progress.total_steps)
    runpy.run_path("main.py", run_name="__main__")


if __name__ == "__main__":
    main()
