"""A training as a run of MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hmlet.callbacks.base import Callback, Start, numbers
from hmlet.errors import MissingExtra
from hmlet.runs.record import RECORD, RunRecord
from hmlet.training.trainer import EpochEvent


class MLflow(Callback):
    """Logs the recipe as parameters, each epoch as metrics, and the run's record and recipe as artifacts.

    Example: hmlet.fit("debian", "lightgcn", callbacks=[hmlet.callbacks.MLflow(experiment="debian")])

    `tracking_uri` is a server or a directory, by default MLflow's own choice. A run of MLflow that is active already is
    used, and stays active.
    """

    def __init__(
        self, experiment: str | None = None, *, name: str | None = None, tracking_uri: str | Path | None = None
    ) -> None:
        self.experiment, self.name = experiment, name
        self.tracking_uri = None if tracking_uri is None else str(tracking_uri)
        self._mlflow: Any = None
        self._own = False
        self._out = Path()

    def check(self) -> None:
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise MissingExtra("logging to MLflow", "mlflow", "mlflow") from error

    def begin(self, start: Start) -> None:
        import mlflow

        self._mlflow, self._out = mlflow, start.out
        if self.tracking_uri is not None:
            mlflow.set_tracking_uri(self.tracking_uri)
        self._own = mlflow.active_run() is None
        if self._own:
            if self.experiment is not None:
                mlflow.set_experiment(self.experiment)
            mlflow.start_run(run_name=self.name or start.recipe.model.name)
        mlflow.log_params(start.parameters())
        mlflow.set_tags({"hmlet.run": str(start.out), "hmlet.data": start.data.fingerprint})

    def epoch(self, event: EpochEvent) -> None:
        self._mlflow.log_metrics(numbers(event), step=event["epoch"])

    def end(self, record: RunRecord | None) -> None:
        if record is not None:
            self._mlflow.log_metric("best_epoch", record.best_epoch)
            for name in (RECORD, "config.toml"):
                self._mlflow.log_artifact(str(self._out / name))
        if self._own:
            self._mlflow.end_run("FAILED" if record is None else "FINISHED")
