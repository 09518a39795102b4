"""Makes the web edition from the committed notebooks. scripts/site starts it.

    scripts/site    build/site/index.html

Exit status: 0 made, 1 not made, 2 bad input, 130 stopped by Ctrl-C.
"""

import os
import sys

import layout
from course import rank_program
from course.lesson import ROOT


def main():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/site"
    parser.add_argument("--executed", action="store_true",
                        help="make it from what scripts/run has executed, where that is newer than what is committed")
    args = parser.parse_args()
    os.chdir(ROOT)
    try:
        page = layout.build(args.executed)
    except RuntimeError as failed:
        print(f"scripts/site: {failed}", file=sys.stderr)
        return 1
    print(f"the site: {page.resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
