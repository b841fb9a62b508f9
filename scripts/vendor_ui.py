"""Fetches the JavaScript libraries of the dashboard from npm, by name and version, into src/headrace/rest/ui/vendor/.

Only who changes a version runs it: the files are in the repository, and installing Headrace fetches nothing.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "src" / "headrace" / "rest" / "ui" / "vendor"
# package, version, licence, {file of the package: file here}
PACKAGES = [
    (
        "preact",
        "11.2.0",
        "MIT",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js", "LICENSE": "LICENSE-preact"},
    ),
    ("htm", "3.1.1", "Apache-2.0", {"dist/htm.module.js": "htm.js", "LICENSE": "LICENSE-htm"}),
]
INTRODUCTION = """\
# Libraries of others

Fetched by `scripts/vendor_ui.py`, and changed in two ways: imports name files (a browser finds no packages), and the
comment that names a source map is left out. A test compares the checksums.

| file | package | licence | sha256 |
|---|---|---|---|
"""


def changed(name: str, text: str) -> str:
    """The file as it is kept here."""
    if not name.endswith(".js"):
        return text
    lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")]
    return "\n".join(lines).replace('from"preact"', 'from"./preact.js"') + "\n"


def main() -> int:
    """Fetch all packages and write the table of their files."""
    table = INTRODUCTION
    for package, version, licence, files in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            command = ["npm", "pack", "--silent", f"{package}@{version}", "--pack-destination", folder]
            subprocess.run(command, check=True)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as content:
                for path, name in files.items():
                    source = content.extractfile(f"package/{path}")
                    if source is None:
                        raise FileNotFoundError(f"{package} {version} has no file {path}")
                    text = changed(name, source.read().decode())
                    (VENDOR / name).write_text(text, encoding="utf-8")
                    checksum = hashlib.sha256(text.encode()).hexdigest()
                    table += f"| {name} | {package} {version} | {licence} | {checksum} |\n"
    (VENDOR / "README.md").write_text(table, encoding="utf-8")
    print(f"wrote {VENDOR}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
