"""What the tests call the model that knows the right answer."""

from collections.abc import Callable, Sequence

Oracle = Callable[[Sequence[int], int], list[int]]  # (prompt, answer tokens) → answer
