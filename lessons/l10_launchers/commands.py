"""What a torchrun command means, asked of torchrun itself."""

from unittest import mock

from torch.distributed import run as torchrun


def launch_config(options):
    """The LaunchConfig that `torchrun OPTIONS main.py` would work with. Nothing is started."""
    with mock.patch.object(torchrun, "elastic_launch") as launch:
        torchrun.run(torchrun.parse_args([*options.split(), "main.py"]))
    return launch.call_args.kwargs["config"]
