"""scripts/minimal.py and minimal_ddp.py: one trains what the other trains."""

import re

import pytest
import torch

from course import runs
from tests import runner
from trainer import data

ONE, MANY = (runner.ROOT / f"scripts/{name}.py" for name in ("minimal", "minimal_ddp"))
TRAIN, TEST = 606, 301  # 2 and 3 ranks share the training images equally, and the test images not
SMALL = {  # what a copy for a test has in place of a learner's lines
    "EPOCHS = 3": "EPOCHS = 2",
    "BATCH = 64": "BATCH = 96",  # the last one has 30 images: 2 and 3 divide both
    'SAVE = "minimal.pt"': 'SAVE = __file__ + ".pt"',
    'data.get_dataset("auto")': f'(part.first(n) for part, n in zip(data.get_dataset("synthetic"), ({TRAIN}, {TEST})))',
    # float64: in float32 a rounding error now and then puts a value on the other side of a ReLU.
    "from trainer import data\n": "from trainer import data\ndata.ImageSet.collate = staticmethod("
                                  "lambda batch: (batch[0].double(), batch[1]))\n",
    ").to(device)": ").to(device).double()",
}
# shuffle=True draws an order of its own. To compare, one process takes the images in the order in which the ranks
# together take them: that of DistributedSampler with one shard, in each epoch another.
SAME_ORDER = {"shuffle=True": "sampler=Order(train_set, num_replicas=1, rank=0)", "train_loader =": """
class Order(torch.utils.data.DistributedSampler):
    def __iter__(self):
        yield from super().__iter__()
        self.epoch += 1

train_loader ="""}


def model():
    """The network as the files write it, with its first weights."""
    written = re.search(r"^model = (nn\.Sequential.*?^\))", ONE.read_text(), re.DOTALL | re.MULTILINE)[1]
    torch.manual_seed(0)
    return eval(written, {"nn": torch.nn}).double()


def trained(script, folder, ranks, changes, gpus=""):
    """(weights, figures of each epoch) of a run of a copy of the script with `changes`, on the CPU unless `gpus` names
    some. ranks=0 is plain python."""
    source, copy = script.read_text(), folder / f"{ranks}_{script.name}"
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    copy.write_text(source)
    done = runner.run(ranks, script=copy, CUDA_VISIBLE_DEVICES=gpus)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2, "a line an epoch, from one rank"
    (folder / "console.txt").write_text(done.stdout)
    return torch.load(f"{copy}.pt", weights_only=True, map_location="cpu"), runs.read_run(folder / "console.txt")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return trained(ONE, tmp_path_factory.mktemp("one"), 0, {**SMALL, **SAME_ORDER})


def compare(expected, found):
    (expected, expected_epochs), (weights, epochs) = expected, found
    assert set(weights) == set(expected), "no name begins with module."
    for name, start in model().state_dict().items():
        assert (expected[name] - start).abs().max() > 1e-3, f"{name} has not moved, so it can show nothing"
        assert (weights[name] - expected[name]).abs().max() < 1e-10, name
    assert list(epochs["val_accuracy"]) == list(expected_epochs["val_accuracy"])  # 301 images: four digits show one
    assert list(epochs["loss"]) == pytest.approx(list(expected_epochs["loss"]), abs=1.01e-4)  # the last digit printed


def test_many_ranks_train_the_model_of_one_process(one_process, tmp_path):
    compare(one_process, trained(MANY, tmp_path, 3, SMALL))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_gpus_too(tmp_path):
    ranks, gpus = (2, "0,1") if torch.cuda.device_count() > 1 else (1, "0")
    compare(trained(ONE, tmp_path, 0, {**SMALL, **SAME_ORDER}, gpus), trained(MANY, tmp_path, ranks, SMALL, gpus))


def test_printed_accuracy_is_that_of_the_saved_model(one_process):
    weights, epochs = one_process
    net = model()
    net.load_state_dict(weights)
    images, labels = data.get_dataset("synthetic", runner.ROOT / "data")[1].first(TEST).__getitems__(range(TEST))
    with torch.no_grad():
        hits = (net(images.double()).argmax(1) == labels).sum().item()
    assert epochs["val_accuracy"][1] == pytest.approx(hits / TEST, abs=1e-4)
    assert epochs["loss"][1] < epochs["loss"][0], "it has learnt"
