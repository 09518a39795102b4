"""examples/: each runs alone, copied into an empty folder; and of each pair one trains what the other trains."""

import re
import subprocess
from collections import namedtuple

import pytest
import torch
from torchvision.datasets import MNIST

from course import runs
from course.rendezvous import free_port
from examples import minimal_gpt, minimal_gpt_ddp
from scripts.prepare_data import lay_mnist
from tests import runner

EXAMPLES = runner.ROOT / "examples"
TRAIN, TEST = 606, 301  # 2 and 3 ranks share the training images equally, and the test images not
Images = namedtuple("Images", "images labels")
# A copy in float64, two epochs long: in float32 a rounding error now and then puts a value on the other side of a ReLU.
SMALL = {"EPOCHS = 3": "EPOCHS = 2", ").to(device)\n": ").to(device).double()\n",
         "images, labels = images.to(device)": "images, labels = images.to(device).double()",
         "model(images.to(device))": "model(images.to(device).double())"}
# shuffle=True draws an order of its own. To compare, one process takes the images in the order in which the ranks
# together take them: that of DistributedSampler with one shard, in each epoch another.
SAME_ORDER = {"shuffle=True": "sampler=Order(train_set, num_replicas=1, rank=0)", "train_loader =": """
class Order(torch.utils.data.DistributedSampler):
    def __iter__(self):
        yield from super().__iter__()
        self.epoch += 1

train_loader ="""}
GPT = ["--updates", 4, "--report", 2, "--batch", 12, "--context", 16, "--width", 32, "--write", 20, "--save", "gpt.pt"]
FLOAT64 = {"    torch.manual_seed(0)": "    torch.set_default_dtype(torch.float64)\n    torch.manual_seed(0)"}


def copied(name, folder, edits):
    source = (EXAMPLES / f"{name}.py").read_text()
    for old, new in edits.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(source)


def alone(name, folder, ranks, *options, edits=None, gpus="", offline=False):
    """The finished process of a copy of the example in an empty folder, started from there: by python, with ranks=0,
    or by torchrun. `edits`: {old: new} of its text. `offline`: whatever would be downloaded fails at once."""
    copied(name, folder, edits or {})
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1") if offline else {}
    return subprocess.run(
        runner.command(ranks, f"{name}.py", *options), cwd=folder, capture_output=True, text=True, timeout=runner.LIMIT,
        env=runner.environment(CUDA_VISIBLE_DEVICES=gpus, OMP_NUM_THREADS="1", PYTHONPATH=None, **proxy))


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A folder with a small MNIST of noise with a bright square, whose place is the class: as set-up lays it."""
    folder = tmp_path_factory.mktemp("data")
    generator = torch.Generator().manual_seed(0)
    sets = []
    for count in (TRAIN, TEST):
        images = torch.randint(128, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
        labels = torch.randint(10, (count,), generator=generator)
        for image, label in zip(images, labels, strict=True):
            image[0, 14 * (label % 2):][:14, 5 * (label // 2):][:, :5] += 127
        sets.append(Images(images, labels))
    lay_mnist(*sets, folder)
    return folder, sets


def trained(name, folder, ranks, data, edits, gpus=""):
    """(weights, metrics of each epoch) of a run."""
    done = alone(name, folder, ranks, "--data", data, edits=SMALL | edits, gpus=gpus)
    assert done.returncode == 0, done.stderr
    (folder / "console.txt").write_text(runner.without_gloo(done.stdout))
    weights = torch.load(folder / "minimal.pt", weights_only=True, map_location="cpu")
    return weights, runs.read_run(folder / "console.txt")


@pytest.fixture(scope="module")
def one_process(mnist, tmp_path_factory):
    return trained("minimal", tmp_path_factory.mktemp("one"), 0, mnist[0], SAME_ORDER)


def compare(expected, found):
    (expected, expected_epochs), (weights, epochs) = expected, found
    assert set(weights) == set(expected), "no name begins with module."
    for name, weight in expected.items():
        assert (weights[name] - weight).abs().max() < 1e-10, name
    assert list(epochs["val_accuracy"]) == list(expected_epochs["val_accuracy"])  # 301 images: four digits show one
    assert list(epochs["loss"]) == pytest.approx(list(expected_epochs["loss"]), abs=1.01e-4)  # the last digit printed


def test_torchvision_reads_the_files_that_set_up_lays(mnist):
    folder, sets = mnist
    for train, theirs in zip((True, False), sets, strict=True):
        laid = MNIST(folder, train)
        assert torch.equal(laid.data, theirs.images[:, 0]) and torch.equal(laid.targets, theirs.labels)


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.weekly), 3])
def test_many_ranks_train_the_model_of_one_process(ranks, mnist, one_process, tmp_path):
    # Ranks that begin with seeds of their own: DDP sends rank 0's weights, drawn from the seed of the one process.
    found = trained("minimal_ddp", tmp_path, ranks, mnist[0], {"torch.cuda.is_available()": "True"})
    compare(one_process, found)
    assert (tmp_path / "console.txt").read_text().count("fewer GPUs than ranks: training on the CPU\n") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_gpus_too(mnist, tmp_path):
    ranks, gpus = (2, "0,1") if torch.cuda.device_count() > 1 else (1, "0")
    compare(trained("minimal", tmp_path / "one", 0, mnist[0], SAME_ORDER, gpus),
            trained("minimal_ddp", tmp_path / "many", ranks, mnist[0], {}, gpus))


def test_printed_accuracy_is_that_of_the_saved_model(mnist, one_process):
    weights, epochs = one_process
    written = re.search(r"^model = (nn\.Sequential.*?^\))", (EXAMPLES / "minimal.py").read_text(), re.DOTALL | re.M)[1]
    net = eval(written, {"nn": torch.nn}).double()
    net.load_state_dict(weights)
    images, labels = mnist[1][1]
    with torch.no_grad():
        hits = (net(images.double() / 255).argmax(1) == labels).sum().item()
    assert epochs["val_accuracy"][1] == pytest.approx(hits / TEST, abs=1e-4)
    assert epochs["loss"][1] < epochs["loss"][0], "it has learnt"


@pytest.mark.weekly
@pytest.mark.parametrize(("name", "ranks"), [("minimal", 0), ("minimal_ddp", 2)])
def test_without_files_and_network_it_trains_on_random_images_and_says_so(name, ranks, tmp_path):
    edits = {"EPOCHS = 3": "EPOCHS = 1", "6000, (1,": "96, (1,", "1000, (1,": "11, (1,"}
    done = alone(name, tmp_path, ranks, edits=edits, offline=True)
    assert done.returncode == 0, done.stderr
    said = r"cannot be downloaded \(.*Connection refused.*\): training on FakeData, random images\n"
    assert len(re.findall(said, done.stdout)) == 1 and "Epoch: 0, Loss: 2." in done.stdout


@pytest.mark.weekly
def test_nodes_that_share_a_folder_download_one_after_the_other(mnist, tmp_path):
    busy = repr(str(tmp_path / "busy"))  # mkdir fails where the other node's is there
    copied("minimal_ddp", tmp_path, {
        "EPOCHS = 3": "EPOCHS = 0", '"minimal.pt"': repr(str(tmp_path / "minimal.pt")),
        "MNIST(args.data, download=True)": f"os.mkdir({busy}), __import__('time').sleep(1), os.rmdir({busy})"})
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": "",
             "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for done in runner.together([place | {"RANK": rank} for rank in "01"], "--data", mnist[0],
                                script=tmp_path / "minimal_ddp.py"):
        assert done.returncode == 0 and "FakeData" not in done.stdout, done.stdout + done.stderr


@pytest.mark.weekly
@pytest.mark.parametrize(("name", "ranks", "options", "words"), [
    ("minimal_ddp", 5, [], "BATCH = 96 cannot be divided by 5 ranks"),
    ("minimal_ddp", 0, [], "start with torchrun --nproc_per_node=2 minimal_ddp.py"),
    ("minimal_gpt_ddp", 0, [], "start with torchrun --nproc_per_node=2 minimal_gpt_ddp.py"),
    ("minimal_gpt_ddp", 3, ["--device", "cuda"], "--device cuda takes a GPU per rank, and there are 0 for 3 ranks"),
    ("minimal_gpt", 0, ["--accumulate", 7], "--batch 96 cannot be divided by --accumulate 7")])
def test_what_cannot_be_trained_is_refused_in_one_line(name, ranks, options, words):
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)} if ranks else {}
    done = runner.run(0, *options, script=f"examples/{name}.py", CUDA_VISIBLE_DEVICES="", **place)
    assert done.returncode == 2 and done.stderr == f"{words}\n", done.stderr


@pytest.mark.parametrize(("options", "words"), [
    ("--accumulate=0", "--report must be at least 1"), ("--report=0", "--report must be at least 1"),
    ("--batch=15", "--batch 15 cannot be divided by --accumulate 2"), ("--width=30", "cannot be divided by 4 heads"),
    ("--text=none.txt", "is not a file of more than 640 bytes"), ("--text={}/short", "is not a file of more than 640"),
    ("--save={}/none/gpt.pt", "its folder does not exist"), ("--text={}/text --save=gpt.pt", None)])
def test_options_that_the_gpt_cannot_train_with_are_found_before(options, words, tmp_path):
    for name, size in (("short", 640), ("text", 641)):
        (tmp_path / name).write_bytes(bytes(size))
    for program, more in ((minimal_gpt, ()), (minimal_gpt_ddp, (1, 1))):
        args = program.options().parse_args(options.format(tmp_path, tmp_path).split())
        found = program.mistake(args, *more)
        assert found is None if words is None else words in found and "\n" not in found
        if words is None:
            assert [len(part) > 0 for part in minimal_gpt.read_text(args)] == [True, True]


@pytest.fixture(scope="module")
def one_gpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    done = alone("minimal_gpt", folder, 0, *GPT, edits=FLOAT64)
    assert done.returncode == 0, done.stderr
    return done.stdout, torch.load(folder / "gpt.pt", weights_only=True)


@pytest.mark.parametrize(("ranks", "options"), [
    *(pytest.param(ranks, [], marks=pytest.mark.weekly) for ranks in (2, 3)), (2, ["--fsdp"])])
def test_many_ranks_train_the_gpt_of_one_process(ranks, options, one_gpt, tmp_path):
    done = alone("minimal_gpt_ddp", tmp_path, ranks, *GPT, *options, edits=FLOAT64)
    assert done.returncode == 0, done.stderr
    printed, weights = one_gpt
    losses = [[float(loss) for loss in re.findall(r"loss (\d+\.\d+)", text)] for text in (printed, done.stdout)]
    assert len(losses[0]) == 5 and losses[1] == pytest.approx(losses[0], abs=1.01e-4)  # the last digit printed
    assert losses[0][0] == pytest.approx(5.5, abs=0.1), "about that of a guess among 256 bytes"
    found = torch.load(tmp_path / "gpt.pt", weights_only=True)
    assert set(found) == set(weights)
    for name, weight in weights.items():
        assert (found[name] - weight).abs().max() < 1e-8, name


@pytest.mark.weekly
def test_bf16_trains_too(tmp_path):
    for ranks, name, options in ((0, "minimal_gpt", []), (2, "minimal_gpt_ddp", ["--fsdp"])):
        done = alone(name, tmp_path, ranks, *GPT, "--bf16", *options)
        assert done.returncode == 0, done.stderr
        first, *_, last = re.findall(r"val loss (\d+\.\d+)", done.stdout)
        assert float(last) < float(first) - 0.2
