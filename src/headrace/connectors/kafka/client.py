"""Shared by the Kafka source and sink: librdkafka's options, its errors with advice, and a producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace.errors import ConfigError, HeadraceError, InvalidArgument, install_hint

__all__ = ["UNKNOWN_TOPIC", "KafkaClient", "RecordProducer", "is_one_of", "load", "reason_of"]

_SECRET = ("password", "secret", "token", "credential", ".pem", "oauthbearer.config")

UNKNOWN_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION", "_UNKNOWN_PARTITION")

_OWNED = {
    "bootstrap.servers": "brokers=...",
    "metadata.broker.list": "brokers=...",
    "group.id": "group_id=... of KafkaSource",
    "enable.auto.commit": "checkpoints: they hold the offsets",
    "enable.auto.offset.store": "checkpoints: they hold the offsets",
    "auto.offset.reset": "start=...",
    "enable.partition.eof": "stop=...",
    "transactional.id": "transactional_id_prefix=...",
    "transaction.timeout.ms": "transaction_timeout_ms=...",
    "enable.idempotence": "delivery=...",
    "delivery.report.only.error": "delivery=...",
}


def load() -> Any:
    """Return the module confluent_kafka, with its `admin`; ConfigError if it is not installed."""
    try:
        import confluent_kafka.admin
    except ImportError as error:
        raise ConfigError(
            "HR-1108", f"Kafka needs the package confluent-kafka ({error}): {install_hint('kafka')}"
        ) from None
    return confluent_kafka


def is_one_of(error: Any, *names: str) -> bool:
    """Return True if a KafkaError has one of these codes, named as in confluent_kafka.KafkaError."""
    codes = load().KafkaError
    return any(error.code() == getattr(codes, name) for name in names)


def reason_of(error: Exception) -> Any:
    """Return the KafkaError inside an exception; any other exception is raised again.

    A fatal error is raised in the middle of whatever librdkafka does then, also before callbacks that are due: Python then
    raises a SystemError for the callback, and its cause is the real error.
    """
    exception = load().KafkaException
    if isinstance(error, SystemError) and isinstance(error.__cause__, exception):
        error = error.__cause__
    if not isinstance(error, exception):
        raise error
    return error.args[0]


class KafkaClient:
    """The brokers and their options; makes clients, and keeps secrets out of every text.

    >>> KafkaClient("broker:9092", {"sasl.password": "hunter2"}).hide("no property hunter2")
    'no property ***'
    >>> KafkaClient("broker:9092", {"group.id": "mine"})
    Traceback (most recent call last):
    headrace.errors.InvalidArgument: [HR-4201] options: 'group.id' is set by group_id=... of KafkaSource
    """

    def __init__(self, brokers: str, options: Mapping[str, Any] | None) -> None:
        if not isinstance(brokers, str) or not brokers.strip():
            raise InvalidArgument(
                "HR-4201", f"brokers must be 'host:port' or several with commas between, got {brokers!r}"
            )
        for key in options or {}:
            if key in _OWNED:
                raise InvalidArgument("HR-4201", f"options: '{key}' is set by {_OWNED[key]}")
        self.brokers = brokers
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"KafkaClient({self.brokers!r})"

    def conf(self, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """The options of one client: our defaults, the options of the user, and those that the user cannot change."""
        return {**defaults, **self._options, **fixed, "bootstrap.servers": self.brokers}

    def option(self, key: str, default: Any) -> Any:
        """Return the user's value of a librdkafka option."""
        return self._options.get(key, default)

    def make(self, kind: str, conf: Mapping[str, Any]) -> Any:
        """Return a Consumer, Producer or AdminClient; an option that librdkafka refuses is named."""
        kafka = load()
        try:
            return getattr(kafka.admin if kind == "AdminClient" else kafka, kind)(dict(conf))
        except (kafka.KafkaException, TypeError, ValueError) as error:
            raise InvalidArgument(
                "HR-4202", f"Kafka: librdkafka refuses the options: {self.say(error)}; see options=..."
            ) from None

    def hide(self, text: str) -> str:
        """Return a text without the secrets among the options."""
        for key, value in self._options.items():
            if any(part in key for part in _SECRET) and isinstance(value, str) and value:
                text = text.replace(value, "***")
        return text

    def say(self, error: BaseException | Any) -> str:
        """Return an error of librdkafka in one line."""
        cause = error.args[0] if isinstance(error, BaseException) and error.args else error
        text = f"{cause.name()}: {cause.str()}" if hasattr(cause, "str") and hasattr(cause, "name") else str(cause)
        return self.hide(text)

    def refused(self, error: Any) -> HeadraceError | None:
        """Return the error for a KafkaError that a retry does not fix; None for any other."""
        if is_one_of(error, "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            return ConfigError(
                "HR-4203",
                f"Kafka: the brokers {self.brokers} refuse the login: {self.say(error)}; see sasl.mechanism, sasl.username, "
                "sasl.password and security.protocol in options=...",
            )
        if error.name().endswith("_AUTHORIZATION_FAILED"):
            return ConfigError(
                "HR-4203",
                f"Kafka: the login may not do this: {self.say(error)}; a source needs Read on its topics (and group_id), a sink "
                "Write on its topic, and for exactly-once Write on the transactional ids and Read on groups of the same names",
            )
        return None


class RecordProducer:
    """A producer that keeps the errors of its records (`failed`), and one that a retry does not fix (`refused`)."""

    def __init__(self, client: KafkaClient, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self.failed: list[Any] = []
        self.refused: HeadraceError | None = None
        self._client = client
        callbacks = {"delivery.report.only.error": True, "on_delivery": self._delivered, "error_cb": self._on_error}
        conf = client.conf(
            {"client.id": "headrace", "partitioner": "murmur2_random", **defaults}, {**fixed, **callbacks}
        )
        self.kafka = client.make("Producer", conf)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(error)

    def _on_error(self, error: Any) -> None:
        self.refused = self.refused or self._client.refused(error)

    def produce(
        self, topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], full: Callable[[], None]
    ) -> None:
        """Put records into the queue; while it is full, `full` is called again and again, and may raise."""
        producer = self.kafka
        for key, value in zip(keys or [None] * len(values), values, strict=True):
            while True:
                try:
                    producer.produce(topic, value=value, key=key)
                    break
                except BufferError:
                    full()
                    producer.poll(0.005)  # it returns late: records that arrive are no event
        producer.poll(0)

    def close(self, seconds: float) -> None:
        """Discard what has not arrived, and disconnect."""
        with suppress(load().KafkaException, RuntimeError, SystemError):  # from earlier errors
            self.kafka.purge()
            self.kafka.flush(seconds)
