"""Vertumnus: LLM prefill serving with an adaptive context-parallel degree."""

__version__ = "0.1.0"
