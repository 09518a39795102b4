"""Prepare CIFAR-10, MNIST or the synthetic set as one file each: data/cifar10.pt, data/mnist.pt, data/synthetic.pt.

    python scripts/prepare_data.py cifar10 mnist

Exit status 1 where a set could not be had. data.py says where the sets come from, and how they are checked.
"""

import logging
import sys
from pathlib import Path

import data
from course import rank_program
from options import nonempty_path


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(data.DATASETS), metavar="NAME",
                        help=f"one or more of {', '.join(sorted(data.DATASETS))}")
    parser.add_argument("--data-path", type=nonempty_path, default="data",
                        help="folder for the files (default: %(default)s)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    status = 0
    with parser.one_line():
        for name in args.names:
            try:
                data.prepare(name, Path(args.data_path, f"{name}.pt"))
            except ConnectionError as error:
                logging.error("%s", error)
                status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
