"""Loggers that hand metrics to Weights & Biases and MLflow, with the real packages, offline."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import MissingExtraError
from ding_lite.runtime import Context, Middleware
from tests.middleware.running import run_steps


def train(
    make: Callable[[], Middleware], *, steps: int, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run steps of 8 env steps; an evaluation in the second."""

    def learn(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 8
        ctx.keep("env_step")
        ctx.metrics["loss"] = 1.0 / (1 + ctx.total_step)
        ctx.metrics["seconds/learn"] = 3.0
        if ctx.total_step == 1:
            ctx.metrics["eval_return"] = 20.0
            ctx.metrics["share(left)"] = 0.5

    return run_steps(learn, make(), steps=steps, state=state).state_dict()


@pytest.mark.optional
@pytest.mark.filterwarnings("ignore")  # of mlflow and what it imports
def test_mlflow_gets_each_new_value_at_its_env_step_and_goes_on_with_its_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would stay open
    uri = tmp_path.as_uri()

    def make() -> Middleware:
        return mw.mlflow(every=2, experiment="ours", name="one", params={"lr": 1e-3}, uri=uri)

    state = train(make, steps=4)
    train(make, steps=2, state=state)
    client = mlflow.MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.001"})
    reported = {
        name: [
            (point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)
        ]
        for name in run.data.metrics
    }
    assert reported == {
        "loss": [(16, 1 / 2), (32, 1 / 4), (48, 1 / 6)],
        "eval_return": [(16, 20.0)],
        "share_left_": [(16, 0.5)],
    }


@pytest.mark.optional
@pytest.mark.filterwarnings("ignore")  # of wandb and what it imports
def test_wandb_gets_each_new_value_with_its_env_step(tmp_path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    rows: list[dict[str, Any]] = []
    log = wandb.sdk.wandb_run.Run.log

    def recorded(run: Any, data: dict[str, Any], *args: Any, **more: Any) -> Any:
        rows.append(data)
        return log(run, data, *args, **more)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", recorded)

    def make() -> Middleware:
        return mw.wandb(every=2, mode="offline", project="ours", dir=str(tmp_path))

    state = train(make, steps=4)
    assert wandb.run is None  # it has ended what it has begun
    wandb.teardown()  # the process that wandb shares between runs
    assert rows == [
        {"env_step": 16, "loss": 1 / 2, "eval_return": 20.0, "share(left)": 0.5},
        {"env_step": 32, "loss": 1 / 4},
    ]
    [first] = tmp_path.glob("wandb/offline-run-*")
    assert first.name.endswith(state["middleware"]["wandb"]["id"])
    assert [path.suffix for path in first.glob("run-*")] == [".wandb"]


@pytest.mark.parametrize("make", [mw.wandb, mw.mlflow])
def test_a_package_that_is_missing_is_named_with_its_extra(make, monkeypatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[(wandb|mlflow)\]'"):
        train(make, steps=1)
