"""`headrace ...` as a user types it: each command is a process with its exit code and what it prints."""

import os
import subprocess
import sys

from typer.testing import CliRunner

from headrace.cli.main import app

FILES_ONLY = (
    "inspect",
    "diff",
    "gc",
    "dispose",
)  # they use no other process: quicker in this process, and just the same


class Shell:
    """A user's shell in a directory; its drivers announce themselves below that, so only they are found."""

    def __init__(self, directory):
        self.directory = directory
        self.temporary = directory / "tmp"
        self.temporary.mkdir()

    def start(self, *words, output=subprocess.PIPE):
        """`headrace ...` in the background."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "HEADRACE_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", *map(str, words)],
            stdout=output,
            stderr=output,
            text=True,
            cwd=self.directory,
            env=environment | {"TMPDIR": str(self.temporary)},
        )

    def headrace(self, *words, code=0):
        """`headrace ...`: what it printed; it must end with this exit code."""
        if words[0] in FILES_ONLY:
            done = CliRunner().invoke(app, list(map(str, words)))
            ended, out, err = done.exit_code, done.stdout, done.stderr
        else:
            process = self.start(*words)
            out, err = process.communicate(timeout=240)
            ended = process.returncode
        assert ended == code, f"headrace {words} ended with {ended}\n{out}\n{err}"
        return out if code == 0 else out + err
