"""Lesson 03: what a launcher writes into the environment of a rank."""

MEANING = {
    "RANK": "rank: number in the job", "LOCAL_RANK": "local rank: number on this node",
    "WORLD_SIZE": "processes in the job", "LOCAL_WORLD_SIZE": "processes on this node",
    "GROUP_RANK": "group rank: number of the node", "GROUP_WORLD_SIZE": "nodes",
    "MASTER_ADDR": "where all ranks meet: the host …", "MASTER_PORT": "… and the port"}


def variables(told):
    """Rows: each variable of MEANING, and its value in `told`, {variable: value}."""
    return [{"variable": f"`{name}`", "says": says, "value": told.get(name, "not set")}
            for name, says in MEANING.items()]
