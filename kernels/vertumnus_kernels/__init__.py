"""Compute kernels of Vertumnus, each with a twin in plain torch that the tests hold it against."""
