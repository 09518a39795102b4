"""Why a launch failed: the cause that its console shows, and the cure."""

import re

from course import console

# What a launcher's output holds -> cause and cure. The first that is found counts: the particular stand first.
CAUSES = {
    r"unrecognized arguments: --local[-_]rank\S*":
        "torch.distributed.launch passes --local-rank (--local_rank before PyTorch 2.0), which the script does not "
        "declare. Start it with torchrun and read os.environ['LOCAL_RANK'], or declare both spellings",
    r"current process has finished its bootstrapping phase":
        "each new process imports the script from its first line, and comes to the line that starts processes. Put "
        "that line under `if __name__ == \"__main__\":`, which holds for the first process alone",
    r"port: (\d+)\b.*EADDRINUSE":
        "port {1} of this node is in use, by another job or by one that was not ended (`ss -tlnp` shows it). Choose "
        "another --master-port; on a single node leave it out, and a free one is taken",
    r"addresses of \(([^,)]+), \d+\) cannot be retrieved":
        "this node knows no host {1}. Use the name that `hostname` prints on the first node, or that node's address",
    r"timed out after \d+ms while trying to connect to \(([^,)]+), (\d+)\)":
        "nobody answers at {1}:{2}. Start torchrun on the first node, too; name one address and port on all nodes; "
        "look for a firewall between them",
    r"RendezvousTimeoutError":
        "fewer nodes came than --nnodes asks for. Start torchrun on each, with the same --nnodes, --rdzv-id and "
        "--rdzv-endpoint; --rdzv-conf=join_timeout=SECONDS sets how long they wait for each other",
    r"needs a GPU for each of this node's \d+ ranks, and there are \d+|invalid device ordinal|Duplicate GPU detected":
        "more ranks than GPUs on this node. Give --nproc_per_node at most the number of GPUs, or --backend gloo, "
        "and ranks share them",
    r".*oom[_-]kill event.*":
        "Slurm killed a process: the job used more of the node's memory than it had asked for. Ask for more (--mem), "
        "or use fewer loader workers",
    r".*CANCELLED AT \S+ DUE TO TIME LIMIT.*":
        "the job reached its time limit. Ask for more (--time), or save and requeue before it: "
        "scripts/cluster/ranks.sbatch does",
    r"(rank \d+ of \d+ (?:waited for|cannot listen at) .+)": "{1}",  # launch.init_distributed_mode's own words
    r"Timed out after \d+ seconds waiting for clients\. (\d+)/(\d+) clients joined":
        "only {1} of {2} ranks came. Start the others too, with this address and port, and this world size",
    r"(?m)^(?:.*: )?(\S+\.py): error: (.+)$": "{1} says: {2}",
    # Status 2: a program that refuses what it was given. Ranks of other nodes then raise errors of their connections.
    r"(?m)^(?![WEI]\d{4} )(.+)\n(?=(?:W\d.*Sending process .*\n)*E\d.*failed \(exitcode: 2\))":
        "a rank ended itself with status 2; the line before that was: {1}",
    r"Root Cause[\s\S]*?exitcode\s*: -9 ": "a rank was killed (SIGKILL): most often the machine ran out of memory",
    r"Root Cause[\s\S]*?exitcode\s*: -(11|6) .*|failed \(exitcode: -(11|6)\).*":
        "a rank broke off in code that is not Python (signal {1}; 11 is SIGSEGV, 6 SIGABRT). PYTHONFAULTHANDLER=1 "
        "makes it say where. TROUBLESHOOTING.md, entry 92",
    # The first error of all: where a rank raised another one, the others only wait for it in vain.
    r"\A(?:(?!\w(?:Error|Exception): )[\s\S])*(?:\wError: Timed out waiting (\d+)ms for (?:recv|send)|"
    r"Watchdog caught collective operation timeout: .*Timeout\(ms\)=(\d+)).*":
        "the ranks met, and then one did not take part in a collective within {1} ms. Look at the ranks that do not "
        "complain",
    r"(?m)^(?:\[rank\d+\]: )?\s*(\w+(?:\.\w+)*(?:Error|Exception)(?:: .+)?)$": "a rank raised {1}",
    r"Root Cause[\s\S]*?rank\s*: (\d+) .*\n\s*exitcode\s*: (\d+)":
        "rank {1} ended with exit status {2}, and left no traceback: read what it printed before (--all). @record from "
        "torch.distributed.elastic.multiprocessing.errors on its main function would bring the traceback here",
}

def explain(output: str) -> tuple[str, str] | None:
    """(the line that shows the cause, cause and cure) of a failed run's output; None where the cause is not known."""
    output = console.without_prefixes(output)
    output = re.sub(r"\[[^\s\]]*/\S+:\d+\] ", "", output)  # without places in gloo's source
    root_cause = output.partition("Root Cause")[2]  # torchrun knows which rank failed first; the others' errors follow
    for pattern, meaning in CAUSES.items():
        for text in (root_cause, output):
            if match := re.search(pattern, text):
                groups = [group for group in match.groups() if group is not None]
                return match[0].splitlines()[-1].strip(), meaning.format(None, *groups)
    return None
