"""What main.py is made of: options, data, models, ranks, checkpoints, the log. Copy it with main.py and utils.py."""
