"""Settings from environment variables."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError
from ding_lite.settings.environment import PREFIX, Settings, state_home
from tests.ground.settings.test_config import maybe, several

WORDS = st.text("abcXYZ019._:/+-λ", min_size=1, max_size=8)
COUNTS = st.integers(1, 2**70)


ALL_SETTINGS = st.builds(
    Settings,
    # Below the number of nodes, whatever that is.
    node_id=maybe(st.just(0)),
    num_nodes=maybe(COUNTS),
    labels=several(WORDS),
    roles=several(WORDS),
    topology=maybe(st.sampled_from(["star", "mesh", "tree", "tree:1", "tree:3", "alone"])),
    protocol=maybe(st.sampled_from(["ipc", "tcp"])),
    address=maybe(WORDS),
    ports=several(st.integers(1, 65535)),
    attach_to=several(WORDS),
    key_file=maybe(WORDS),
    engine=maybe(st.sampled_from(["local", "ray"])),
    torch_threads=st.integers(0, 64),
)


def as_environ(settings: Settings, space: str, separator: str) -> dict[str, str]:
    environ = {}
    for name, value in dataclasses.asdict(settings).items():
        value = int(value) if isinstance(value, bool) else value
        text = separator.join(map(str, value)) if isinstance(value, tuple) else str(value)
        environ[PREFIX + name.upper()] = "" if value is None else f"{space}{text}{space}"
    return environ


@given(
    settings=ALL_SETTINGS,
    space=st.sampled_from(["", " ", "\t\n"]),
    separator=st.sampled_from([",", " , ", ",,"]),
)
def test_settings_written_to_the_environment_are_read_back(settings, space, separator) -> None:
    assert Settings.from_environ(as_environ(settings, space, separator)) == settings


@pytest.mark.parametrize(
    ("text", "topology"),
    [("star", "star"), ("tree:2", "tree:2"), (" 2-1, 0 - 1 ", ((2, 1), (0, 1)))],
)
def test_a_topology_is_what_the_option_of_that_name_takes(text, topology) -> None:
    assert Settings.from_environ({"DING_LITE_TOPOLOGY": text}).topology == topology


def test_empty_variables_and_those_without_our_prefix_are_ignored(monkeypatch) -> None:
    for text in ("", " ", "\t\n"):
        environ = {PREFIX + f.name.upper(): text for f in dataclasses.fields(Settings)}
        assert Settings.from_environ(environ) == Settings()
    environ = {"PATH": "/bin", "DING_LITE": "x", "MY_DING_LITE_NODE_ID": "x", "DINGLITE_X": "x"}
    assert Settings.from_environ(environ) == Settings()
    assert Settings.from_environ() == Settings()
    roles = Settings.from_environ({"DING_LITE_ROLES": "learner+a, collector * 2"}).roles
    assert roles == ("learner+a", "collector", "collector")
    monkeypatch.setenv("DING_LITE_TORCH_THREADS", "3")  # of this process, by default
    assert Settings.from_environ().torch_threads == 3


@pytest.mark.parametrize(
    ("variable", "text", "fault"),
    [
        ("TORCH_TREADS", "", 'Unknown environment variable {}. Did you mean "DING_LITE_TORCH_'),
        ("TORCHTHREADS", "2", 'Unknown environment variable {}. Did you mean "DING_LITE_TORCH_'),
        ("THREADS", "2", 'Unknown environment variable {}. Did you mean "DING_LITE_TORCH_'),
        ("FOO", "1", "Unknown environment variable {}. Known are: "),
        ("Node_Id", "3", 'Unknown environment variable {}. Did you mean "DING_LITE_NODE_ID"?'),
        *(
            (variable, text, f"{{}} is {text!r}; a whole number was expected, such as {{}}=1.")
            for variable in ("NODE_ID", "PORTS")
            for text in ("two", "1.5", "1e3", "0x10", "--1", "1 2", "nan")
        ),
        ("TORCH_THREADS", "-1", "`{}` is -1; it must be a whole number from 0 on."),
        ("NODE_ID", "-2", "`{}` is -2; it must be a whole number from 0 on."),
        ("NODE_ID", "2", "`{}` is 2 and `DING_LITE_NUM_NODES` 2; the nodes are numbered from 0"),
        ("NUM_NODES", "0", "`{}` is 0; it must be a whole number from 1 on."),
        ("PORTS", "-4", "`{}` is -4; it must lie between 1 and 65535."),
        ("PORTS", "50515,70000", "`{}` is 70000; it must lie between 1 and 65535."),
        ("TOPOLOGY", "ring", "{} is 'ring'; expected is one of: star, mesh, tree, alone, a tree"),
        ("TOPOLOGY", "tree:0", "{} is 'tree:0'; expected is one of: star, mesh, tree"),
        ("PROTOCOL", "smoke", "`{}` is 'smoke'; it must be one of: 'ipc', 'tcp'."),
        ("ENGINE", "steam", "`{}` is 'steam'; it must be one of: 'local', 'ray'."),
        *(
            ("ROLES", f"a,{entry}", f"{{}} has the entry {entry!r}; behind `*` a count")
            for entry in ("b*0", "b*x", "b*", "b*1000", "b*2*2", "b*²")
        ),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name_and_value(variable, text, fault) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_environ({"DING_LITE_NUM_NODES": "2", PREFIX + variable: text})
    message = str(caught.value)
    assert message.startswith(fault.replace("{}", PREFIX + variable))
    if "Unknown" in message:
        assert all(PREFIX + one.name.upper() in message for one in dataclasses.fields(Settings))


def test_a_user_without_a_home_directory_is_told_which_variable_to_set(monkeypatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987_654)  # as in a container with a user of its own
    with pytest.raises(ConfigError, match=r"User 987654 has no home.* Set HOME or XDG_STATE_HOME"):
        state_home({})
    assert state_home({"XDG_STATE_HOME": "/srv"}) == Path("/srv")
