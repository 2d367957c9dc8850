"""ONNX models, from file to answer."""
