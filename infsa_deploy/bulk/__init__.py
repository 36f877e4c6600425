"""Many images through one model: cut into parts that any worker may predict, in any order and more than once."""
