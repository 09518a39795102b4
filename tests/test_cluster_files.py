"""The files for schedulers that do not run here: scripts/cluster/trainjob.yaml and sky.yaml. What can be asked without
a cluster: is each field known, and what do torchrun and main.py make of the command?"""

import os
import re
import subprocess
from unittest import mock

import pytest
import yaml
from torch.distributed import run as torchrun

import options
from tests import runner

CLUSTER = runner.ROOT / "scripts" / "cluster"
# Typed from https://docs.skypilot.co/en/stable/reference/yaml-spec.html, 2026-11-24. SkyPilot's package has a schema,
# too, but brings fifty others, and an older click. On that day sky.yaml passed it, by hand: skypilot 0.14.1,
# sky/utils/schemas.py, and sky.Task.from_yaml. (It lets any word pass below job_recovery; the list here does not.)
SKY = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "volumes", "file_mounts", "setup", "run",
       "config"}
SKY_RESOURCES = {"infra", "accelerators", "accelerator_args", "cpus", "memory", "instance_type", "use_spot",
                 "disk_size", "disk_tier", "network_tier", "max_hourly_cost", "image_id", "ports", "labels", "autostop",
                 "any_of", "ordered", "job_recovery"}


def read(name):
    return yaml.safe_load((CLUSTER / name).read_text())


def understood(words, **env):
    """A command as torchrun reads it, and what is behind the script as main.py reads that."""
    with mock.patch.dict(os.environ, env):
        found = torchrun.parse_args(words)
    assert found.training_script.rpartition("/")[2] == "main.py"
    return found, options.get_parser().parse_args(found.training_script_args)


def pod_of(job):
    """What Kubeflow makes of a TrainJob on each node: the pod of the patch, its container as `trainer` says."""
    trainer, (patch,) = job["spec"]["trainer"], job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {name: trainer[name] for name in ("image", "command", "args", "env")}
    container["resources"] = trainer["resourcesPerNode"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": job["metadata"], "spec": pod}


def test_kubeflow_knows_every_field_of_the_trainjob():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed "
                                 "(requirements-optional.txt)")
    job = read("trainjob.yaml")
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
    job["spec"]["trainer"]["numNode"] = 2
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() != job, "what it does not know it leaves out"


@pytest.mark.parametrize("misspell", [
    lambda pod: pod["volumes"][0]["persistentVolumeClaim"].update(claimname="course-results"),
    lambda pod: pod["containers"][0]["volumeMounts"][0].pop("mountPath"),
    lambda pod: pod["containers"][0]["resources"].update(limit={}),
    lambda pod: pod["containers"][0]["env"][0].update(value=8),
    lambda pod: pod.update(terminationGracePeriodsSeconds=120),
])
def test_kubernetes_knows_every_field_of_the_trainjob_s_pod(misspell):
    """A TrainJob is Kubeflow's own kind, of which Kubernetes knows nothing. The pod that comes of it is not."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed "
                                     "(requirements-optional.txt)")
    job = read("trainjob.yaml")
    with pytest.raises(kubernetes.SchemaNotFoundError):
        kubernetes.validate(job, "1.37", strict=True)
    pod = pod_of(job)
    kubernetes.validate(pod, "1.37", strict=True)
    misspell(pod["spec"])
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(pod, "1.37", strict=True)


def test_a_pod_of_the_trainjob_starts_its_nodes_ranks():
    job = read("trainjob.yaml")
    trainer, pod = job["spec"]["trainer"], pod_of(job)["spec"]
    (container,) = pod["containers"]
    assert trainer["command"] == ["torchrun"]
    # what Kubeflow Trainer 2.3 puts into the second pod's environment, after its source: pkg/runtime/framework/plugins
    found, training = understood(
        trainer["args"], PET_NNODES=str(trainer["numNodes"]), PET_NPROC_PER_NODE=str(trainer["numProcPerNode"]),
        PET_NODE_RANK="1", PET_MASTER_ADDR="course-node-0-0.course", PET_MASTER_PORT="29500")
    assert (found.nnodes, found.nproc_per_node, found.node_rank) == ("2", "8", 1)
    assert (found.rdzv_backend, found.master_addr, found.master_port) == ("static", "course-node-0-0.course", 29500)

    env = {each["name"]: each["value"] for each in trainer["env"]}
    assert int(env["OMP_NUM_THREADS"]) * trainer["numProcPerNode"] == trainer["resourcesPerNode"]["requests"]["cpu"]
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == trainer["numProcPerNode"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts.keys() == {each["name"] for each in pod["volumes"]}
    assert all(path.startswith(f"{mounts['results']}/")
               for path in (training.log_file, training.checkpoint, env["COURSE_DATA"])), "it would end with the pod"


def test_skypilot_starts_torchrun_as_the_sbatch_file_does(tmp_path):
    task = read("sky.yaml")
    program = tmp_path / ".venv/bin/torchrun"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$OMP_NUM_THREADS" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path, capture_output=True, text=True, timeout=30, env={
        "PATH": os.environ["PATH"], **task["envs"], "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_TASK_ID": "sky-managed-2026-11-24_course_7-0"})
    assert done.returncode == 0, done.stderr
    threads, *words = done.stdout.splitlines()
    assert int(threads) == len(os.sched_getaffinity(0)) // 2
    found, training = understood(words)
    assert (found.nnodes, found.nproc_per_node, found.rdzv_backend) == ("2", "2", "c10d")
    assert (found.rdzv_endpoint, found.rdzv_id) == ("10.0.0.1:29400", "sky-managed-2026-11-24_course_7-0")
    assert training.epochs == int(task["envs"]["EPOCHS"])
    (kept,) = task["file_mounts"]
    assert training.log_file.startswith(f"{kept}/") and training.checkpoint.startswith(f"{kept}/")

    sbatch = (CLUSTER / "torchrun.sbatch").read_text()
    theirs = re.findall(r"--[a-z-]+", re.search(r"exec torchrun.*?main\.py.*?\|\|", sbatch, re.DOTALL)[0])
    assert [word.partition("=")[0] for word in words if word.startswith("--")] == [*theirs, "--epochs"]


def test_skypilot_documents_every_field_of_the_task():
    task = read("sky.yaml")
    assert set(task) <= SKY and set(task["resources"]) <= SKY_RESOURCES
    assert set(task["resources"]["job_recovery"]) <= {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}
    (bucket,) = task["file_mounts"].values()
    assert set(bucket) <= {"name", "source", "store", "persistent", "mode"}
    assert bucket["mode"] in ("MOUNT", "COPY", "MOUNT_CACHED")


@pytest.mark.parametrize("name", ["trainjob.yaml", "sky.yaml"])
def test_each_says_that_it_was_never_run(name):
    assert "\n# Never run here: " in (CLUSTER / name).read_text()
