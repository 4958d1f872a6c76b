"""What pyproject.toml cannot say: VERTUMNUSD_COMPILE=1 has the decisions compiled to machine code.

mypyc, which comes with mypy, makes extension modules of typed Python sources; Python prefers them
to the sources that lie beside them. They decide the same, in less than half of the time. Building
takes a C compiler and mypy, running neither.
"""

import os
from glob import glob

from setuptools import setup
from setuptools.command.build_ext import build_ext

COMPILED = (
    "vertumnusd/control/*.py",
    "vertumnusd/layout.py",
    # what a simulation spends its time in, besides the decisions
    *(f"vertumnusd/simulate/{name}.py" for name in ("virtual", "worker", "ranks", "transfers")),
    *(f"vertumnusd/simulate/{name}.py" for name in ("pools", "names", "light", "routers", "bound")),
)

# mypyc makes classes of its own kind; here are others: class keywords of msgspec, an Enum that has
# an __init__.
INTERPRETED = {
    "vertumnusd/control/coefficients.py",
    "vertumnusd/control/settings.py",
    "vertumnusd/control/stage.py",
}


class BuildApart(build_ext):
    """Never beside the sources of a checkout: an edit there would change nothing any more."""

    def run(self) -> None:
        if self.inplace or self.editable_mode:
            raise SystemExit("VERTUMNUSD_COMPILE: an editable installation cannot be compiled")
        super().run()


def compiled() -> dict[str, object]:
    """What ``setup`` has to know besides."""
    from mypyc.build import mypycify

    modules = {path for pattern in COMPILED for path in glob(pattern)}
    assert modules >= INTERPRETED
    extensions = mypycify(sorted(modules - INTERPRETED), group_name="vertumnusd")
    return {"ext_modules": extensions, "cmdclass": {"build_ext": BuildApart}}


setup(**(compiled() if os.environ.get("VERTUMNUSD_COMPILE") == "1" else {}))
