"""Makes copies of the course for learners: no outputs, no solutions. scripts/learner starts it.

    scripts/learner class/ada class/ben       a copy in each of these new folders

The checks in a copy judge and explain as here. A class on one machine can share one environment and one data folder:
teach/README.md says how. Exit status: 0 made, 2 bad input (and no copy begun is left), 130 stopped by Ctrl-C.
"""

import sys

from course import rank_program
from options import nonempty_path
from teach import learner_copy


def main():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/learner"
    parser.add_argument("folders", nargs="+", type=nonempty_path, metavar="DIR", help="a new folder, or an empty one")
    args = parser.parse_args()
    with rank_program.stoppable(parser):
        learner_copy.make(args.folders)
    print(f"made: {', '.join(map(str, args.folders))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
