"""Programs of `make test-long` can be built: a change of the API shows here, not weeks later."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamExecutionEnvironment

PROGRAMS = Path(__file__).parents[2] / "scripts" / "acceptance" / "programs"


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("story.py", ()),
        ("story.py", ("files", "files,python")),
        ("story.py", ("append", "datagen", "another-uid")),
        ("story.py", ("epochs",)),
        ("endless.py", ()),
        ("endless.py", ("fast",)),
    ],
)
def test_a_program_can_be_built(
    program: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[dict[str, Any]] = []
    monkeypatch.setattr(
        StreamExecutionEnvironment,
        "execute",
        lambda self, name: plans.append({**json.loads(self.get_execution_plan()), "name": name}),
    )
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path), *arguments])
    runpy.run_path(str(PROGRAMS / program), run_name="__main__")
    (plan,) = plans
    assert plan["name"] == program.removesuffix(".py")
    assert len(plan["vertices"]) > 1
