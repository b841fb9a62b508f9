"""Compiles `headrace.records.kernel` when a wheel is made or Headrace is installed for development.

Without a C compiler, or the headers of Python, the wheel has the plain form of the kernel only, which is slower and does the
same. HEADRACE_KERNEL=compiled makes that an error.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src/headrace/records/kernel")


class CompiledKernel(BuildHookInterface):
    """The hook that hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("HEADRACE_KERNEL") == "plain":
            return
        try:
            made = compile_kernel(Path(self.root) / PACKAGE)
        except Exception as error:  # the compiler, or what it needs, may be missing in any way
            if os.environ.get("HEADRACE_KERNEL") == "compiled":
                raise
            self.app.display_warning(f"headrace.records.kernel was not compiled, loops run in plain Python: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"{PACKAGE}/{made.name}")


def compile_kernel(package: Path) -> Path:
    """Compile `compiled.pyx` beside itself, in place of what was compiled for this interpreter before.

    A file that stays because this fails is not used: it knows the source that it was made of.
    """
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    source = package / "compiled.pyx"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    with tempfile.TemporaryDirectory() as directory:
        extension = Extension(
            "headrace.records.kernel.compiled",
            [str(source)],
            define_macros=[("HEADRACE_SOURCE", f'"{digest}"')],
            extra_compile_args=[] if sys.platform == "win32" else ["-O2", "-g0"],
        )
        extensions = cythonize([extension], build_dir=directory, quiet=True)
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = directory, directory
        command.ensure_finalized()
        command.run()
        (made,) = map(Path, command.get_outputs())
        return Path(shutil.move(made, package / made.name))
