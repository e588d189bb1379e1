"""Send a run's metrics to Weights & Biases or MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Self

from ding_lite.middleware.checks import Period
from ding_lite.middleware.report.reporter import Reporter, import_logger
from ding_lite.runtime.middleware import Middleware


def wandb(
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    **settings: Any,  # noqa: ANN401 - of wandb.init
) -> Middleware:
    """Log the newest metrics to Weights & Biases over env steps.

    A resumed run keeps its id. If the program has already called `wandb.init`, that run is used
    and left open.

    Context:
        reads: env_step, metrics, total_step, train_iter

    Args:
        every: Steps of the pipeline from one point to the next; 100 by default.
        every_env_steps: Env steps of the ctx from one point to the next, instead of `every`.
        **settings: Arguments of `wandb.init`: `project`, `name`, `config`, `mode="offline"`.

    Raises:
        ConfigError: A setting is out of range.
        MissingExtraError: When the run begins: wandb is not installed.
    """
    return _Wandb(Period(every, every_env_steps, usual=100), settings)


class _Wandb(Reporter):
    __name__ = "wandb"
    only_fresh = True

    def __init__(self, period: Period, settings: Mapping[str, Any]) -> None:
        super().__init__(period)
        self._settings = dict(settings)
        self._run: Any = None
        self._is_own = False

    def __enter__(self) -> Self:
        package = import_logger("wandb", "wandb")
        self._is_own = package.run is None
        self._run = package.init(**self._settings) if self._is_own else package.run
        self._settings |= {"id": self._run.id, "resume": "allow"}
        self._run.define_metric("*", step_metric="env_step")
        return self

    def write(self, metrics: dict[str, float], env_step: int) -> None:
        self._run.log({**metrics, "env_step": env_step})

    def close(self, *, failed: bool) -> None:
        if self._is_own:
            self._run.finish(exit_code=int(failed))

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "id": self._settings.get("id")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if state["id"] is not None:
            self._settings |= {"id": state["id"], "resume": "allow"}


def mlflow(
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    experiment: str = "Default",
    name: str | None = None,
    params: Mapping[str, object] | None = None,
    uri: str | None = None,
) -> Middleware:
    """Log the newest metrics to MLflow over env steps.

    A resumed run keeps its id. Characters that MLflow does not allow in names, such as the
    parentheses of `x(y)`, are replaced by underscores.

    Context:
        reads: env_step, metrics, total_step, train_iter

    Args:
        every: Steps of the pipeline from one point to the next; 100 by default.
        every_env_steps: Env steps of the ctx from one point to the next, instead of `every`.
        experiment: The name of the experiment, which is made if it does not exist.
        name: The name of the run; MLflow generates one by default.
        params: Parameters of the run, such as its settings.
        uri: The tracking server, or a file such as `sqlite:///runs.db`; MLflow's default if None.

    Raises:
        ConfigError: A setting is out of range.
        MissingExtraError: When the run begins: mlflow is not installed.
    """
    period = Period(every, every_env_steps, usual=100)
    return _MLflow(period, experiment, name, params or {}, uri)


class _MLflow(Reporter):
    __name__ = "mlflow"
    only_fresh = True

    def __init__(
        self,
        period: Period,
        experiment: str,
        name: str | None,
        params: Mapping[str, object],
        uri: str | None,
    ) -> None:
        super().__init__(period)
        self._experiment, self._name, self._params, self._uri = experiment, name, params, uri
        self._client: Any = None
        self._run_id: str | None = None

    def __enter__(self) -> Self:
        package = import_logger("mlflow", "mlflow")
        self._client = client = package.MlflowClient(tracking_uri=self._uri)
        if self._run_id is None:
            found = client.get_experiment_by_name(self._experiment)
            home = client.create_experiment(self._experiment) if found is None else None
            run = client.create_run(home or found.experiment_id, run_name=self._name)
            self._run_id = run.info.run_id
            for key, value in self._params.items():
                client.log_param(self._run_id, _name(key), value)
        else:
            client.set_terminated(self._run_id, "RUNNING")
        return self

    def write(self, metrics: dict[str, float], env_step: int) -> None:
        metric = import_logger("mlflow.entities", "mlflow").Metric
        now = int(1000 * time.time())
        points = [metric(_name(k), value, now, env_step) for k, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=points)

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "id": self._run_id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._run_id = state["id"]


def _name(name: str) -> str:
    """Replace the characters that MLflow does not allow in names."""
    return re.sub(r"[^A-Za-z0-9_.:/ -]", "_", name)
