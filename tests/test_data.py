"""The data: built once, checked, mapped; damaged files named and rebuilt; no race between processes."""

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests import runner
from trainer import data, files
from trainer.options import get_parser

PREPARE = [sys.executable, "scripts/prepare_data.py"]


@pytest.fixture
def small(monkeypatch):
    """The synthetic set, small enough to build in no time."""
    monkeypatch.setitem(data.DATASETS, "synthetic", data.DATASETS["synthetic"]._replace(sizes=(500, 100)))


def test_cifar10_is_cifar10(cifar10):
    train, test = cifar10
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert set(train.labels.bincount().tolist()) == {5000} and set(test.labels.bincount().tolist()) == {1000}
    pixels = train.images.float() / 255
    info = data.DATASETS["cifar10"]
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(info.mean, abs=1e-4)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(info.std, abs=1e-4)


def test_loader_gives_normalised_batches_of_the_ranks_shard(cifar10):
    train = cifar10[0].first(1000)
    sampler = DistributedSampler(train, num_replicas=3, rank=1, shuffle=False)
    batches = list(DataLoader(train, batch_size=64, sampler=sampler, collate_fn=train.collate))
    assert [len(labels) for _, labels in batches] == [64] * 5 + [14]  # 334 of 1002, two of them padding
    images, labels = batches[0]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.DATASETS["cifar10"].mean, data.DATASETS["cifar10"].std))
    expected = (train.images[1:192:3].float() / 255 - mean) / std
    assert torch.allclose(images, expected, atol=1e-5) and torch.equal(labels, train.labels[1:192:3])
    one_image, one_label = train[4]
    assert torch.equal(one_image, images[1]) and one_label == labels[1]


def test_synthetic_is_the_same_for_the_same_seed_and_can_be_learned(small):
    arrays, again, other = data.synthetic(0), data.synthetic(0), data.synthetic(1)
    assert data.digest(arrays) == data.digest(again) != data.digest(other)
    assert arrays["train_labels"].bincount().tolist() == [50] * 10
    flat = arrays["train_images"].flatten(1).float()
    assert flat.std(0).min() > 10, "a pixel that never changes teaches nothing"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other"])
def test_damaged_file_is_named_kept_aside_and_rebuilt(damage, small, tmp_path, caplog):
    file = tmp_path / "synthetic.pt"
    whole = data.get_dataset("synthetic", tmp_path)[0].images.clone()
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        content = content[:len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
    if damage == "other":
        torch.save({"weights": torch.ones(3)}, file)
        content = file.read_bytes()
    else:
        file.write_bytes(content)
    rebuilt, _ = data.get_dataset("synthetic", tmp_path)
    assert torch.equal(rebuilt.images, whole)
    assert f"{file} is not a whole synthetic file" in caplog.text
    assert (tmp_path / "synthetic.damaged-1").read_bytes() == content, "what stood there may be somebody's only copy"


def test_file_never_runs_code(small, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    torch.save(Evil(), tmp_path / "synthetic.pt")
    data.get_dataset("synthetic", tmp_path)
    assert not (tmp_path / "evil").exists()


def test_without_any_source_auto_says_synthetic_and_a_name_is_an_error(small, tmp_path, monkeypatch, caplog):
    def unreachable(name, folder, work):
        raise OSError("no answer")

    monkeypatch.setattr(data, "SOURCES", [unreachable, unreachable])
    with pytest.raises(ConnectionError, match=r"cifar10 could not be had \(.*no answer; .*no answer\)"):
        data.get_dataset("cifar10", tmp_path)
    args = get_parser().parse_args(["--dataset", "cifar10", "--data-path", str(tmp_path)])
    with pytest.raises(files.Refused, match="use --dataset synthetic"):
        data.load(args, SimpleNamespace(local_rank=0))
    train, test = data.get_dataset("auto", tmp_path)
    assert (train.name, test.name) == ("synthetic", "synthetic") and "SYNTHETIC" in caplog.text
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["synthetic.pt"], "nothing half-written"


def test_a_source_with_other_bytes_is_refused(tmp_path, monkeypatch):
    counterfeit = {"train_images": torch.zeros(50_000, 3, 32, 32, dtype=torch.uint8),
                   "train_labels": torch.arange(50_000) % 10,
                   "test_images": torch.zeros(10_000, 3, 32, 32, dtype=torch.uint8),
                   "test_labels": torch.arange(10_000) % 10}
    monkeypatch.setattr(data, "SOURCES", [lambda name, folder, work: counterfeit])
    with pytest.raises(ConnectionError, match="SHA-256"):
        data.get_dataset("cifar10", tmp_path)
    assert not (tmp_path / "cifar10.pt").exists()


@pytest.mark.weekly
def test_of_two_jobs_at_once_one_builds_the_file(tmp_path):
    jobs = runner.together([{}] * 2, "synthetic", "--data-path", tmp_path, script=PREPARE[1])
    said = [job.stderr for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert sum("preparing it" in text for text in said) == 1, said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["synthetic.lock", "synthetic.pt"]


def test_killed_while_building_leaves_nothing_in_the_way(small, tmp_path):
    job = subprocess.Popen([*PREPARE, "synthetic", "--data-path", tmp_path], cwd=runner.ROOT, stderr=subprocess.DEVNULL)
    runner.wait_for(lambda: list(tmp_path.glob(".synthetic-*")), "the build")
    job.kill()
    job.wait(timeout=60)
    assert not (tmp_path / "synthetic.pt").exists()
    data.get_dataset("synthetic", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["synthetic.lock", "synthetic.pt"]


def test_lock_wait_is_bounded_and_names_the_holder(tmp_path):
    hold = (f"import sys; sys.path.insert(0, {str(runner.ROOT)!r}); from trainer.files import file_lock\n"
            f"with file_lock({str(tmp_path / 'x.lock')!r}): print('held', flush=True); input()")
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(TimeoutError, match=f"process {os.getpid()} waited 0.5 s .* process {holder.pid} holds"), \
            files.file_lock(tmp_path / "x.lock", timeout=0.5):
        pytest.fail("two processes hold the lock")
    holder.kill()
    holder.communicate(timeout=60)
    with files.file_lock(tmp_path / "x.lock", timeout=5):
        pass  # the lock ended with its process


def test_a_file_system_without_locks_will_do_and_nobodys_work_is_removed(small, tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    (tmp_path / ".synthetic-of-another").mkdir()
    assert len(data.get_dataset("synthetic", tmp_path)[0]) == 500
    assert "synthetic.lock cannot be locked (Function not implemented)" in caplog.text
    assert (tmp_path / ".synthetic-of-another").exists(), "who builds at the same time would lose its work"


def test_a_users_files_may_have_any_names(tmp_path, monkeypatch):
    """And each finds what lies beside it before what lies beside main.py."""
    import utils

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "utils.py").write_text("SIDE = 7\nclass Wrapped: pass\n")
    (tmp_path / "data.py").write_text("import utils\nclass Mine:\n    side = utils.SIDE\n")
    assert files.from_file(f"{tmp_path}/data.py:Mine").side == 7
    assert files.from_file(f"{tmp_path}/utils.py:Wrapped") is files.from_file(f"{tmp_path}/utils.py:Wrapped")
    assert sys.modules["utils"] is utils and sys.modules["trainer.data"] is data
    with pytest.raises(files.Refused, match="data.py has no ResNet"):
        files.from_file(f"{tmp_path}/data.py:ResNet")
