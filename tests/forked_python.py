"""What torchrun may start in place of python (PYTHON_EXEC): a process that is forked from one that has imported torch.

Each rank of a torchrun imports torch anew, for two seconds of a core. Here torchrun is the real one, with all that it
does, and so is the process that it starts, watches and signals: this file's second half, which imports next to nothing.
It hands its arguments, environment and files to server(), and passes on signals and the exit status. Not for tests that
stop a rank (SIGSTOP), look at its environment, parent or sockets from outside, or hold that nothing is left of it.
"""

import contextlib
import io
import os
import select
import signal
import socket
import sys

SIGNALS = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


@contextlib.contextmanager
def command(folder, context):
    """The path of such a python, which serves inside the with-block. `context`: of multiprocessing, with torch."""
    address, program = folder / "socket", folder / "python"
    program.write_text(f"#!{sys.executable} -SEs\nimport sys\nsys.path.insert(0, {os.path.dirname(__file__)!r})\n"
                       f"import forked_python\nforked_python.ask({str(address)!r})\n")
    program.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    process = context.Process(target=serve, args=(listener,), daemon=False)
    process.start()
    try:
        yield program
    finally:
        process.kill()
        process.join()
        process.close()
        listener.close()


def serve(listener):
    """For each that asks: a process, and another one that watches both it and who asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the watchers' status
    while True:
        asked, _ = listener.accept()
        if os.fork():
            asked.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        words, files = receive(asked)
        if pid := os.fork():
            for file in files:
                os.close(file)
            watch(asked, pid)
        asked.close()
        return become(*words, files)  # multiprocessing ends this process as it does its own


def receive(asked):
    """((arguments, folder, environment), the three files) of the process that asks."""
    head, files, _, _ = socket.recv_fds(asked, 8, 3)
    size, raw = int(head), b""
    while len(raw) < size:
        raw += asked.recv(size - len(raw))
    count, *words = raw.decode("utf-8", "surrogateescape").split("\0")
    return (words[1:int(count) + 1], words[0], dict(word.split("=", 1) for word in words[int(count) + 1:])), files


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
    """What `python -u argv...` would be, in this process."""
    import runpy
    import tempfile

    import torch

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):  # as with -u: what is printed is written at once
        stream = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", write_through=True)
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
    sys.path[:] = [os.path.dirname(os.path.realpath(argv[0])), *paths, *(path for path in sys.path if path != ours)]
    sys.argv[:] = argv
    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    torch.distributed.set_debug_level_from_env()
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace.tb_next and trace.tb_frame.f_code.co_filename != argv[0]:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)  # torch's own, which names the rank
        sys.exit(1)


def ask(address):
    """Be that process, for who started this one. Not `-u script.py ...`: be python itself."""
    if sys.argv[1] != "-u" or sys.argv[2].startswith("-"):
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    argv = sys.argv[2:]
    words = [str(len(argv)), os.getcwd(), *argv, *(f"{name}={value}" for name, value in os.environ.items())]
    raw = "\0".join(words).encode("utf-8", "surrogateescape")
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: server.send(bytes([number])))
    socket.send_fds(server, [b"%08d" % len(raw)], [0, 1, 2])
    server.sendall(raw)
    status = int(server.recv(8) or -signal.SIGKILL)
    if status < 0:
        if -status in SIGNALS:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
