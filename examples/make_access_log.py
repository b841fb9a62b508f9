"""Writes web access logs in the combined format of Apache and nginx: a file every so often, as a log shipper would.

    python examples/make_access_log.py /tmp/logs --files 20 --lines 5000

Hosts and paths are drawn from Zipf's law, sessions come in bursts, a few lines are damaged, as in real logs. The same seed
gives the same files. A file is written elsewhere and moved in, so that it is complete when it appears.
"""

import argparse
import datetime as dt
import random
import time
from collections.abc import Iterator
from pathlib import Path

AGENTS = [
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "Mozilla/5.0 (compatible; ExampleBot/2.1; +http://example.com/bot)",
    "curl/8.9.1",
]
PATHS = ["/", "/login", "/search", "/cart", "/checkout", *(f"/items/{n}" for n in range(1, 200)), "/robots.txt"]
STATUS = [200] * 88 + [304] * 5 + [404] * 4 + [301] * 2 + [500]


def lines(count: int, seed: int, damaged: float = 0.001) -> Iterator[str]:
    """Lines of a log."""
    chance = random.Random(seed)
    hosts = [f"203.0.113.{chance.randrange(1, 255)}" for _ in range(20)] + [
        f"198.51.{chance.randrange(256)}.{chance.randrange(1, 255)}" for _ in range(500)
    ]
    weights = [1 / rank for rank in range(1, len(hosts) + 1)]
    path_weights = [1 / rank for rank in range(1, len(PATHS) + 1)]
    now = dt.datetime(2026, 11, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=seed)
    while count > 0:
        host, agent = chance.choices(hosts, weights)[0], chance.choice(AGENTS)
        for path in chance.choices(PATHS, path_weights, k=min(count, chance.randrange(1, 12))):  # a session
            now += dt.timedelta(milliseconds=chance.expovariate(1 / 20))
            status, size = chance.choice(STATUS), int(chance.lognormvariate(8, 1.5))
            line = (
                f'{host} - - [{now:%d/%b/%Y:%H:%M:%S %z}] "GET {path} HTTP/1.1" {status} {size if status != 304 else 0} '
                f'"https://www.example.com/" "{agent}"'
            )
            yield line[: len(line) // 2] if chance.random() < damaged else line
            count -= 1


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("directory")
    p.add_argument("--files", type=int, default=10)
    p.add_argument("--lines", type=int, default=5000, help="lines of a file")
    p.add_argument("--every", type=float, default=0.0, help="seconds between two files")
    a = p.parse_args()
    directory = Path(a.directory)
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(a.files):
        hidden = directory / f".access-{number:04}.log"
        hidden.write_text("\n".join(lines(a.lines, seed=number)) + "\n")
        hidden.rename(directory / f"access-{number:04}.log")
        time.sleep(a.every)


if __name__ == "__main__":
    main()
