"""Whether this copy's decisions are compiled to machine code (setup.py) or plain Python."""

from __future__ import annotations

from vertumnusd.control import fleet

COMPILED = not fleet.__file__.endswith(".py")
DECISIONS = "compiled" if COMPILED else "interpreted"
