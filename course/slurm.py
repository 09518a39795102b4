"""A real Slurm on hosts of this one machine: `with Slurm(nodes=2) as slurm: slurm.run(["sinfo"])`.

It needs what course/hosts.py needs, and Debian's packages slurmctld, slurmd, slurm-client and munge. Its command,
scripts/cluster/slurm_lab.py, says what such a Slurm can do, and what it cannot.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from course.hosts import TOOLS, Cluster, ClusterError

PACKAGE = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "srun": "slurm-client",
           "scontrol": "slurm-client", "sinfo": "slurm-client", "munged": "munge"}
LIMIT = 60  # seconds, for a command of Slurm's, and for the nodes to be idle: it takes 2

# config_overrides: believe CPUs= and Gres=. MessageTimeout: jobs here may keep every core busy. SlurmdUser: see Slurm.
# FirstJobId: no job must find the checkpoint of another lab's. cred_expire: a job that is queued again waits so long,
# 120 s by default. Slurm's own ports serve every host: each has a network of its own.
SLURM_CONF = """
ClusterName=lab
SlurmctldHost=node0
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
DependencyParameters=kill_invalid_depend
SchedulerParameters=sched_interval=2
FirstJobId={first_job}
MessageTimeout=60
NodeName=node[1-{nodes}] CPUs={cpus} {gpus}
PartitionName=main Nodes=ALL Default=YES
PartitionName=spare Nodes=ALL
"""
GPUS = "Gres=gpu:{gpus}\nGresTypes=gpu"  # a cluster without GPUs does not know the word


def missing():
    """None where Slurm is installed, else one line: what is missing, and what to do."""
    if lacking := [program for program in PACKAGE if not shutil.which(program, path=TOOLS)]:
        packages = " ".join(dict.fromkeys(PACKAGE[program] for program in lacking))
        return f"Slurm is not installed here ({', '.join(lacking)} not found): on Debian, apt-get install {packages}"


class Slurm:
    """Slurm on node1 to node`nodes`, started and ended by `with`.

    Each node claims `cpus` CPU cores and `gpus` GPUs. Partitions: main, the default, and spare. Raises ClusterError
    where it cannot be.
    """

    def __init__(self, nodes=2, cpus=64, gpus=0):
        if reason := missing():
            raise ClusterError(reason)
        self.nodes, self.cpus, self.gpus, self.daemons = nodes, cpus, gpus, {}
        # Where we are not root, Cluster makes us root of its hosts, but not a root who may call setgroups, as Slurm's
        # daemons do. They do not if they run as a user: so one more namespace gives us our own number back.
        own_number = ["unshare", "--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
        self.as_user = own_number if os.getuid() else []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-lab-")))
            self.cluster = stack.enter_context(Cluster(self.nodes + 1))
            self._boot()
            self._close = stack.pop_all().close
        return self

    def __exit__(self, *_):
        self._close()

    def start(self, command, node=0, env=None, **options):
        """Start `command`, a list of words, on a node, 0 is the login node; a Popen with subprocess.Popen's options."""
        env = {**(env or os.environ), "SLURM_CONF": f"{self.folder}/slurm.conf", "SLURM_LAB": str(self.folder)}
        return self.cluster.start(node, [*self.as_user, *command], env=env, **options)

    def run(self, command, **options):
        """The finished `command`; its stdout and stderr are text."""
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        stdout, stderr = process.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def _boot(self):
        import pwd  # late: not on Windows, which course/hosts.py refuses in one line

        (self.folder / "munge.key").touch(0o600)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "state").mkdir()
        for gpu in range(self.gpus):  # Slurm wants devices, and takes the GPU's number from the name
            (self.folder / f"gpu{gpu}").symlink_to("/dev/null")
        if self.gpus:
            (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{self.gpus - 1}]\n")
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(
            folder=self.folder, user=pwd.getpwuid(os.getuid()).pw_name, nodes=self.nodes, cpus=self.cpus,
            gpus=GPUS.format(gpus=self.gpus) if self.gpus else "", first_job=100 * (1 + secrets.randbelow(600_000))))

        # --force: to a user's munged the folders of root seem to belong to nobody, and unsafe.
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed", "log")]
        self._start_daemon(0, "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged to open its socket")
        self._start_daemon(0, "slurmctld", "-D")
        for node in range(1, self.nodes + 1):
            self._start_daemon(node, "slurmd", "-D", "-N", f"node{node}")
        count = ["sinfo", "--noheader", "--partition=main", "--format=%D %t"]
        self._wait(lambda: self.run(count).stdout.split() == [str(self.nodes), "idle"], "all nodes to be idle")

    def _start_daemon(self, node, *command):
        log = self.folder / f"{command[0]}.node{node}.log"
        with log.open("w") as file:  # a session of its own: Ctrl-C is for COMMAND and for us
            self.daemons[log] = self.start(command, node, env={**os.environ, "PATH": TOOLS}, stdin=subprocess.DEVNULL,
                                           stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    def _wait(self, condition, what):
        give_up = time.monotonic() + LIMIT
        while not condition():
            ended = [log for log, process in self.daemons.items() if process.poll() is not None]
            if ended or time.monotonic() > give_up:
                why = "a daemon has ended" if ended else f"waited {LIMIT} s for {what}"
                last = [f"{log.name}: {''.join(log.read_text().splitlines()[-1:])}" for log in ended or self.daemons]
                raise ClusterError(f"Slurm does not start: {why}; {'; '.join(last)}")
            time.sleep(0.1)
