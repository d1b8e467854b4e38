from __future__ import annotations

import pytest

from drumline.config.schema import HardwareConfig
from drumline.errors import ConfigError
from drumline.launcher.functions import config_of


def test_a_number_of_processes_is_one_of_gpus_where_there_are_some() -> None:
    assert config_of(2, None, has_gpus=True).hardware == HardwareConfig(count=2)
    assert config_of(2, None, has_gpus=False).hardware == HardwareConfig(num_processes=2)
    assert config_of(2, {"device": "cpu"}, has_gpus=True).hardware == HardwareConfig(device="cpu", num_processes=2)
    assert config_of(None, {"exclude": ["0"]}, has_gpus=True).hardware == HardwareConfig(exclude=["0"])
    given = HardwareConfig(taken="use")
    assert config_of(2, given, has_gpus=True).hardware == HardwareConfig(taken="use", count=2)
    named = config_of(2, HardwareConfig(gpus=["0", "1"]), has_gpus=True).hardware
    assert (named.gpus, named.count) == (["0", "1"], None)


@pytest.mark.parametrize("has_gpus", [True, False])
def test_what_cannot_be_meant_is_refused(has_gpus: bool) -> None:
    with pytest.raises(ConfigError):
        config_of(0, None, has_gpus=has_gpus)
    with pytest.raises(ConfigError, match="gpu_count"):
        config_of(None, {"gpu_count": 1}, has_gpus=has_gpus)
