"""The first host of Slurm's lists."""

from __future__ import annotations

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment.slurm import first_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", ""),
        ("login", "login"),
        ("a,b", "a"),
        ("n[1-3]", "n1"),
        ("n[09-11,20]", "n09"),
        ("n[1]-ib,m", "n1-ib"),
        ("r[1-2]n[01,3]", "r1n01"),
        ("gpu-a[1-2],gpu-b[1,3-4].site", "gpu-a1"),
        ("gpu-b[1,3-4].site,a", "gpu-b1.site"),
    ],
)
def test_the_first_name_of_a_host_list_is_found(text: str, name: str) -> None:
    assert first_name(text) == name


@pytest.mark.parametrize("text", ["n[a-b]", "n[1;2]", "n[]", "n[1", "n1]", ",a"])
def test_a_malformed_host_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SLURM_STEP_NODELIST is .* cannot be read"):
        first_name(text)
