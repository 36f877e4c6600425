"""ONNX graphs by themselves: passes, precision and cost. Nothing here needs PyTorch."""
