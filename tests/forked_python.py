"""What may be started in place of python and torchrun: a process that is forked from one that has imported torch.

torchrun and each of its ranks would import torch anew, for two seconds of a core each. Here they run the same code, and
the process that is started, watched and signalled is a real one: this file's end, which imports next to nothing. It
hands its arguments, environment and files to serve(), and passes on signals and the exit status. torchrun starts such
ranks where PYTHON_EXEC names such a python, and mp.spawn in each program that is forked itself.

The forked process is a child of serve(), and has its namespaces, limits and session. So it is not for tests that stop a
rank (SIGSTOP), look at its environment, parent, children or sockets from outside, start it on hosts or under limits, or
hold that nothing of it is left when it is killed: it goes a moment after who stands for it.
"""

import contextlib
import fcntl
import io
import itertools
import os
import re
import select
import signal
import socket
import sys
from pathlib import Path

# Not TORCH_CPP_LOG_LEVEL and KINETO_LOG_LEVEL, by which lessons silence a line or two.
AT_THE_BEGINNING = re.compile(
    "MALLOC_|LD_PRELOAD|TORCH_LOGS|TORCH_SHOW_|"
    "PYTHON(ASYNCIODEBUG|DEVMODE|FAULTHANDLER|HASHSEED|MALLOC|OPTIMIZE|TRACEMALLOC|WARNINGS)")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "doctor")
KEPT = []  # as in course/forked_ranks.py
SIGNALS = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


@contextlib.contextmanager
def command(folder, context):
    """The path of such a python, which serves inside the with-block, in a folder with all programs that stand beside
    the true one: its torchrun is such a one, too. `context`: of multiprocessing, with torch."""
    address, program, true = folder / "socket", folder / "python", Path(sys.executable).parent
    for path in true.iterdir():
        if not path.name.startswith(("python", "torchrun")):
            (folder / path.name).symlink_to(path)
    for name, first in (("python", []), ("python3", []), ("torchrun", [str(true / "torchrun")])):
        (folder / name).write_text(f"#!{sys.executable} -SEs\nimport sys\n"
                                   f"sys.path.insert(0, {os.path.dirname(__file__)!r})\nimport forked_python\n"
                                   f"forked_python.ask({str(address)!r}, {first} + sys.argv[1:])\n")
        (folder / name).chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    process = context.Process(target=serve, args=(listener, str(program)), daemon=False)
    process.start()
    try:
        yield program
    finally:
        process.kill()
        process.join()
        process.close()
        listener.close()


def serve(listener, program):
    """For each that asks: a process, and another one that watches both it and who asked."""
    import multiprocessing.connection

    sys.executable = program  # what such a process starts is one, too
    multiprocessing.set_executable(program)  # and what mp.spawn starts in it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the watchers' status
    parent = multiprocessing.parent_process().sentinel
    while listener in multiprocessing.connection.wait([listener, parent]):  # else who has started this is gone
        asked, _ = listener.accept()
        if os.fork():
            asked.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        words, files = receive(asked)
        if pid := os.fork():
            for file in files.values():
                os.close(file)
            watch(asked, pid)
        asked.close()
        return become(*words, files)  # multiprocessing ends this process as it does its own


def receive(asked):
    """((arguments, folder, environment), {number of a file there: number here}) of the process that asks."""
    head, files, _, _ = socket.recv_fds(asked, 8, 64)
    size, raw = int(head), b""
    while len(raw) < size:
        raw += asked.recv(size - len(raw))
    numbers, count, folder, *words = raw.decode("utf-8", "surrogateescape").split("\0")
    env = dict(word.split("=", 1) for word in words[int(count):])
    return (words[:int(count)], folder, env), dict(zip(map(int, numbers.split()), files, strict=True))


def watch(asked, pid):
    """Pass signals on, and in the end the status. Who asked was killed: so is the process."""
    process = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([asked, process], [], [])
        if asked in ready:
            numbers = asked.recv(1)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, numbers[0] if numbers else signal.SIGKILL)
            if not numbers:
                os._exit(0)
        elif process in ready:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                asked.send(b"%d" % status)
            os._exit(0)


def become(argv, folder, env, files):
    """What `python argv...` would be, in this process."""
    import multiprocessing
    import runpy
    import tempfile

    import torch

    for number, file in files.items():  # out of each other's way first
        files[number] = fcntl.fcntl(file, fcntl.F_DUPFD, max(files) + 100)
        os.close(file)
    for number, file in files.items():
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    at_once = argv[0] == "-u" or bool(env.get("PYTHONUNBUFFERED"))
    argv = without_flags(argv)
    for name, number in (("stdout", 1), ("stderr", 2)):
        file = io.FileIO(number, "w", closefd=False)
        stream = io.TextIOWrapper(file if at_once else io.BufferedWriter(file), "utf-8", write_through=at_once,
                                  line_buffering=number == 2 or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    tempfile.tempdir = None  # of the server's TMPDIR
    ours = os.path.dirname(__file__)
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    module, code = argv[0] == "-m", argv[1] if argv[0] == "-c" else None
    sys.argv[:] = argv[module:] if code is None else ["-c", *argv[2:]]
    first = folder if module else os.path.dirname(os.path.realpath(argv[0]))
    sys.path[:] = [first, *paths, *(path for path in sys.path if path != ours)]
    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    torch.distributed.set_debug_level_from_env()
    multiprocessing.set_start_method(None, force=True)  # the system's own again
    try:
        if code is not None:
            exec(code, {"__name__": "__main__"})
        elif module:
            sys.modules.pop(sys.argv[0], None)
            KEPT.append(runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True))
        else:
            KEPT.append(runpy.run_path(argv[0], run_name="__main__"))
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace.tb_next and trace.tb_frame.f_globals["__name__"] != "__main__":
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)  # torch's own, which names the rank
        if isinstance(error, KeyboardInterrupt):
            multiprocessing.util._exit_function()  # as multiprocessing does at any other end
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


def without_flags(words):
    """Python's arguments without those that torchrun and mp.spawn put first."""
    return list(itertools.dropwhile(("-u", "-B").__contains__, words))


def forks(words):
    """Whether a process can become python with these arguments: those of a script, of MODULES or of a rank of mp.spawn,
    and nothing that python, the system's libraries or torch would read at their beginning."""
    words = without_flags(words)
    script = bool(words) and not words[0].startswith("-") and os.path.isfile(words[0])
    module = words[:1] == ["-m"] and words[1] in MODULES
    spawned = words[:1] == ["-c"] and words[-1] == "--multiprocessing-fork"
    return (script or module or spawned) and not any(map(AT_THE_BEGINNING.match, os.environ))


def ask(address, argv):
    """Be that process, for who started this one; where that cannot be, be python itself."""
    if not forks(argv):
        os.execv(sys.executable, [sys.executable, *argv])
    files = [number for number in map(int, os.listdir("/dev/fd")) if os.path.exists(f"/dev/fd/{number}")]
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    words = [" ".join(map(str, files)), str(len(argv)), os.getcwd(), *argv,
             *(f"{name}={value}" for name, value in os.environ.items())]
    raw = "\0".join(words).encode("utf-8", "surrogateescape")
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the server can tell them from what is sent first
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: server.send(bytes([number])))
    socket.send_fds(server, [b"%08d" % len(raw)], files)
    server.sendall(raw)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    status = int(server.recv(8) or -signal.SIGKILL)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
