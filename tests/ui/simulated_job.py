"""A job that is only simulated, as the documents of REST show it: any number of operators, subtasks and checkpoints.

The dashboard's tests look at it where a real job would be too small, too slow or too kind: names and records are hostile.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]

HOSTILE = "<img src=x onerror=\"window.hostile='name'\"><script>window.hostile='script'</script>"
MEBIBYTE = 1 << 20
JOB = "d0a1f3c2b4e59687a9b8c7d6e5f40312"
EXECUTION_STATES = [
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "INITIALIZING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
]
ALIGNMENT = ("buffered", "processed", "persisted", "duration")
# Flink's names for how records are spread over the subtasks of the next vertex.
STRATEGIES = ("HASH", "FORWARD", "REBALANCE")
NAMES = (
    "Source: orders",
    "Source: payments",
    "parse -> assign timestamps",
    f"hostile {HOSTILE}",
    "join orders and payments",
    "customer totals",
    "10 s windows of shops",
    "enrich -> filter -> project the columns that the next stages read",
    "detect fraud",
    "Sink: alerts",
)
INPUTS = {2: (0,), 3: (1,), 4: (2, 3), 5: (4,), 6: (4,), 7: (5, 6, 2), 8: (7,), 9: (8,)}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def vertex_id(index: int) -> str:
    return f"{index:032x}"


def statistics(values: list[int]) -> Document:
    ordered = sorted(values) or [0]
    at = lambda share: float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])  # noqa: E731
    summary = {"min": ordered[0], "max": ordered[-1], "avg": sum(ordered) // len(ordered)}
    return summary | {"p50": at(0.5), "p90": at(0.9), "p95": at(0.95), "p99": at(0.99), "p999": at(0.999)}


@dataclass
class SimulatedJob:
    """Counters grow with the clock; checkpoints are made by `checkpoint`; nothing else changes by itself."""

    operators: int = 10
    parallelism: int = 4
    checkpoints: int = 13
    name: str = "orders and payments"
    jid: str = JOB
    max_parallelism: int = 128
    state: str = "RUNNING"
    history: list[Document] = field(default_factory=list)
    requests: list[tuple[str, str, Document]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = now_ms() - 1000 * 30 * (self.checkpoints + 4)
        self.ended = -1
        self.restarts = 2
        self.failing: str | None = None  # why the next operation fails
        self.full_asked = False
        for number in range(1, self.checkpoints + 1):
            self.checkpoint(at=now_ms() - 30_000 * (self.checkpoints - number + 1))

    # ---- the job -----------------------------------------------------------------------------------------------------

    def overview(self) -> Document:
        tasks = self.operators * self.parallelism
        return {
            "jid": self.jid,
            "name": self.name,
            "state": self.state,
            "start-time": self.started,
            "end-time": self.ended,
            "duration": (now_ms() if self.ended < 0 else self.ended) - self.started,
            "last-modification": self.started,
            "jobType": "STREAMING",
            "pending-operators": 0,
            "restarts": self.restarts,
            "tasks": {"total": tasks, **{name.lower(): number for name, number in self.counts(tasks).items()}},
        }

    def counts(self, tasks: int) -> Document:
        """How many are in which state: all in the same one."""
        state = self.state if self.state in EXECUTION_STATES else "CANCELED"
        return {name: tasks if name == state else 0 for name in EXECUTION_STATES}

    def details(self) -> Document:
        times = {
            name: value
            for name, value in self.overview().items()
            if name not in {"last-modification", "tasks", "jobType"}
        }
        return {
            **times,
            "job-type": "STREAMING",
            "timestamps": {"RUNNING": self.started},
            "status-counts": self.counts(self.operators),
            "failures": [],
            "isStoppable": True,
            "maxParallelism": self.max_parallelism,
            "now": now_ms(),
            "vertices": self.vertices(),
            "plan": self.plan(),
            "spark-ui": "http://localhost:4040",
        }

    def vertex_name(self, index: int) -> str:
        return NAMES[index] if index < len(NAMES) else f"branch {index}: normalise -> aggregate"

    def inputs(self, index: int) -> tuple[int, ...]:
        if index < len(NAMES):
            return INPUTS.get(index, ())
        return (index - 5,) if index % 3 else (index - 5, index - 8)

    def plan(self) -> Document:
        nodes = [
            {
                "id": vertex_id(index),
                "parallelism": self.parallelism,
                "operator": "",
                "operator_strategy": "",
                "description": self.vertex_name(index),
                "inputs": [
                    {
                        "num": number,
                        "id": vertex_id(source),
                        "ship_strategy": STRATEGIES[index % 3],
                        "exchange": "pipelined",
                    }
                    for number, source in enumerate(self.inputs(index))
                ],
                "optimizer_properties": {},
                "operators": [
                    {
                        "id": vertex_id(100 * index + number),
                        "name": name,
                        "uid": None,
                        "call-site": f"orders.py:{40 + index}",
                    }
                    for number, name in enumerate(self.vertex_name(index).split(" -> "))
                ],
            }
            for index in range(self.operators)
        ]
        return {"jid": self.jid, "name": self.name, "type": "STREAMING", "nodes": nodes}

    def load(self, index: int) -> tuple[float, float]:
        """Which shares of its time a vertex is busy and back-pressured: the eighth is slow, so those before it wait."""
        if index == 7:
            return 0.97, 0.0
        if index in {4, 5, 6}:
            return 0.3, 0.55 + 0.03 * index
        return 0.1 + (index * 37 % 40) / 100, 0.15 if index < 4 else 0.0

    def metrics(self, index: int, subtask: int | None = None) -> Document:
        seconds = (now_ms() - self.started) / 1000
        subtasks = range(self.parallelism) if subtask is None else [subtask]
        # One subtask of the sixth operator has three times the records of the others.
        weight = sum(3 if index == 5 and one == 1 else 1 for one in subtasks) / self.parallelism
        busy, pressured = self.load(index)
        spent = 1000 * seconds * len(subtasks)
        rate = 40_000 / (1 + index % 4) * weight
        written = 0 if self.vertex_name(index).startswith("Sink") else rate * 0.8
        clock = int(now_ms() - 1500 - 400 * index)
        wave = 1 + 0.2 * math.sin(seconds + index)
        return {
            "read-records": int(rate * seconds) if self.inputs(index) else 0,
            "write-records": int(written * seconds),
            "read-bytes": int(rate * seconds * 90) if self.inputs(index) else 0,
            "write-bytes": int(written * seconds * 90),
            "accumulated-busy-time": int(spent * busy),
            "accumulated-backpressured-time": int(spent * pressured),
            "accumulated-idle-time": int(spent * (1 - busy - pressured)),
            "read-records-per-second": rate * wave if self.inputs(index) else 0.0,
            "write-records-per-second": written * wave,
            "busy-ratio": busy,
            "busy-ratio-max": min(1.0, busy * 1.2),
            "backpressured-ratio": pressured,
            "backpressured-ratio-max": pressured,
            "idle-ratio": 1 - busy - pressured,
            "read-bytes-per-second": rate * 90,
            "write-bytes-per-second": written * 90,
            **{f"{name}-complete": True for name in ("read-records", "write-records", "read-bytes", "write-bytes")},
            "corrupt-records": 0,
            "late-records": 0,
            "queued-bytes": int(8 * MEBIBYTE * busy),
            "spilled-bytes": 0,
            "current-watermark": clock,
            "watermark-lag": now_ms() - clock,
        }

    def vertices(self) -> list[Document]:
        return [
            {
                "id": vertex_id(index),
                "name": self.vertex_name(index),
                "parallelism": self.parallelism,
                "maxParallelism": self.max_parallelism,
                "status": self.state,
                **self.span(),
                "slotSharingGroupId": "0" * 32,
                "tasks": self.counts(self.parallelism),
                "metrics": self.metrics(index),
                "spark-stage": f"http://localhost:4040/stages/stage/?id={index}&attempt=0",
            }
            for index in range(self.operators)
        ]

    def span(self) -> Document:
        return {"start-time": self.started, "end-time": self.ended, "duration": now_ms() - self.started}

    def vertex(self, index: int) -> Document:
        subtasks = [
            {
                "subtask": subtask,
                "status": self.state,
                "attempt": self.restarts,
                "endpoint": f"worker-{subtask % 4}.example.org",
                **self.span(),
                "taskmanager-id": f"worker-{subtask % 4}",
                "status-duration": {},
                "metrics": self.metrics(index, subtask),
            }
            for subtask in range(self.parallelism)
        ]
        more = {"parallelism": self.parallelism, "maxParallelism": self.max_parallelism}
        more |= {"aggregated": {"metrics": {}, "status-duration": {}}}
        return {"id": vertex_id(index), "name": self.vertex_name(index), "now": now_ms(), **more, "subtasks": subtasks}

    def sample(self, index: int, records: int) -> Document:
        texts = [
            f"Order(id={number}, shop='Łódź {number % 7}', note='{HOSTILE if number == 1 else 'ok'}')"
            for number in range(records)
        ]
        return {"records": texts, "missing_subtasks": 0}

    def flamegraph(self, index: int) -> Document:
        def frame(name: str, value: int, *children: Document) -> Document:
            return {"name": name, "value": value, "children": list(children)}

        enrich = frame(
            "orders.py:88 enrich", 520, frame("json/decoder.py:355 loads", 300), frame("orders.py:95 look_up", 180)
        )
        process = frame("keyed.py:120 process", 700, enrich, frame(f"orders.py:101 {HOSTILE}", 90))
        data = frame("root", 1000, process, frame("inputs.py:64 wait", 300))
        return {"endTimestamp": now_ms(), "data": data, "missingSubtasks": 0}

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self, at: int | None = None, full: bool = False, savepoint: bool = False) -> Document:
        """Adds one to the history, newest first; every thirteenth fails."""
        number = self.history[0]["id"] + 1 if self.history else 1
        chance = random.Random(number)
        trigger = now_ms() - 900 if at is None else at
        duration = 400 + chance.randrange(500) + (2500 if number % 9 == 0 else 0)
        full = full or number % 20 == 1
        chain = 1 if full or not self.history else self.history[0]["chain_length"] + 1
        size = (400 + 3 * number) * MEBIBYTE
        subtasks = self.operators * self.parallelism
        failed = number % 13 == 0 and not savepoint
        entry = {
            "className": "failed" if failed else "completed",
            "id": number,
            "status": "FAILED" if failed else "COMPLETED",
            "is_savepoint": savepoint,
            "savepointFormat": "CANONICAL" if savepoint else None,
            "checkpoint_type": "SAVEPOINT"
            if savepoint
            else "UNALIGNED_CHECKPOINT"
            if number % 5 == 0
            else "CHECKPOINT",
            "trigger_timestamp": trigger,
            "latest_ack_timestamp": trigger + duration,
            "end_to_end_duration": duration,
            "checkpointed_size": size if full else size // 12,
            "state_size": size,
            "alignment_buffered": 0,
            "processed_data": 70_000 * (number % 4),
            "persisted_data": 1_200_000 if number % 5 == 0 else 0,
            "num_subtasks": subtasks,
            "num_acknowledged_subtasks": subtasks - 1 if failed else subtasks,
            "full": full,
            "full_reason": "the chain had 20 checkpoints, the limit is 20" if full else None,
            "chain_length": chain,
            "shared_files": 29 + 11 * chain,
            "shared_files_by_operator": {vertex_id(index): 5 + index for index in range(4, self.operators)},
            "objects_written": 12 + chance.randrange(5),
            "unaligned": number % 5 == 0,
            "trigger": "periodic",
            "tasks": {},
        }
        if failed:
            message = f"subtask 1 of customer totals declined: no space left on {HOSTILE}"
            entry |= {"failure_timestamp": trigger + duration, "failure_message": message}
        else:
            entry |= {
                "external_path": f"s3://checkpoints/{self.jid}/chk-{number}",
                "discarded": number < self.checkpoints - 2,
            }
        self.history.insert(0, entry)
        del self.history[max(self.checkpoints, 13) :]
        return entry

    def checkpoint_statistics(self) -> Document:
        done = [one for one in self.history if one["status"] == "COMPLETED"]
        latest = lambda test: next((one for one in self.history if test(one)), None)  # noqa: E731
        restored = {
            "id": 7,
            "restore_timestamp": self.started + 60_000,
            "is_savepoint": False,
            "external_path": "s3://checkpoints/chk-7",
            "state_size": 420 * MEBIBYTE,
        }
        fields = [
            "checkpointed_size",
            "state_size",
            "end_to_end_duration",
            "alignment_buffered",
            "processed_data",
            "persisted_data",
            "objects_written",
        ]
        return {
            "counts": {
                "restored": 1,
                "total": self.history[0]["id"] if self.history else 0,
                "in_progress": 0,
                "completed": len(done),
                "failed": len(self.history) - len(done),
            },
            "summary": {name: statistics([one[name] for one in done]) for name in fields},
            "latest": {
                "completed": latest(lambda one: one["status"] == "COMPLETED" and not one["is_savepoint"]),
                "savepoint": latest(lambda one: one["is_savepoint"]),
                "failed": latest(lambda one: one["status"] == "FAILED"),
                "restored": restored,
            },
            "history": self.history,
        }

    def find_checkpoint(self, number: int) -> Document | None:
        return next((one for one in self.history if one["id"] == number), None)

    def checkpoint_details(self, entry: Document) -> Document:
        share = lambda name, index: entry[name] * (index + 1) // (self.operators * (self.operators + 1) // 2)  # noqa: E731
        tasks = {
            vertex_id(index): {
                "id": vertex_id(index),
                "status": entry["status"],
                "latest_ack_timestamp": entry["latest_ack_timestamp"] - 10 * index,
                "checkpointed_size": share("checkpointed_size", index),
                "state_size": share("state_size", index),
                "end_to_end_duration": max(0, entry["end_to_end_duration"] - 10 * index),
                "alignment_buffered": 0,
                "processed_data": share("processed_data", index),
                "persisted_data": share("persisted_data", index),
                "num_subtasks": self.parallelism,
                "num_acknowledged_subtasks": self.parallelism,
                "objects_written": share("objects_written", index),
                "unaligned": entry["unaligned"],
            }
            for index in range(self.operators)
        }
        return {**entry, "tasks": tasks}

    def timeline(self, entry: Document) -> Document:
        trigger, duration = entry["trigger_timestamp"], entry["end_to_end_duration"]
        subtasks = []
        for index in range(self.operators):
            for subtask in range(self.parallelism):
                chance = random.Random(entry["id"] * 10_000 + index * 100 + subtask)
                slow = index == 7 and subtask == self.parallelism // 2
                # The slow one sees its last barrier late; all others are done after at most 85 % of the time.
                first = trigger + int(duration * (0.02 + 0.03 * min(index, 9) + 0.04 * chance.random()))
                last = trigger + int(duration * 0.8) if slow else first + int(duration * 0.1 * chance.random())
                sync = last + int(duration * 0.03)
                end = trigger + duration if slow else sync + int(duration * 0.15 * chance.random())
                missing = entry["status"] == "FAILED" and slow
                subtasks.append(
                    {
                        "vertex": vertex_id(index),
                        "vertex-name": self.vertex_name(index),
                        "index": subtask,
                        "first_barrier": first,
                        "last_barrier": None if missing else last,
                        "sync_start": None if missing else last,
                        "sync_end": None if missing else sync,
                        "async_end": None if missing else end,
                        "ack_timestamp": None if missing else end,
                        "unaligned": entry["checkpoint_type"] == "UNALIGNED_CHECKPOINT",
                        "state_size": entry["state_size"] // (self.operators * self.parallelism),
                        "checkpointed_size": entry["checkpointed_size"] // (self.operators * self.parallelism),
                    }
                )
        completed = None if entry["status"] == "FAILED" else trigger + duration
        return {"id": entry["id"], "trigger_timestamp": trigger, "completed_timestamp": completed, "subtasks": subtasks}

    def checkpoint_subtasks(self, entry: Document, index: int) -> Document:
        rows = [one for one in self.timeline(entry)["subtasks"] if one["vertex"] == vertex_id(index)]
        subtasks: list[Document] = []
        for row in rows:
            if row["ack_timestamp"] is None:
                subtasks.append({"index": row["index"], "status": "pending_or_failed"})
                continue
            subtasks.append(
                {
                    "index": row["index"],
                    "status": "completed",
                    "ack_timestamp": row["ack_timestamp"],
                    "end_to_end_duration": row["ack_timestamp"] - entry["trigger_timestamp"],
                    "checkpointed_size": row["checkpointed_size"],
                    "state_size": row["state_size"],
                    "checkpoint": {
                        "sync": row["sync_end"] - row["sync_start"],
                        "async": row["async_end"] - row["sync_end"],
                    },
                    "alignment": {
                        "buffered": 0,
                        "processed": 900,
                        "persisted": 0,
                        "duration": row["last_barrier"] - row["first_barrier"],
                    },
                    "start_delay": row["first_barrier"] - entry["trigger_timestamp"],
                    "unaligned_checkpoint": row["unaligned"],
                    "aborted": False,
                }
            )
        known = [one for one in subtasks if "checkpoint" in one]
        return {
            **self.checkpoint_details(entry)["tasks"][vertex_id(index)],
            "summary": {
                "end_to_end_duration": statistics([one["end_to_end_duration"] for one in known]),
                "start_delay": statistics([one["start_delay"] for one in known]),
                **{name: statistics([one[name] for one in known]) for name in ("checkpointed_size", "state_size")},
                "alignment": {name: statistics([one["alignment"][name] for one in known]) for name in ALIGNMENT},
                "checkpoint_duration": {
                    part: statistics([one["checkpoint"][part] for one in known]) for part in ("sync", "async")
                },
            },
            "subtasks": subtasks,
        }

    def checkpoint_config(self) -> Document:
        return {
            "mode": "exactly_once",
            "interval": 30_000,
            "timeout": 600_000,
            "min_pause": 500,
            "max_concurrent": 1,
            "externalization": {"enabled": True, "delete_on_cancellation": False},
            "state_backend": "rocksdb",
            "checkpoint_storage": "filesystem",
            "checkpoint_directory": "s3://checkpoints",
            "incremental": True,
            "unaligned_checkpoints": True,
            "tolerable_failed_checkpoints": 3,
            "aligned_checkpoint_timeout": 30_000,
            "checkpoints_after_tasks_finish": True,
            "state_changelog_enabled": False,
            "changelog_periodic_materialization_interval": 0,
            "changelog_storage": "",
            "full_checkpoint": {**self.limits(), "cooldown_ms": 3_600_000, "retry_ms": 60_000, "cron": "0 3 * * *"},
        }

    # ---- state -------------------------------------------------------------------------------------------------------

    def limits(self) -> Document:
        return {"max_size": 64 << 30, "max_files": 250, "max_files_per_operator": 100, "max_chain_length": 20}

    def state_files(self) -> Document:
        points = [
            {
                "checkpoint": one["id"],
                "timestamp": one["latest_ack_timestamp"],
                "oldest_file_age": 30_000 * one["chain_length"],
                **{
                    name: one[name]
                    for name in (
                        "state_size",
                        "checkpointed_size",
                        "shared_files",
                        "chain_length",
                        "objects_written",
                        "full",
                        "full_reason",
                    )
                },
            }
            for one in reversed(self.history)
            if one["status"] == "COMPLETED"
        ]
        operators = [
            {
                "id": vertex_id(index),
                "name": self.vertex_name(index),
                "shared_files": 5 + index,
                "state_size": index * 9 * MEBIBYTE,
            }
            for index in range(4, self.operators)
        ]
        return {"limits": self.limits(), "points": points, "operators": operators}

    def key_groups(self) -> Document:
        operators = []
        for index in range(4, self.operators):
            chance = random.Random(index)
            subtasks = []
            for subtask in range(self.parallelism):
                first = -(-subtask * self.max_parallelism // self.parallelism)
                last = -(-(subtask + 1) * self.max_parallelism // self.parallelism) - 1
                keys = (9000 if index == 5 and subtask == 1 else 2000) + chance.randrange(600)
                load = {"keys": keys if index % 2 else None, "bytes": keys * 350, "records": keys * 40}
                subtasks.append({"index": subtask, "first": first, "last": last, **load})
            operators.append({"id": vertex_id(index), "name": self.vertex_name(index), "subtasks": subtasks})
        return {"max_parallelism": self.max_parallelism, "operators": operators}

    def states(self) -> Document:
        rows = [
            (5, "customer-totals", "total", "value", "STRING", "LONG"),
            (6, None, "window-contents", "list", "STRING", "PICKLE"),
            (8, "fraud", "<b>seen</b>/paths & more", "map", "LONG", "DOUBLE"),
        ]
        return {
            "checkpoint": self.history[0]["id"] if self.history else None,
            "states": [
                {
                    "operator": vertex_id(index),
                    "operator-name": self.vertex_name(index),
                    "uid": uid,
                    "state": state,
                    "kind": kind,
                    "key_type": key_type,
                    "value_type": value_type,
                }
                for index, uid, state, kind, key_type, value_type in rows
                if index < self.operators
            ],
        }

    def entries(self, state: str, key: Any, limit: int, after: int) -> Document:
        checkpoint = self.history[0]["id"]

        def value(number):
            return HOSTILE if number == 2 else number * 17 if state == "total" else {"n": number, "of": [1, None]}

        if key is not None:
            number = int(str(key).removeprefix("customer-")) if str(key).removeprefix("customer-").isdigit() else -1
            found = (
                [{"key": key, "namespace": None, "value": value(number), "truncated": False}]
                if 0 <= number < 130
                else []
            )
            return {"checkpoint": checkpoint, "entries": found, "next": None}
        end = min(after + limit, 130)
        entries = [
            {"key": f"customer-{n}", "namespace": None, "value": value(n), "truncated": n == 3}
            for n in range(after, end)
        ]
        return {"checkpoint": checkpoint, "entries": entries, "next": str(end) if end < 130 else None}

    # ---- failures ----------------------------------------------------------------------------------------------------

    def exceptions(self) -> Document:
        trace = (
            "Traceback (most recent call last):\n"
            '  File "/opt/venv/lib/python3.11/site-packages/headrace/worker/operators/keyed.py", line 120, in process\n'
            '  File "/home/anna/jobs/orders.py", line 88, in enrich\n'
            "    return rates[order.currency]\n"
            f"KeyError: '{HOSTILE}'"
        )
        entries = [
            {
                "exceptionName": "UserFunctionFailed",
                "stacktrace": f"enrich failed at orders.py:88 for the key 'PLN': KeyError: '{HOSTILE}'\n\n{trace}",
                "timestamp": self.started + 80_000 * (number + 1),
                "taskName": f"enrich (subtask {number})",
                "endpoint": "worker-1.example.org",
                "taskManagerId": None,
                "failureLabels": {"location": "/home/anna/jobs/orders.py:88"} if number else {},
                "concurrentExceptions": [],
            }
            for number in (1, 0)
        ]
        return {"exceptionHistory": {"entries": entries, "truncated": False}}

    def story(self) -> Document:
        begin = self.started
        cause = {
            "message": f"KeyError: '{HOSTILE}'",
            "location": "/home/anna/jobs/orders.py:88",
            "operator": "enrich",
            "subtask": 1,
            "error": "KeyError",
            "traceback": None,
        }
        attempts = [
            self._attempt(0, begin, 2100, 60_000, cause, None, {"schedule": 2100}),
            self._attempt(
                1,
                begin + 62_300,
                2800,
                95_000,
                cause,
                3,
                {"cancel": 300, "wait": 2000, "schedule": 1900, "restore": 600},
            ),
            self._attempt(
                2, begin + 160_000, 3000, None, None, 7, {"cancel": 250, "wait": 4000, "schedule": 1800, "restore": 900}
            ),
        ]
        return {"attempts": attempts, "dropped": 0}

    @staticmethod
    def _attempt(
        number: int,
        started: int,
        starting: int,
        ran: int | None,
        cause: Document | None,
        restored: int | None,
        phases: Document,
    ) -> Document:
        ended = None if ran is None else started + starting + ran
        return {
            "number": number,
            "started": started,
            "running": started + starting,
            "ended": ended,
            "outcome": "FAILED" if cause else "OPEN",
            "cause": cause,
            "restored_checkpoint": restored,
            "phases": {"cancel": 0, "wait": 0, "schedule": 0, "restore": 0} | phases,
        }

    def config(self) -> Document:
        user = {"execution.checkpointing.interval": "30 s", "state.backend.type": "rocksdb", "job.note": HOSTILE}
        execution = {"restart-strategy": "fixed-delay", "job-parallelism": self.parallelism, "object-reuse-mode": False}
        return {"jid": self.jid, "name": self.name, "execution-config": {**execution, "user-config": user}}
