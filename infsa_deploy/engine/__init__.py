"""From an ONNX file to a TensorRT engine, with proof of its plugins and types; needs neither torch nor the ops."""
