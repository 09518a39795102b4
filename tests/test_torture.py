"""A few of each attack of scripts/cluster/torture.py: the command makes many. And an attack must notice harm."""

import sys

import pytest

from scripts.cluster import torture
from tests import runner

# hang-a-rank stops a rank, which must then be torchrun's own child; share-a-path holds that a lock goes with who is
# killed
FORKED = ("contradicting-launcher", "kill-a-rank")


@pytest.mark.promise("bounded waits")
@pytest.mark.parametrize("attack", sorted(torture.ATTACKS))
def test_a_few_of_each_attack(attack, forked_python):
    done = runner.torchrun(0, "--kills", 2, "--inputs", 300, "--only", attack, script="scripts/cluster/torture.py",
                           limit=280, PYTHON_EXEC=forked_python if attack in FORKED else None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "survived" in done.stdout and "FAILED" not in done.stdout


def test_harm_is_noticed(monkeypatch, capsys):
    """A reader that takes every file for sound: the attack must say so, and the status too."""
    monkeypatch.setattr(torture.checkpoint, "parse", lambda raw: {})
    monkeypatch.setattr(sys, "argv", ["torture.py", "--inputs", "5", "--only", "damaged-checkpoint"])
    with pytest.raises(SystemExit) as ended:
        torture.main()
    assert ended.value.code == 1 and "FAILED: input 0 was loaded" in capsys.readouterr().out


def test_what_cannot_be_tried_here_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torture.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["torture.py", "--only", "fill-the-disk"])
    with pytest.raises(SystemExit) as ended:
        torture.main()
    assert not ended.value.code and "not tried: to fill a disk of its own" in capsys.readouterr().out
