"""What takes python's place, and torchrun's: it is python to whoever starts, signals or kills it."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import runner
from tests.forked_python import AT_THE_BEGINNING

SAYS = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['WORD'], __name__, sys.stdin.read(), end='.')"


def run(python, folder, text, *words):
    (folder / "rank.py").write_text(text)
    return subprocess.run([python, "-u", folder / "rank.py", *words], cwd=folder, env=runner.environment(WORD="ä=\n"),
                          input="in", capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("text", "status", "said"), [
    (SAYS, 0, ""), ("import sys; sys.exit('why')", 1, "why\n"), ("import os; os.kill(os.getpid(), 9)", -9, ""),
    ("def f():\n    1 / 0\nf()", 1, "line 3, in <module>\n    f()\n")])
def test_it_does_what_python_does(text, status, said, forked_python, tmp_path):
    found = [run(python, tmp_path, text, "a b", "") for python in (sys.executable, forked_python)]
    assert [one.returncode for one in found] == [status] * 2
    assert found[0].stdout == found[1].stdout and all(said in one.stderr for one in found)
    assert found[0].stderr.splitlines()[:3] == found[1].stderr.splitlines()[:3], "the traceback begins in the script"


def fresh(**changes):
    return {name: value for name, value in runner.environment().items() if not AT_THE_BEGINNING.match(name)} | changes


@pytest.mark.parametrize(("options", "env", "forked"), [
    (["-u"], {}, True), ([], {}, True), ([], {"MALLOC_ARENA_MAX": "2"}, False), ([], {"PYTHONHASHSEED": "1"}, False)])
def test_it_is_forked_unless_python_reads_a_variable_at_its_beginning(options, env, forked, forked_python, tmp_path):
    (tmp_path / "which.py").write_text("import sys; print('torch' in sys.modules, sys.executable)")
    done = subprocess.run([forked_python, *options, tmp_path / "which.py"], env=fresh(**env), capture_output=True,
                          text=True, timeout=60)
    assert done.stdout.split() == [str(forked), forked_python if forked else sys.executable]


def test_torchrun_is_forked_with_its_ranks(forked_python, tmp_path):
    (tmp_path / "rank.py").write_text("import os, sys; os.write(1, b'%s of %s, %s\\n' % (os.environb[b'RANK'], "
                                      "os.environb[b'WORLD_SIZE'], str('torch' in sys.modules).encode()))")
    command = [Path(forked_python).with_name("torchrun"), "--nproc_per_node=3", tmp_path / "rank.py"]
    done = subprocess.run(command, env=fresh(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 3, True" for rank in range(3)]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_reach_it_and_it_dies_with_who_asked(sign, forked_python, tmp_path):
    part, pid = tmp_path / "part", tmp_path / "pid"
    (tmp_path / "rank.py").write_text(f"import os, time\nopen({str(part)!r}, 'w').write(str(os.getpid()))\n"
                                      f"os.rename({str(part)!r}, {str(pid)!r})\ntime.sleep(600)\n")
    process = subprocess.Popen([forked_python, "-u", tmp_path / "rank.py"], env=runner.environment())
    runner.wait_for(pid.exists, "its start", 60)
    process.send_signal(sign)
    assert process.wait(30) == -sign
    runner.wait_for(lambda: not psutil.pid_exists(int(pid.read_text())), "its end", 30)
