"""The image sets that main.py knows by name. No torch: the command line is checked by this."""

from typing import NamedTuple

# shape: channels, height, width. sizes: training and test images. mean, std: by channel, of pixels scaled to 0..1.

class DatasetInfo(NamedTuple):
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    sizes: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


_CIFAR10 = DatasetInfo(("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
                       (3, 32, 32), (50_000, 10_000), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
DATASETS = {
    "cifar10": _CIFAR10,
    "mnist": DatasetInfo(tuple("0123456789"), (1, 28, 28), (60_000, 10_000), (0.1307,), (0.3081,)),
    "synthetic": _CIFAR10._replace(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)),
}
