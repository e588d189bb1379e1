"""The files that the guides to SLURM and Kubernetes give a user are right, as far as can be told
without either: by their schemas, by what nodes make of them, and by running what is in them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import uuid
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ding_lite.parallel.launch.environment import detect
from ding_lite.parallel.network.security import load_key, make_key
from tests.cli.calls import ROOT
from tests.docpages import blocks

GUIDES = ROOT / "docs" / "guide"
KUBERNETES = ("1.29", "1.36")
"""The oldest version that knows all that stands in the manifests, and a new one."""


def blocks_of(page: str, language: str) -> list[str]:
    """Return the blocks of a guide that are in a language."""
    found = blocks((GUIDES / page).read_text())
    return [block.code for block in found if block.language == language]


# -- SLURM ---------------------------------------------------------------------------------


def options_of(script: str) -> dict[str, str]:
    """Return what the `#SBATCH` lines of a batch script ask for: only those before any command."""
    lines = iter(script.splitlines())
    assert next(lines) == "#!/bin/bash"
    asked = {}
    for line in lines:
        if line.startswith("#SBATCH "):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            asked[name] = value
        elif line and not line.startswith("#"):
            break
    assert len(asked) == script.count("#SBATCH"), "a line below the first command is not read"
    return asked


@pytest.mark.parametrize("script", blocks_of("slurm.md", "bash"))
def test_bash_understands_the_batch_scripts(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    known = {
        *("job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "time", "output"),
        *("signal", "requeue"),
    }
    assert options_of(script).keys() <= known


def test_the_batch_script_runs_a_job_with_a_node_for_each_task(type_line, folder) -> None:
    script = blocks_of("slurm.md", "bash")[0]
    asked = options_of(script)
    num_tasks = int(asked["nodes"]) * int(asked["ntasks-per-node"])
    [program] = [block for block in blocks((GUIDES / "launchers.md").read_text()) if block.prints]
    bin_ = folder / "bin"
    bin_.mkdir()
    for name, command in (
        ("srun", [sys.executable, str(ROOT / "tests" / "procs" / "srun.py")]),
        ("ding-lite", [sys.executable, "-m", "ding_lite"]),
    ):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (bin_ / name).chmod(0o755)
    (folder / "train.sbatch").write_text(script)
    shell = type_line(
        f"PATH={bin_}:$PATH bash {folder / 'train.sbatch'}",
        0,
        source=program.code,
        SLURM_JOB_ID=uuid.uuid4().hex,
        SLURM_NTASKS=f"{num_tasks}",
    )
    printed = shell.result()
    # The tasks may write a line and its end one after the other, and all into one pipe.
    assert sorted(re.findall(r"node \d: .*?node\.\d", printed)) == program.prints, printed
    assert not list(shell.folder.glob("*.key"))


# -- Kubernetes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """Return the manifests of the guide, by their kinds."""
    [text] = blocks_of("kubernetes.md", "yaml")
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_keep_to_the_schemas_of_kubernetes(manifests, version) -> None:
    assert manifests.keys() == {"Service", "Job"}
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_each_pod_finds_its_place_and_the_name_of_pod_0(manifests: dict[str, Any]) -> None:
    service, job = manifests["Service"], manifests["Job"]
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    count = spec["completions"]
    host = f"{name}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", count)
    given = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    for index in range(count):
        place = detect({**given, "JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{index}"})
        assert place is not None
        assert (place.node_id, place.num_nodes, place.host) == (index, count, host)
        assert not place.on_one_machine


def test_the_command_makes_a_key_of_the_secret_that_the_node_takes(manifests, tmp_path) -> None:
    pod = manifests["Job"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "key"]
    [key_file] = [e["value"] for e in container["env"] if e["name"] == "DING_LITE_KEY_FILE"]
    secret = make_key(tmp_path / "job.key")
    secret.chmod(0o440)  # as Kubernetes mounts it for a group
    own = tmp_path / "own.key"
    [script] = container["args"]
    script = script.replace(f"{mount['mountPath']}/job.key", str(secret))
    script = script.replace(key_file, str(own)).replace("exec python train.py", "exec true")
    subprocess.run([*container["command"], script], check=True)
    assert load_key(own).secret
