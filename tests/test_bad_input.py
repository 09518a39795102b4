"""Bad input is refused in one line, with status 2, and leaves nothing: by main.py (its own main() in this process, till
ranks would meet), and by each program of scripts/, lessons/ and teach/ that has options."""

import argparse
import contextlib
import importlib
import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import main
from tests import runner
from trainer import data, files, options


@pytest.fixture
def begin(monkeypatch, capsys, tmp_path):
    """begin(*argv, env={}) -> (exit status, lines on stderr), in a folder with a folder in it."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main, "train", lambda args, here, run: None)
    monkeypatch.setattr(main.launch, "init_distributed_mode", lambda *args: None)

    def start(*argv, **env):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["main.py", *map(str, argv)])
            for name, value in env.items():
                patch.setenv(name, str(value))
            try:
                main.main()
                status = 0
            except SystemExit as end:
                status = end.code
        return status, capsys.readouterr().err.splitlines()

    return start


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(("argv", "message"), [
    (["--dataset", "cifar"], "invalid choice: 'cifar'"),
    (["--epochs", 0], "0 is not a positive number"),
    (["--lr", "nan"], "nan is not a positive number"),
    (["--lr", "fast"], "'fast'"),
    (["--samples", 50_001], "50000"),
    (["--sync-bn"], "--sync-bn needs DDP on GPUs"),
    (["--image-size", 224], "--image-size is for a folder of images, and --dataset is auto"),
    (["--image-size", 64, "--dataset", f"{data.__file__}:ImageSet"], "--image-size is for a folder of images"),
    (["--comm-hook", "fp16"], "--comm-hook is DDP's"),
    (["--resume", "must"], "need --checkpoint PATH"),
    (["--checkpoint", "/dev/null/c"], "--checkpoint: cannot write in /dev/null"),
    (["--log-file", "/dev/null/run.jsonl"], "--log-file: cannot write in /dev/null"),
    (["--data-path", "/dev/null/data"], "--data-path: cannot write in /dev/null/data"),
    (["--save-model", "/dev/null/model.pt"], "--save-model: cannot write in /dev/null"),
    (["--log-file", ""], "--log-file: an empty name is no file"),
    (["--log-file", "."], "--log-file . is a folder"),
    (["--log-file", "x" * 300], "File name too long"),
    (["--save-model", "folder"], "--save-model folder is a folder"),
    (["--log-file", "one", "--save-model", "./one"], "the same file"),
    (["--data-path", ""], "--data-path: an empty name is no folder"),
    (["--seed", -1], "-1 is not a whole number from 0"),
    (["--epochs", 10**30], "is not a positive number below 2,147,483,648"),
    (["--timeout", "1e300"], "is not a positive number below 2,147,483,648"),
    (["--dist-url", "tcp://localhost:1"], "--dist-url is where several processes meet"),
    (["--wrapper", "nowhere.py:Mine"], "is not FILE.py:NAME of a file that is there"),
    (["--wrapper", f"{main.__file__}:Mine"], "start several ranks"),
    (["--epochs", 2, "--schedule", "cosine", "--warmup-epochs", 10], "leaves nothing of --epochs 2"),
    (["--weight-decay", -1], "is not a number from 0"),
    (["--global-batch-size", 100, "--accumulate", 3], "does not divide by 1 ranks and --accumulate 3"),
    (["@nothing"], "'nothing'"),
    (["--tracker", ""], "--tracker"),
])
def test_each_is_one_line_and_nothing_is_left(argv, message, begin, tmp_path):
    before = left(tmp_path)
    status, lines = begin(*argv)
    assert status == 2 and len(lines) == 1 and message in lines[0], lines
    assert left(tmp_path) == before


@pytest.mark.parametrize(("error", "lines"), [
    (FileNotFoundError(2, "No such file or directory", "cat.png"), None),  # of somebody's own loop
    (files.Unwritable("c: No space left on device"), ["c: No space left on device"]),
])
def test_only_what_no_code_can_mend_is_one_line(error, lines, begin, monkeypatch, caplog):
    def train(*_):
        raise error

    monkeypatch.setattr(main, "train", train)
    if lines is None:
        with pytest.raises(type(error)):
            begin()
    else:
        assert begin()[0] == 2
    assert [record.getMessage() for record in caplog.records] == (lines or [])


@pytest.mark.parametrize(("ranks", "argv", "message"), [
    (3, ["--samples", 2], "--samples 2 is less than the 3 ranks"),
    (3, ["--global-batch-size", 64], "--global-batch-size 64 does not divide by 3 ranks"),
    (2, ["--strategy", "single"], "--strategy single is for one process"),
    (2, ["--strategy", "dp"], "--strategy dp is for one process"),
])
def test_what_so_many_ranks_cannot_do_is_one_line(ranks, argv, message, begin):
    status, lines = begin(*argv, RANK=0, WORLD_SIZE=ranks)
    assert status == 2 and len(lines) == 1 and message in lines[0], lines


@pytest.mark.parametrize(("env", "message"), [
    ({"RANK": 5, "WORLD_SIZE": 2}, "RANK is 5"),
    ({"RANK": 0, "WORLD_SIZE": 0}, "WORLD_SIZE is 0"),
    ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 2}, "LOCAL_RANK is 2"),
    ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 4}, "LOCAL_WORLD_SIZE is 4"),
    ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": 65_536}, "MASTER_PORT is 65536"),
    ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": "http"}, "'http'"),
    ({"PMI_RANK": 1, "PMI_SIZE": 2}, "mpirun started 2 processes"),
])
def test_a_launcher_that_contradicts_itself_is_refused(env, message, begin):
    status, lines = begin(**env)
    assert status == 2 and len(lines) == 1 and message in lines[0], lines


@pytest.mark.parametrize(("program", "options", "message"), [
    pytest.param("train", ["--noise"], "2 ranks or more", marks=pytest.mark.weekly),
    pytest.param("train", ["--save=."], "--save '.' must be a file", marks=pytest.mark.weekly),
    ("train", ["--checkpoint="], "--checkpoint '' must be a file"),
    ("train_gpt", ["--save=no/such/folder/x.pt"], "--save 'no/such/folder/x.pt' must be a file")])
def test_a_learner_s_program_refuses_before_it_trains(program, options, message):
    done = runner.run(0, "--parts", "ours", *options, script=f"lessons/start/{program}.py")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and message in done.stderr, done.stderr


# ---------------------------------------------------------------- every program that has options

BAD = {"number": ["nan", "-1", "x"], "path": [""]}
ANSWERS = {"--kill": "1@1", "logs": str(runner.ROOT / "results/recorded/two-cpu-cores")}  # to what else must be given
PROGRAMS = sorted(path.relative_to(runner.ROOT) for room in ("scripts", "lessons", "teach")
                  for path in runner.ROOT.glob(f"{room}/**/*.py") if not path.name.startswith("test_")
                  if "rank_program.parser(" in path.read_text())


class Asked(Exception):
    """Stands in for parse_args, and holds the parser."""


def parser_of(module):
    def ask(parser, *_):
        raise Asked(parser)

    parse_args, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, ask
    try:
        module.main()
    except Asked as asked:
        return asked.args[0]
    finally:
        argparse.ArgumentParser.parse_args = parse_args


def kind(action):
    """"number", "path" or None, of an option."""
    if action.type in (int, float, options.from_zero) or "positive" in getattr(action.type, "__qualname__", ""):
        return "number"
    if action.type is options.nonempty_path or action.dest == "save_model":
        return "path"
    return None


def cases(parser):
    named = [action for action in parser._actions if action.option_strings]
    placed = [ANSWERS.get(action.dest) or [*(action.choices or []), "true"][0] for action in parser._actions
              if not action.option_strings and action.nargs not in ("*", "?")]
    for action in named:
        others = [word for other in named if other.required and other is not action for word in (
            other.option_strings[0], ANSWERS.get(other.option_strings[0]) or [*(other.choices or []), "found.json"][0])]
        for value in BAD.get(kind(action), ()):
            yield [*others, f"{action.option_strings[0]}={value}", *placed]


def too_long(*_):
    raise TimeoutError


def refuse(name):
    """In a process of its own, in an empty folder: (the number of cases, those not refused as they should be)."""
    module, folder = importlib.import_module(".".join(Path(name).with_suffix("").parts)), Path.cwd()
    signal.signal(signal.SIGALRM, too_long)
    accepted, tried = [], list(cases(parser_of(module)))
    for argv in tried:
        os.chdir(folder)
        errors = io.StringIO()
        sys.argv, status = [name, *argv], 0
        try:
            signal.alarm(10)  # what was accepted goes to work
            with contextlib.redirect_stderr(errors):
                module.main()
        except SystemExit as end:
            status = end.code
        except TimeoutError:
            status = "accepted"
        finally:
            signal.alarm(0)
        if status != 2 or len(errors.getvalue().splitlines()) != 1 or left(folder):
            accepted.append([" ".join(argv)[:100], status, errors.getvalue()[-200:], left(folder)])
    return len(tried), accepted


def refuse_all(folder):
    """{program: what refuse() found}: each in a process that has imported what all of them need."""
    found = {}
    for program in map(str, PROGRAMS):
        place, result = Path(folder, program), Path(folder, program, "result.json")
        (place / "empty").mkdir(parents=True)
        if os.fork() == 0:
            os.chdir(place / "empty")
            result.write_text(json.dumps(refuse(program)))
            os._exit(0)
        os.wait()
        found[program] = json.loads(result.read_text())
    Path(folder, "found.json").write_text(json.dumps(found))


def test_what_cannot_be_is_refused_in_one_line_by_each_program(tmp_path):
    script = tmp_path / "refuse.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(runner.ROOT)!r})\nfrom tests import test_bad_input\n"
                      f"test_bad_input.refuse_all({str(tmp_path)!r})\n")
    done = runner.run(0, script=script, limit=280)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert {program: accepted for program, (_, accepted) in found.items() if accepted} == {}
    assert len(found) == len(PROGRAMS) and sum(number for number, _ in found.values()) > 100
