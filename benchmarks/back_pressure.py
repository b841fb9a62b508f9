"""W10: how long a checkpoint takes behind a slow operator whose queues are full, one JSON line a mode.

The job is that of the acceptance line `back-pressure`: aligned barriers wait for the backlog, unaligned ones overtake
it, and with a timeout a checkpoint begins aligned and goes on unaligned.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from acceptance.checkpoints import MODES, duration_under_pressure


def main() -> None:
    for mode in ("aligned", "unaligned", "timeout"):
        seconds, unaligned = duration_under_pressure(MODES[mode])
        figures = {"peer": "headrace", "work": "W10", "mode": mode, "duration_s": round(seconds, 3)}
        print(json.dumps(figures | {"was_unaligned": unaligned}), flush=True)


if __name__ == "__main__":
    main()
