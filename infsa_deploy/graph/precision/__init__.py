"""Narrower types: float16 and bfloat16 by retyping, int8 by quantising."""
