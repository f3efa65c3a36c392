"""Training callbacks: plain functions for every epoch, or callbacks that also see its start and its end.

Example: hmlet.fit("debian", "lightgcn", callbacks=[hmlet.callbacks.MLflow(experiment="debian")])

MLflow, WandB and TensorBoard need the package that they write to: `pip install 'hmlet[mlflow]'`, and so on.
"""

from hmlet.callbacks.base import Callback, Start, telling
from hmlet.callbacks.mlflow import MLflow
from hmlet.callbacks.tensorboard import TensorBoard
from hmlet.callbacks.wandb import WandB
from hmlet.training.trainer import EpochEvent, StopTraining

__all__ = ["Callback", "EpochEvent", "MLflow", "Start", "StopTraining", "TensorBoard", "WandB", "telling"]
