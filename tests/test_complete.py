"""What a practitioner expects of a training program: schedules, workers, a data set of one's own. Each is off by
default. Accumulation, clipping and a wrapper of one's own: test_main.py."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import utils
from tests import runner
from tests.test_main import SMALL
from trainer import data, files, options

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


@pytest.mark.weekly
def test_tensorboard_reads_what_its_tracker_writes(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator",
                                 reason="tensorboard is not installed (pip install -e '.[watch]')")
    assert runner.run(2, *SMALL, "--tracker", tmp_path / "events").returncode == 0
    events = reader.EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.step for event in events.Scalars("val_loss")] == [0, 1]


# ---------------------------------------------------------------------------------------------- a data set of one's own


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cifar10):
    """An image folder of the first CIFAR-10 images: of 3 classes, 32 for training and 9 for the test."""
    from PIL import Image

    root = tmp_path_factory.mktemp("images")
    for split, part, count in (("train", cifar10[0], 32), ("val", cifar10[1], 9)):
        for label in range(3):
            place = root / split / data.DATASETS["cifar10"].classes[label]
            place.mkdir(parents=True)
            for number in (part.labels == label).nonzero()[:count, 0].tolist():
                pixels = part.images[number].permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(place / f"{number}.png")
    return root


def test_a_folder_of_images_is_trained_on(folder, tmp_path):
    log = tmp_path / "run.jsonl"
    options_ = ["--dataset", folder, "--image-size", 24, "--model", "resnet", "--epochs", 1, "--batch-size", 16,
                "--workers", 2, "--log-file", log, "--save-model", tmp_path / "model.pt"]
    done = runner.run(0, *options_)
    assert done.returncode == 0 and "96 training and 27 test images" in done.stderr, done.stderr
    assert torch.load(tmp_path / "model.pt", weights_only=True)["fc.weight"].shape == (3, 64)
    run = json.loads(log.read_text().splitlines()[0])
    assert (run["dataset"], run["samples"], run["test_samples"]) == (str(folder), 96, 27)


@pytest.mark.weekly
def test_a_users_data_py_is_trained_on_and_a_run_that_resumes_draws_what_an_undisturbed_one_does(tmp_path):
    file = tmp_path / "data.py"
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
    (tmp_path / "drawn").unlink()
    for epochs in (1, 2):
        done = runner.run(2, *options_, "--epochs", epochs, "--checkpoint", tmp_path / "kept")
        assert done.returncode == 0, done.stderr
    again = [line.split() for line in (tmp_path / "drawn").read_text().splitlines()]
    assert sorted(again) == sorted(rows), "those that live on, and those that begin in the second epoch"


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


@pytest.mark.weekly
def test_ranks_with_different_sets_are_refused(tmp_path):
    file = tmp_path / "ranks_differ.py"
    file.write_text("""import os, torch

class Grey(torch.utils.data.Dataset):
    def __init__(self, train):
        self.classes, self.count = ["dark", "bright"], 65 if os.environ["RANK"] == "1" else 64

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, 32, 32), index % 2.0), index % 2
""")
    done = runner.run(2, "--dataset", f"{file}:Grey", "--epochs", 1)
    assert done.returncode == 2, done.stderr
    assert {line.split(": ")[-1] for line in done.stderr.splitlines()} == {
        "ranks 0 and 1 have different classes, numbers of images or image shapes"}


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


@pytest.mark.weekly
def test_a_worker_that_hangs_ends_the_run(tmp_path):
    file = tmp_path / "hangs.py"
    file.write_text("""import time, torch

class Hanging(torch.utils.data.Dataset):
    classes = ["even", "odd"]

    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if self.train and torch.utils.data.get_worker_info():
            time.sleep(1000)
        return torch.randn(3, 32, 32), index % 2
""")
    done = runner.run(0, "--dataset", f"{file}:Hanging", "--epochs", 1, "--workers", 1, "--timeout", 3)
    assert done.returncode == 1 and "DataLoader timed out after 3" in done.stderr, done.stderr
