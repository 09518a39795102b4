"""The fields of a run log, with pandas' type of each: the same for JSON lines and for console text."""

# Any other field of a run record becomes a column too.
RUN = {
    "label": "string", "strategy": "string", "world_size": "Int64", "local_world_size": "Int64", "nodes": "Int64",
    "device": "string", "device_name": "string", "device_count": "Int64", "backend": "string", "cores": "Int64",
    "threads": "Int64", "dataset": "string", "synthetic": "boolean", "samples": "Int64", "test_samples": "Int64",
    "model": "string", "epochs": "Int64", "batch_size": "Int64", "lr": "float64", "seed": "Int64",
    "run_id": "string", "launcher": "string", "torch": "string", "restarts": "Int64",
}
END = {"total_seconds": "float64", "error": "string"}
READER = dict.fromkeys(["path", "source", "machine", "status", "note"], "string")  # written by runs.py, not by a run

# All of them numbers.
EPOCH = ["loss", "accuracy", "seconds", "images_per_second", "data_seconds", "forward_seconds", "backward_seconds",
         "update_seconds", "val_loss", "val_accuracy"]
