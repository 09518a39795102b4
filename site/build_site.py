"""Makes the web edition from the committed notebooks. scripts/site starts it.

    scripts/site                   build/site/index.html
    scripts/site --slides 05 06    only slides of these lessons: build/slides/05_distributed_sampler.html, …

Exit status: 0 made, 1 not made, 2 bad input, 130 stopped by Ctrl-C.
"""

import os
import sys

import layout
from course import rank_program
from course.lesson import ROOT, notebooks


def main():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/site"
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--executed", action="store_true",
                        help="make it from what scripts/run has executed, where that is newer than what is committed")
    either.add_argument("--slides", nargs="+", metavar="NN", help="make slides of these lessons, and no site")
    args = parser.parse_args()
    os.chdir(ROOT)
    try:
        if args.slides:
            import slides  # late: it brings nbconvert

            names = {number: path.stem for number, path in notebooks().items()}
            if unknown := [number for number in args.slides if number not in names]:
                parser.error(f"--slides: no lesson {', '.join(unknown)}; there are {', '.join(names)}")
            for number in args.slides:
                page, count = slides.write(names[number])
                print(f"{count} slides: {page.resolve().as_uri()}")
            return 0
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
