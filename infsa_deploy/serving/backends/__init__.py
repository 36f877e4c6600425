"""The `model.py` files of Triton's python backend; they are copied into repositories as they stand."""
