"""The reference models in PyTorch: attention, ViT, checkpoints, and a zoo with three trained digit readers."""
