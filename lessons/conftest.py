"""What the tests of several lessons need."""

import signal

import pytest


@pytest.fixture
def refused(monkeypatch, capsys):
    """refused(program, *arguments, ranks=None): the one line with which a module's main() refuses what it is given.

    It runs in this process, as plain python would start it; with `ranks`, as rank 0 of so many under torchrun.
    """
    def line(program, *arguments, ranks=None):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
            if ranks:
                monkeypatch.setenv(name, "0" if name.endswith("RANK") else str(ranks))
        monkeypatch.setattr("sys.argv", [program.__name__, *map(str, arguments)])
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # a program's handlers are not this process's
        with pytest.raises(SystemExit) as ended:
            program.main()
        said = capsys.readouterr()
        assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1), said
        return said.err

    return line
