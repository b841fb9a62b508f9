"""Objects on S3, Google Cloud Storage, Azure Blob Storage and in memory, through obstore.

A put with the mode "create" is one request with a condition (`If-None-Match: *`, on Google `x-goog-if-generation-match: 0`),
which the service applies atomically. obstore repeats a request whose reply is lost, and the repetition finds the object that
the first one made: a token in the object's own metadata tells a writer whether the existing object is its own.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import fsspec.config
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from headrace.errors import StorageError
from headrace.storage.objects import (
    ObjectInfo,
    ObjectStore,
    ObjectWriter,
    OutcomeUnknown,
    SpoolingWriter,
    reported,
    storage_error,
    without_secrets,
)

_CONFLICT_ATTEMPTS: Final = 8
_CONFLICT_PAUSE_SECONDS: Final = 0.05
_TOKEN: Final = "headracewriter"  # noqa: S105  the name of a header (Azure takes letters only), no secret
_PART_BYTES: Final = 8 << 20
_MOST_PARTS: Final = 9_000  # S3 and Google take 10,000
_PARTS_AT_A_TIME: Final = 4  # they are held in memory
_CREDENTIALS_LIFE: Final = timedelta(minutes=5)
_RETRIES: Final = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_CLIENT: Final = {"allow_http": True, "timeout": "60s"}  # http only if the endpoint says so
_MEMORY: Final = MemoryStore()  # memory:// is one per process, gone with it: for tests and demonstrations

# The options that s3fs, gcsfs and adlfs take, by obstore's names; any other name is obstore's own.
_S3: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "region_name": "region",
    "anon": "skip_signature",
}
_GS: Final = {"token": "service_account", "endpoint_url": "base_url"}
_AZ: Final = {"sas_token": "sas_key", "endpoint_url": "endpoint", "anon": "skip_signature"}
_SCHEMES: Final[dict[str, tuple[Any, dict[str, str], tuple[str, ...]]]] = {
    "s3": (S3Store, _S3, ("s3",)),
    "gs": (GCSStore, _GS, ("gcs", "gs")),
    **dict.fromkeys(("az", "abfs", "abfss"), (AzureStore, _AZ, ("abfss", "abfs", "az"))),
}


class CloudStore(ObjectStore):
    """The objects of one scheme; a bucket (a container on Azure) is opened when it is first used.

    >>> store = CloudStore("memory", {})
    >>> store.create_if_absent("memory://cloud/a", b"1"), store.create_if_absent("memory://cloud/a", b"2")
    (True, False)
    """

    def __init__(self, scheme: str, options: Mapping[str, Any]) -> None:
        self._scheme, self._options = scheme, options
        self._buckets: dict[str, Any] = {}

    def _at(self, path: str) -> tuple[Any, str]:
        """Obstore's store of a path, and the key there."""
        bucket, _, key = path.partition("://")[2].partition("/")
        if self._scheme == "memory":
            return _MEMORY, f"{bucket}/{key}".rstrip("/")
        store = self._buckets.get(bucket)
        if store is None:
            with reported("open", path):
                store = self._buckets.setdefault(bucket, _open_bucket(self._scheme, bucket, self._options))
        return store, key.rstrip("/")

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        store, key = self._at(path)
        part: Any = {"offset": offset} if length is None else (offset, offset + length)
        with reported("read", path):
            try:
                answer = obstore.get(store, key, options={"range": part} if offset or length is not None else None)
                return bytes(answer.bytes())
            except FileNotFoundError:
                raise
            except (BaseError, ValueError):
                # A range that starts at or behind the end is refused, even of an empty object; a file gives nothing.
                if offset < self.size(path):
                    raise
                return b""

    def size(self, path: str) -> int:
        store, key = self._at(path)
        with reported("look at", path):
            return obstore.head(store, key)["size"]

    def list_objects(self, directory: str) -> list[ObjectInfo]:
        store, key = self._at(directory)
        with reported("list", directory):
            found = [info for page in obstore.list(store, key) for info in page]
            names = [info["path"].removeprefix(f"{key}/") for info in found]
            return sorted(ObjectInfo(f"{directory}/{n}", info["size"]) for n, info in zip(names, found, strict=True))

    def list_names(self, directory: str) -> list[str]:
        store, key = self._at(directory)
        with reported("list", directory):
            found = obstore.list_with_delimiter(store, key)
            paths = [*found["common_prefixes"], *(info["path"] for info in found["objects"])]
            return sorted(path.rpartition("/")[2] for path in paths)

    def put(self, path: str, data: bytes) -> None:
        self._upload(data, path)

    def _upload(self, data: bytes | Path, path: str) -> None:
        store, key = self._at(path)
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        with reported("write", path):
            part = max(_PART_BYTES, size // _MOST_PARTS + 1)
            obstore.put(store, key, data, chunk_size=part, max_concurrency=_PARTS_AT_A_TIME)

    def writer(self, directory: str, label: str = "") -> ObjectWriter:
        return SpoolingWriter(directory, self._upload)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        store, key = self._at(path)
        token = secrets.token_hex(16)
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                obstore.put(store, key, data, mode="create", attributes={_TOKEN: token})
                return True
            except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError) as error:
                raise storage_error("create", path, error) from error
            except Exception as error:
                with suppress(Exception):
                    return bool(obstore.get(store, key).attributes.get(_TOKEN) == token)
                if not isinstance(error, AlreadyExistsError):
                    raise OutcomeUnknown(
                        f"cannot tell whether '{path}' was created: {type(error).__name__}: {without_secrets(error)}; it may "
                        "still appear"
                    ) from error
                # Another conditional put is under way, or the object is gone again.
                time.sleep(_CONFLICT_PAUSE_SECONDS * (attempt + 1))
        raise OutcomeUnknown(
            f"cannot tell who created '{path}': {_CONFLICT_ATTEMPTS} attempts met other writers; try again"
        )

    def delete(self, path: str) -> None:
        store, key = self._at(path)
        with reported("delete", path), suppress(FileNotFoundError):
            obstore.delete(store, key)

    def make_directory(self, directory: str) -> bool:
        return not self.list_names(directory)

    def remove_directory(self, directory: str) -> None:
        """There are no directories."""


def _open_bucket(scheme: str, bucket: str, options: Mapping[str, Any]) -> Any:
    kind, names, known_as = _SCHEMES[scheme]
    given: dict[str, Any] = {
        key: value for name in known_as for key, value in fsspec.config.conf.get(name, {}).items()
    } | dict(options)
    given |= given.pop("client_kwargs", {})
    profile = given.pop("profile", None)
    config: dict[str, Any] = {names.get(key, key): value for key, value in given.items()}
    more: dict[str, Any] = {}
    if scheme == "s3" and not (
        config.keys() & {"access_key_id", "skip_signature"} or "AWS_ACCESS_KEY_ID" in os.environ
    ):
        more["credential_provider"] = _aws_credentials(profile, config)
    container, _, account = bucket.partition("@")
    if account:
        config["account_name"] = account.partition(".")[0]
    try:
        return kind(container, config=config, client_options=_CLIENT, retry_config=_RETRIES, **more)
    except BaseError as error:
        raise StorageError(
            "HR-3103",
            f"cannot open '{scheme}://{bucket}' with the options {', '.join(sorted(config)) or '(none)'}: "
            f"{without_secrets(error)}; docs/storage.md names the options",
        ) from None


def _aws_credentials(profile: str | None, config: dict[str, Any]) -> Callable[[], Any] | None:
    """Return the credentials of AWS's files, sign-in and roles, which obstore does not know; None without botocore."""
    try:
        from botocore.session import Session
    except ImportError:
        return None
    session = Session(profile=profile)
    credentials = session.get_credentials()
    if credentials is None:
        return None
    if region := session.get_config_variable("region"):
        config.setdefault("region", region)

    def current() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LIFE,
        }

    return current
