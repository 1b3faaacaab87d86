"""Predict from an exported model: NumPy, Pillow and ONNX Runtime (or OpenVINO) are enough, torch is not needed."""

from tdumpra.runtime.predict import ExportedPredictor as ExportedPredictor
from tdumpra.runtime.prediction import Prediction as Prediction

__all__ = ["ExportedPredictor", "Prediction"]
