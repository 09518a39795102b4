"""The image sets: what they are, how each becomes one checked file in data/, and how all ranks map that file.

The real sets come through torchvision. The arrays are checked (counts, classes, SHA-256) before the file is written,
and it is written under another name and renamed when it is whole.

A data set of one's own: --dataset FOLDER, with train/CLASS/*.jpg and val/CLASS/*.jpg, or --dataset FILE.py:NAME.
NAME is a class, or a function, that is called with train=True and with train=False on each rank, and gives a data set:
    len(it)        the number of images, the same on each rank: a sampler shares them out
    it[i]          image i and its class: a float tensor [C, H, W], of one size, and an int
    it.classes     the names of the classes, in the order of those numbers, the same in both sets and on each rank
    it.collate     may be left out; makes a batch of what a list of indices gives (see ImageSet)
Items are made in --workers processes of each rank, or in the rank itself with --workers 0. What is drawn there from
torch's, Python's or NumPy's generator differs from rank to rank, from worker to worker and from epoch to epoch. It is
the same when a run is repeated with its --seed, its --workers and its number of ranks. After a stop within an epoch,
workers draw anew for the rest of it. With --workers 0 a run that resumes starts Python's and NumPy's generators again,
and draws other values.
"""

import contextlib
import hashlib
import itertools
import logging
import os
import pickle
import random
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist

from trainer import files, launch
from trainer.datasets import DATASETS
from trainer.options import Options, check_sizes

log = logging.getLogger("course")
FOLDER = files.DATA
STALL_SECONDS = 20  # a download that delivers nothing for so long is given up
SHA256 = {  # `digest` of the arrays. CIFAR-10's, as binary batches, have the SHA-1s aadd24ac... to 67eb016d...
    "cifar10": "9048fcbac9c08a64d57a7c5a5a66750a974ad4eab380914df129f7e223d823df",
    "mnist": "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b",
}

class OwnSet(torch.utils.data.Subset):
    """The first `count` items, or all, of a data set not in DATASETS; the module's docstring gives the contract.

    `epoch` is seen by workers that live on from epoch to epoch: at its first item of an epoch each draws new seeds.
    """

    def __init__(self, address: str, dataset: Any, count: int | None):
        super().__init__(dataset, range(count or len(dataset)))
        self.name, self.classes, self.shape = address, dataset.classes, tuple(dataset[0][0].shape)
        self.whole = len(dataset)
        self.collate = getattr(dataset, "collate", torch.utils.data.default_collate)
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self.seeded: int | None = None  # the epoch that this worker has drawn seeds for

    def __getitems__(self, indices: list[int]) -> list:
        worker, epoch = torch.utils.data.get_worker_info(), int(self.epoch)
        if worker and self.seeded != epoch:
            seed = (worker.seed + 1_000_003 * epoch) % 2**63
            torch.manual_seed(seed)
            random.seed(seed)
            numpy.random.seed(seed % 2**32)
            self.seeded = epoch
        return super().__getitems__(indices)

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker that is not forked must load the user's file before it can unpickle what the file defines. The
        epoch goes apart: it stays shared."""
        return _unpickled, (self.name, self.epoch, pickle.dumps({**self.__dict__, "epoch": None}))


def _unpickled(address: str, epoch: torch.Tensor, state: bytes) -> OwnSet:
    if ".py:" in address:
        files.from_file(address)
    own = OwnSet.__new__(OwnSet)
    own.__dict__.update(pickle.loads(state), epoch=epoch)
    return own


class ImageSet(torch.utils.data.Dataset):
    """A labelled image set held as one uint8 tensor [N, C, H, W] and int64 labels [N].

    A DataLoader asks `__getitems__` for a whole batch, which is gathered and normalised at once. It is stacked then:
    give the loader `collate_fn=ImageSet.collate`.
    """

    def __init__(self, name: str, images: torch.Tensor, labels: torch.Tensor):
        self.name, self.images, self.labels = name, images, labels
        self.classes, self.shape = DATASETS[name].classes, DATASETS[name].shape
        mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1)
                     for values in (DATASETS[name].mean, DATASETS[name].std))
        self.scale, self.shift = 1 / (255 * std), -mean / std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [n, C, H, W], about mean 0 and deviation 1 in each channel, and int64 [n], for n indices."""
        indices = torch.as_tensor(indices)
        if self.images.is_cuda:  # pinned, so that the copy to the GPU need not be waited for
            indices = indices.pin_memory()
        indices = indices.to(self.images.device, non_blocking=self.images.is_cuda)
        return self.images.index_select(0, indices).float().mul_(self.scale).add_(self.shift), self.labels[indices]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    @staticmethod
    def collate(batch: Any) -> Any:
        return batch

    def first(self, count: int | None, device: torch.device | str = "cpu") -> "ImageSet":
        """The first `count` images, on `device`. A GPU that holds them (CIFAR-10 takes 154 MB) is sent only the indices
        of each batch."""
        return ImageSet(self.name, self.images[:count].to(device), self.labels[:count].to(device))


AnySet = ImageSet | OwnSet


def get_dataset(name: str, path: str | Path = FOLDER, verify: bool = True) -> list["ImageSet"]:
    """The training and test ImageSet of "cifar10", "mnist" or "synthetic", mapped from `path`/name.pt.

    "auto" is cifar10 where it can be had, else synthetic: look at `.name`. A missing or damaged file is built by one
    process while all others wait, those of other jobs too. `verify=False` leaves the SHA-256 to another rank of this
    node (it takes 0.1 s). Raises ConnectionError where no source answers.
    """
    if name == "auto":
        try:
            return get_dataset("cifar10", path, verify)
        except ConnectionError as error:
            log.warning("%s. Going on with SYNTHETIC data.", error)
            return get_dataset("synthetic", path, verify)
    file = Path(path) / f"{name}.pt"
    if verify or not file.is_file():
        prepare(name, file)
    arrays = torch.load(file, mmap=True, weights_only=True)  # mapped: the ranks of a node share its pages
    return [ImageSet(name, arrays[f"{split}_images"], arrays[f"{split}_labels"]) for split in ("train", "test")]


def image_folder(folder: str | Path, size: int, train: bool) -> Any:
    """The images train/CLASS/* or val/CLASS/* of a folder: decoded when they are asked for, cut to `size` pixels a
    side, at random and mirrored for training, and normalised as ImageNet's. files.Refused where a class has none."""
    from torchvision import datasets, transforms  # late: most runs need none of it

    cut = ([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()] if train else
           [transforms.Resize(size), transforms.CenterCrop(size)])
    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    split = Path(folder, "train" if train else "val")
    try:
        return datasets.ImageFolder(split, transforms.Compose([*cut, transforms.ToTensor(), normalise]))
    except FileNotFoundError as error:
        raise files.Refused(f"{split}: {error}") from None


def own_sets(args: Options, placement: launch.Placement) -> tuple[OwnSet, OwnSet]:
    """(training set, test set) of a folder of images, or of FILE.py:NAME, as this rank sees them."""
    if Path(args.dataset).is_dir():
        parts = [image_folder(args.dataset, args.image_size or 224, train) for train in (True, False)]
    else:
        make = files.from_file(args.dataset)
        parts = [make(train=train) for train in (True, False)]
    if list(parts[0].classes) != list(parts[1].classes):  # each numbers its own: a label would mean two things
        raise files.Refused(f"--dataset {args.dataset}: train and val have different classes")
    try:
        check_sizes(args, (len(parts[0]), len(parts[1])), placement.world_size)
    except ValueError as error:
        raise files.Refused(str(error)) from None
    return OwnSet(args.dataset, parts[0], args.samples), OwnSet(args.dataset, parts[1], args.test_samples)


def load_own(args: Options, placement: launch.Placement) -> tuple[OwnSet, OwnSet]:
    """own_sets(). files.Refused, on all ranks, where a rank can have none or where two ranks' sets differ."""
    sets = facts = refusal = None
    try:
        sets = own_sets(args, placement)
        facts = [(list(part.classes), part.whole, part.shape) for part in sets]
    except files.Refused as error:
        refusal = str(error)
    answers = launch.gathered((facts, refusal))
    if refusals := [refusal for _, refusal in answers if refusal]:
        raise files.Refused(refusals[0])
    for rank, (others, _) in enumerate(answers):
        if others != answers[0][0]:
            raise files.Refused(f"--dataset {args.dataset}: ranks 0 and {rank} have different classes, numbers of "
                                "images or image shapes")
    assert sets
    return sets


def load(args: Options, placement: launch.Placement) -> "tuple[AnySet, AnySet]":
    """(training set, test set), the same on every rank: `auto` is what all nodes can have. files.Refused, on all of
    them, where a node can have none."""
    if args.dataset not in ("auto", *DATASETS):
        return load_own(args, placement)
    name = refusal = None
    if placement.local_rank == 0:  # one rank of each node prepares and checks the file, and vouches for it
        try:
            name = get_dataset(args.dataset, args.data_path)[0].name
        except OSError as error:
            refusal = f"{error}: use --dataset synthetic, or another --data-path than {args.data_path}"
    answers = launch.gathered((name, refusal))  # no rank maps a file before its node has looked at it
    if refusals := [refusal for _, refusal in answers if refusal]:
        raise files.Refused(refusals[0])
    names = {name for name, _ in answers if name}
    if len(names) > 1:  # `auto`, and a node could not have the real one
        names = {"synthetic"}
        if placement.local_rank == 0:
            get_dataset("synthetic", args.data_path)
        dist.barrier()
    train_set, test_set = get_dataset(names.pop(), args.data_path, verify=False)
    return train_set.first(args.samples), test_set.first(args.test_samples)

# ----------------------------------------------------------------------------------------------- made and checked


def from_torchvision(name: str, folder: str | Path, work: str | Path) -> dict[str, torch.Tensor]:
    """The arrays through torchvision: from its own files in `folder` where they are, else downloaded to `work`."""
    import torchvision

    dataset = {"cifar10": torchvision.datasets.CIFAR10, "mnist": torchvision.datasets.MNIST}[name]
    try:
        train, test = (dataset(folder, train=train) for train in (True, False))
    except RuntimeError:  # "Dataset not found or corrupted"
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


def synthetic(seed: int) -> dict[str, torch.Tensor]:
    """Images of ten classes made from a seed, in CIFAR-10's shapes: learnable, yet not at first sight.

    Each class is three smooth colour patterns. An image is one of them, shifted, mixed with a pattern that belongs to
    no class, and noise.
    """
    generator = torch.Generator().manual_seed(seed)
    info = DATASETS["synthetic"]

    def smooth(count: int) -> torch.Tensor:
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


def digest(arrays: dict[str, torch.Tensor]) -> str:
    """SHA-256 over the bytes of train_images, train_labels, test_images and test_labels, in that order."""
    sha = hashlib.sha256()
    for key in ("train_images", "train_labels", "test_images", "test_labels"):
        sha.update(arrays[key].contiguous().numpy().tobytes())
    return sha.hexdigest()


def check(name: str, arrays: dict[str, torch.Tensor]) -> None:
    """Raise ValueError, which says what is wrong, unless the arrays are the whole set `name`."""
    info = DATASETS[name]
    for split, count in zip(("train", "test"), info.sizes, strict=True):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if (images.dtype, images.shape) != (torch.uint8, (count, *info.shape)):
            raise ValueError(f"its {split} images are {images.dtype} {list(images.shape)}")
        if len(labels) != count or labels.unique().tolist() != list(range(len(info.classes))):
            raise ValueError(f"its {split} labels are not {count} of the classes 0 to {len(info.classes) - 1}")
    if digest(arrays) != SHA256.get(name, arrays.get("sha256")):
        raise ValueError("the SHA-256 of its arrays is not the expected one")


def prepare(name: str, file: str | Path) -> None:
    """See to it that `file` holds the set `name`, whole. One process builds it; all others wait and find it.

    A damaged or foreign file of that name is kept beside it as .damaged-1. Raises ConnectionError where no source
    answers, with the reason of each.
    """
    file = Path(file)
    with contextlib.suppress(FileNotFoundError, ValueError):  # checked again under the lock
        return check_file(name, file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.file_lock(file.with_suffix(".lock")) as alone:
        try:
            return check_file(name, file)  # built by another process while this one waited
        except FileNotFoundError:
            log.info("%s: preparing it, once", file)
        except ValueError as error:
            aside = next(a for n in itertools.count(1) if not (a := file.with_suffix(f".damaged-{n}")).exists())
            log.warning("%s. Kept as %s; building it anew.", error, aside.name)
            os.replace(file, aside)
        for left_over in file.parent.glob(f".{name}-*") if alone else ():  # of a process that was killed at its work
            shutil.rmtree(left_over)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=file.parent) as work:
            arrays = _from_any_source(name, file.parent, work)
            try:
                torch.save({**arrays, "sha256": digest(arrays)}, Path(work) / file.name)
            except RuntimeError as error:  # torch's word for a full disk
                raise OSError(f"{file} cannot be written ({str(error).splitlines()[0]})") from None
            with open(Path(work) / file.name, "rb") as handle:
                os.fsync(handle.fileno())  # on disk before the name points at it
            os.replace(Path(work) / file.name, file)


def check_file(name: str, file: Path) -> None:
    """Raise FileNotFoundError, or ValueError that says what is wrong, unless `file` holds the whole set `name`."""
    try:
        check(name, torch.load(file, mmap=True, weights_only=True))
    except FileNotFoundError:
        raise
    except Exception as error:  # a truncated or foreign file can fail in any way
        raise ValueError(f"{file} is not a whole {name} file: {str(error).splitlines()[0]}") from None


SOURCES = [from_torchvision]  # functions of a name, the folder of the files and an empty folder; they return the arrays


def _from_any_source(name: str, folder: Path, work: str) -> dict[str, torch.Tensor]:
    if name == "synthetic":
        return synthetic(seed=0)
    failures = []
    for source in SOURCES:
        try:
            arrays = source(name, folder, work)
            check(name, arrays)
            log.info("%s: %s images, %s", name, sum(DATASETS[name].sizes), source.__name__.replace("_", " "))
            return arrays
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            failures.append(f"{source.__name__.replace('_', ' ')}: {str(error).splitlines()[0]}")
    raise ConnectionError(f"{name} could not be had ({'; '.join(failures)})")
