"""What a practitioner expects of a training program: accumulation, clipping, schedules, workers, a data set and a
wrapper of one's own. Each is off by default."""

import json
import math
import os
import pty
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import utils
from tests import runner
from trainer import data, files, options

# 1206 images in updates of 96: the last one has 54, in fewer batches. Not Adam: it turns rounding errors into steps.
SMALL = ["--dataset", "synthetic", "--samples", 1206, "--test-samples", 101, "--epochs", 2, "--optimizer", "sgd",
         "--lr", 0.01, "--no-shuffle"]


def trained(folder, ranks, *arguments):
    """(weights, epochs) of a completed run."""
    log, weights = folder / f"{ranks}.jsonl", folder / f"{ranks}.pt"
    done = runner.run(ranks, *SMALL, "--log-file", log, "--save-model", weights, *arguments)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return torch.load(weights, weights_only=True), [record for record in records if record["kind"] == "epoch"]


def distance(weights, others):
    return max((weights[name] - others[name]).abs().max().item() for name in weights)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """{options: (weights, epochs)} of one process with the whole batch: without clipping and with it."""
    return {clip: trained(tmp_path_factory.mktemp("one"), 0, "--batch-size", 96, *clip)
            for clip in ((), ("--clip", "0.1"))}


@pytest.mark.promise("one model")
@pytest.mark.parametrize(("ranks", "clip"), [(0, ()), (2, ("--clip", "0.1")), (3, ())], ids=["0", "2-clipped", "3"])
def test_accumulated_and_clipped_gradients_are_those_of_the_large_batch(ranks, clip, one_process, tmp_path):
    expected, expected_epochs = one_process[clip]
    weights, epochs = trained(tmp_path, ranks, "--batch-size", 24 // max(1, ranks), "--accumulate", 4, *clip)
    assert distance(one_process[()][0], one_process[("--clip", "0.1")][0]) > 1e-3, "clipping changes nothing"
    assert distance(weights, expected) < 1e-5
    for record, expected_record in zip(epochs, expected_epochs, strict=True):
        assert record["loss"] == pytest.approx(expected_record["loss"], abs=1e-5)


def test_accumulation_sends_gradients_once_an_update(tmp_path):
    script = tmp_path / "count.py"
    script.write_text("""import main, os
from torch.nn.parallel import DistributedDataParallel as DDP
calls, made = [], DDP.__init__
def init(self, *args, **kwargs):
    made(self, *args, **kwargs)
    def hook(state, bucket):
        calls.append(bucket.is_last())
        return main.torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(
            lambda done: done.value()[0] / 2)
    self.register_comm_hook(None, hook)
DDP.__init__ = init
main.main()
print("messages", sum(calls))
""")
    done = runner.run(2, *SMALL, "--epochs", 1, "--samples", 200, "--batch-size", 16, "--accumulate", 3, script=script,
                      COURSE_SHORTCUTS=None)
    # 100 images of each rank make 7 batches: updates of 3, 3 and 1
    assert done.stdout.split() == ["messages", "3"] * 2, done.stderr


def test_accumulation_fetches_a_batch_when_the_one_before_is_computed(tmp_path):
    """Else nothing would be computed while workers fetch, and the batches of an update would fill the memory."""
    script = tmp_path / "order.py"
    script.write_text("""import main
from trainer import data, models
getitems, forward = data.ImageSet.__getitems__, models.ConvNet.forward
def fetched(self, indices):
    print("fetched", len(indices))
    return getitems(self, indices)
def computed(self, images):
    print("computed", len(images))
    return forward(self, images)
data.ImageSet.__getitems__, models.ConvNet.forward = fetched, computed
main.main()
""")
    done = runner.run(0, *SMALL, "--epochs", 1, "--samples", 44, "--batch-size", 16, "--accumulate", 3, script=script)
    assert done.stdout.split("\n")[:6] == ["fetched 16", "computed 16"] * 2 + ["fetched 12", "computed 12"], done.stderr


def test_a_run_that_accumulates_goes_on_after_a_stop(tmp_path):
    script = tmp_path / "stopped.py"
    script.write_text("""import main, models, os, signal
class Stopping(models.ConvNet):
    passes = 0
    def forward(self, images):
        Stopping.passes += self.training
        if Stopping.passes == int(os.environ.get("STOP_IN", 0)):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(images)
models.MODELS["lenet"] = Stopping
main.main()
""")
    same = [*SMALL, "--batch-size", 16, "--accumulate", 3, "--schedule", "cosine", "--save-model",
            tmp_path / "model.pt"]
    assert runner.run(0, *same, script=script).returncode == 0
    undisturbed = torch.load(tmp_path / "model.pt", weights_only=True)
    kept = [*same, "--checkpoint", tmp_path / "c"]
    stopped = runner.run(0, *kept, script=script, STOP_IN="31")  # in the 11th update
    assert stopped.returncode == 75 and "stopped in epoch 0 after step 11;" in stopped.stderr, stopped.stderr
    assert runner.run(0, *kept, "--resume", "must", script=script).returncode == 0
    assert distance(torch.load(tmp_path / "model.pt", weights_only=True), undisturbed) == 0


# ------------------------------------------------------------------------------------------------ rates and optimizers


def rates(steps, *arguments):
    """--lr's multiples in the updates of a training with `steps` updates an epoch."""
    args = options.get_parser().parse_args(list(arguments))
    args.lr_scale, args.weight_decay = 1 if args.lr_scaling == "none" else 4, 0
    optimizer = utils.make_optimizer([torch.nn.Parameter(torch.zeros(1))], args)
    scheduler, of_updates = utils.scale_rate(optimizer, args, steps), []
    for _ in range(args.epochs * steps):
        of_updates.append(optimizer.param_groups[0]["lr"] / args.lr)
        optimizer.step()
        scheduler.step()
    return of_updates


def test_a_cosine_falls_to_nothing_after_the_warm_up():
    warmed_up = rates(10, "--epochs", "5", "--schedule", "cosine", "--warmup-epochs", "1")
    assert warmed_up[:11] == pytest.approx([step / 11 for step in range(1, 11)] + [1])
    assert warmed_up[10:] == pytest.approx([(1 + math.cos(math.pi * step / 40)) / 2 for step in range(40)])
    scaled = rates(10, "--epochs", "5", "--schedule", "cosine", "--lr-scaling", "linear")
    assert scaled == pytest.approx([2 + 2 * math.cos(math.pi * step / 50) for step in range(50)])


def test_the_schedule_is_constant_and_the_warm_up_scales_as_before():
    assert rates(10, "--epochs", "2") == [1] * 20
    scaled = rates(10, "--epochs", "2", "--lr-scaling", "linear", "--warmup-epochs", "1")
    assert scaled[:11] == pytest.approx([1 + 3 * step / 10 for step in range(11)]) and scaled[11:] == [4] * 9


def test_adamw_decays_weights_apart_from_the_gradient():
    weight = torch.nn.Parameter(torch.ones(1))
    args = options.get_parser().parse_args(["--optimizer", "adamw", "--weight-decay", "0.1", "--lr", "0.5"])
    optimizer = utils.make_optimizer([weight], args)
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.5 * 0.1)


# ------------------------------------------------------------------------------------------------ what is told and kept


def test_options_can_stand_in_a_file(tmp_path):
    (tmp_path / "options").write_text("--lr 0.5  # too high\n--model resnet\n\n--data-path 'a folder'\n")
    args = options.get_parser().parse_args(["--seed", "3", f"@{tmp_path / 'options'}", "--lr", "0.25"])
    assert (args.seed, args.lr, args.model, args.data_path) == (3, 0.25, "resnet", "a folder")


def test_a_bar_on_a_terminal(tmp_path):
    (tmp_path / "tqdm.py").write_text("""import sys
class tqdm:
    def __init__(self, **options):
        self.n = 0
        print("bar of", options["total"], file=sys.stderr)
    def update(self, more):
        self.n += more
    def set_postfix(self, **facts):
        print("at", self.n, sorted(facts), file=sys.stderr)
""")
    ours, theirs = pty.openpty()
    options_ = [str(word) for word in [*SMALL, "--epochs", 1, "--batch-size", 200, "--log-every", 2]]
    process = subprocess.Popen([sys.executable, "main.py", *options_], cwd=runner.ROOT, stderr=theirs,
                               env=runner.environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{runner.ROOT}"))
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        text += part
    assert process.wait(timeout=runner.LIMIT) == 0
    lines = text.decode().split("\r\n")
    assert [line for line in lines if line.startswith(("bar", "at"))] == [
        "bar of 7", "at 2 ['acc', 'loss']", "at 4 ['acc', 'loss']", "at 6 ['acc', 'loss']"]


def test_a_tracker_is_called_with_each_epoch_and_lines_are_printed_within_it(tmp_path):
    script = tmp_path / "tracked.py"
    script.write_text("""import main, run_log
def tracker(directory):
    return lambda epoch, facts: print("tracked", directory, epoch, facts["val_accuracy"] > 0)
run_log.tracker = tracker
main.main()
""")
    done = runner.run(2, *SMALL, "--batch-size", 96, "--log-every", 3, script=script)
    assert sorted(done.stdout.splitlines()) == [f"tracked None {epoch} True" for epoch in (0, 0, 1, 1)], done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("epoch 0, update")]
    assert [line.split(":")[0] for line in lines] == ["epoch 0, update 3 of 7", "epoch 0, update 6 of 7"], done.stderr


@pytest.mark.weekly  # which installs .[watch]
def test_tensorboard_reads_what_its_tracker_writes(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert runner.run(2, *SMALL, "--tracker", tmp_path / "events").returncode == 0
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.step for event in events.Scalars("val_loss")] == [0, 1]


# ---------------------------------------------------------------------------------------------- a data set of one's own


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cifar10):
    """An image folder of the first CIFAR-10 images: of 3 classes, 32 for training and 9 for the test."""
    from PIL import Image

    root = tmp_path_factory.mktemp("images")
    for split, part, count in (("train", cifar10[0], 32), ("val", cifar10[1], 9)):
        for label in range(3):
            (root / split / data.DATASETS["cifar10"].classes[label]).mkdir(parents=True)
            for number in (part.labels == label).nonzero()[:count, 0].tolist():
                pixels = part.images[number].permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(
                    root / split / data.DATASETS["cifar10"].classes[label] / f"{number}.png")
    return root


def test_a_folder_of_images_is_trained_on(folder, tmp_path):
    log = tmp_path / "run.jsonl"
    options_ = ["--dataset", folder, "--image-size", 24, "--model", "resnet", "--epochs", 1, "--batch-size", 16,
                "--workers", 2, "--log-file", log, "--save-model", tmp_path / "model.pt"]
    found = []
    for _ in range(2):  # what is drawn in the workers is the same again
        done = runner.run(0, *options_)
        assert done.returncode == 0 and "96 training and 27 test images" in done.stderr, done.stderr
        found.append(torch.load(tmp_path / "model.pt", weights_only=True))
    assert found[0]["fc.weight"].shape == (3, 64) and distance(*found) == 0
    run = json.loads(log.read_text().splitlines()[0])
    assert (run["dataset"], run["samples"], run["test_samples"]) == (str(folder), 96, 27)


def test_a_strangers_data_set_is_trained_on_and_its_workers_differ(tmp_path):
    file = tmp_path / "stranger.py"
    file.write_text(f"""import os, random, torch

class Circles(torch.utils.data.Dataset):
    classes = ["small", "large"]

    def __init__(self, train):
        self.count = 64 if train else 10
        self.train = train

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info()
        if self.train and worker:  # not where main.py asks for the shape of the first image
            with open("{tmp_path}/drawn", "a") as file:
                print(os.environ.get("RANK", 0), worker.id, index, torch.rand(()).item(), random.random(), file=file)
        radius = 6 if index % 2 else 12
        distance = torch.hypot(*torch.meshgrid(torch.arange(-16.0, 16), torch.arange(-16.0, 16), indexing="ij"))
        return (distance < radius).float().expand(3, 32, 32).clone(), 0 if index % 2 else 1
""")
    options_ = ["--dataset", f"{file}:Circles", "--epochs", 2, "--batch-size", 8, "--workers", 2, "--lr", 0.01]
    done = runner.run(2, *options_)
    assert done.returncode == 0 and "64 training and 10 test images" in done.stderr, done.stderr
    assert float(done.stderr.split("val acc: ")[-1].split(",")[0]) > 0.5
    rows = [line.split() for line in (tmp_path / "drawn").read_text().splitlines()]
    assert len(rows) == 2 * 64 and {row[0] for row in rows} == {"0", "1"} and {row[1] for row in rows} == {"0", "1"}
    assert len({row[3] for row in rows}) == len({row[4] for row in rows}) == len(rows), "two draw the same"
    refused = runner.run(2, *options_, "--samples", 65)
    assert refused.returncode == 2 and "has 64 and 10 images" in refused.stderr.splitlines()[-1]


def test_a_folder_whose_splits_do_not_match_is_refused(folder, tmp_path, capsys):
    copy = tmp_path / "images"
    shutil.copytree(folder, copy)

    def load():
        args = options.get_parser().parse_args(["--dataset", str(copy), "--image-size", "24"])
        return data.load(args, SimpleNamespace(world_size=1))

    assert [len(part) for part in load()] == [96, 27]
    (copy / "val/bird").rename(copy / "val/cat")
    with pytest.raises(files.Refused, match="train and val have different classes"):
        load()
    (copy / "train/bird").rename(copy / "train/cat")
    for image in (copy / "val/cat").iterdir():
        image.unlink()
    with pytest.raises(files.Refused, match="val: Found no valid file for the classes cat"):
        load()
    shutil.rmtree(copy / "val")
    with pytest.raises(SystemExit):
        load()
    assert "a folder with train/CLASS/ and val/CLASS/" in capsys.readouterr().err


@pytest.mark.parametrize("differs", ["count", *(pytest.param(weekly, marks=pytest.mark.weekly)
                                                for weekly in ("classes", "size"))])
def test_ranks_with_different_sets_are_refused(differs, tmp_path):
    file = tmp_path / "ranks_differ.py"
    file.write_text(f"""import os, torch

class Grey(torch.utils.data.Dataset):
    def __init__(self, train):
        differs = "{differs}" if os.environ["RANK"] == "1" else ""
        self.classes = ["dark", "dull" if differs == "classes" else "bright"]
        self.count, self.size = 65 if differs == "count" else 64, 28 if differs == "size" else 32

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, self.size, self.size), index % 2.0), index % 2
""")
    done = runner.run(2, "--dataset", f"{file}:Grey", "--epochs", 1)
    assert done.returncode == 2, done.stderr
    assert {line.split(": ")[-1] for line in done.stderr.splitlines()} == {
        "ranks 0 and 1 have different classes, numbers of images or image shapes"}


def test_a_set_without_workers_draws_the_same_again_and_is_judged_in_batches_like_those_of_training(tmp_path):
    file = tmp_path / "noise.py"
    file.write_text(f"""import os, random, torch

class Noise(torch.utils.data.Dataset):
    classes = ["even", "odd"]

    def __init__(self, train):
        self.count = 16 if train else 11

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.randn(3, 32, 32), index % 2

    def collate(self, batch):
        with open("{tmp_path}/drawn-" + os.environ["RANK"], "a") as file:
            print(len(batch), batch[0][0].mean().item(), random.random(), file=file)
        return torch.utils.data.default_collate(batch)
""")
    drawn = [tmp_path / f"drawn-{rank}" for rank in range(2)]
    for _ in range(2):
        done = runner.run(2, "--dataset", f"{file}:Noise", "--epochs", 1, "--batch-size", 4)
        assert done.returncode == 0, done.stderr
    rows = [[line.split() for line in path.read_text().splitlines()] for path in drawn]
    assert [[int(row[0]) for row in of_rank] for of_rank in rows] == [[4, 4, 4, 2] * 2, [4, 4, 4, 1] * 2]
    assert all(of_rank[:4] == of_rank[4:] for of_rank in rows), "a repeated run draws the same"
    assert len({number for of_rank in rows for row in of_rank[:4] for number in row[1:]}) == 16, "two draw the same"


# ----------------------------------------------------------------------------------------------- a wrapper of one's own

WRAPPER = """import contextlib, torch, torch.distributed as dist

class Averaging(torch.nn.Module):
    def __init__(self, raw_model):
        super().__init__()
        self.net = raw_model
        for parameter in raw_model.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, images):
        return self.net(images)

    def finish(self):
        for parameter in self.net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    no_sync = contextlib.nullcontext  # backward sends nothing
"""


def test_a_wrapper_of_ones_own_trains_the_model_of_one_process(one_process, tmp_path):
    """Its gradients are clipped when it has averaged them."""
    (tmp_path / "mine.py").write_text(WRAPPER)
    clip = "--clip", "0.1"
    weights, _ = trained(tmp_path, 2, "--batch-size", 16, "--accumulate", 3, "--wrapper",
                         f"{tmp_path / 'mine.py'}:Averaging", *clip)
    assert distance(weights, one_process[clip][0]) < 1e-5
    (tmp_path / "mine.py").write_text(WRAPPER.replace("def finish", "def forgotten"))
    done = runner.run(2, *SMALL, "--wrapper", f"{tmp_path / 'mine.py'}:Averaging")
    assert done.returncode == 1 and "the ranks' models have drifted apart" in done.stderr
    (tmp_path / "mine.py").write_text(WRAPPER.replace("no_sync", "not_asked_for"))
    done = runner.run(2, *SMALL, "--accumulate", 3, "--wrapper", f"{tmp_path / 'mine.py'}:Averaging")
    assert done.returncode == 2 and "for no_sync(), in which backward sends nothing" in done.stderr


def test_workers_leave_a_signal_to_their_rank(tmp_path):
    """torchrun sends SIGTERM to the process group of each rank: to its workers, too."""
    options_ = [*SMALL, "--epochs", 1000, "--workers", 2, "--checkpoint", tmp_path / "c"]
    process = subprocess.Popen([sys.executable, "main.py", *map(str, options_)], cwd=runner.ROOT, text=True,
                               stderr=subprocess.PIPE, env=runner.environment(), start_new_session=True)
    for line in process.stderr:
        if line.startswith("Epoch: 1,"):
            break
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=runner.LIMIT)
    assert process.returncode == 75 and "stopped in epoch" in errors, errors


@pytest.mark.promise("bounded waits")
@pytest.mark.parametrize("train", [True, False], ids=["training", "evaluation"])
def test_a_worker_that_hangs_ends_the_run(train, tmp_path):
    file = tmp_path / "hangs.py"
    file.write_text(f"""import time, torch

class Hanging(torch.utils.data.Dataset):
    classes = ["even", "odd"]

    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if self.train == {train} and torch.utils.data.get_worker_info():
            time.sleep(1000)
        return torch.randn(3, 32, 32), index % 2
""")
    done = runner.run(0, "--dataset", f"{file}:Hanging", "--epochs", 1, "--workers", 1, "--timeout", 3)
    assert done.returncode == 1 and "DataLoader timed out after 3" in done.stderr, done.stderr
    assert ("in evaluate" in done.stderr) != train


def test_a_group_that_cannot_be_joined_names_no_rank_that_waited(tmp_path):
    script = tmp_path / "joins.py"
    script.write_text("""import main, torch.distributed as dist
def join(*args):
    raise dist.DistBackendError("NCCL error: unhandled system error")
main.init_distributed_mode = join
main.main()
""")
    done = runner.run(2, *SMALL, script=script)
    assert done.returncode == 1 and "unhandled system error" in done.stderr
    assert "AttributeError" not in done.stderr and "waited in epoch" not in done.stderr
