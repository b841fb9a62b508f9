"""Servers of object stores for the long tests, on loopback: Azurite, fake-gcs-server, and HDFS in one JVM.

Each is fetched by its package manager when it is first used, into pytest's cache, and started once for a test session.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pyspark

from headrace.errors import StorageError
from headrace.storage.webhdfs import WebHdfsStore

AZURITE = "azurite@3.37.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
MINICLUSTER = "org.apache.hadoop:hadoop-client-minicluster"
JUNIT = (
    "org.junit.jupiter:junit-jupiter-api:5.13.4",
    "org.junit.platform:junit-platform-commons:1.13.4",
)  # it needs them
AZURE_ACCOUNT = "devstoreaccount1"  # Azurite's own, and its well-known key
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_SECONDS = 120


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def fetch(*command: str, cwd: Path) -> None:
    cwd.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def running(command: list[str], cwd: Path, healthy: Callable[[], bool]):
    """A server until the end of the block."""
    with (cwd / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not healthy():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} does not start: {(cwd / 'server.log').read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(30)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False
    return True


@contextmanager
def azure(cache: Path):
    """Azurite, with a container `race`: the options of its store, and its directory."""
    home = cache / "azurite"
    main = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not main.exists():
        fetch("npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts", AZURITE, cwd=home)
    port = free_port()
    flags = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    command = ["node", str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), *flags]
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    with running(command, home, lambda: answers(endpoint)):
        make_container(endpoint, "race")
        yield {"az": {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY, "endpoint_url": endpoint}}, "az://race"


def make_container(endpoint: str, name: str) -> None:
    """obstore makes no containers; this signs the one request by hand (Azure's Shared Key)."""
    stamp = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = f"x-ms-date:{stamp}\nx-ms-version:2023-11-03"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, headers, resource])
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256)).decode()
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT")
    request.add_header("x-ms-date", stamp)
    request.add_header("x-ms-version", "2023-11-03")
    request.add_header("Authorization", f"SharedKey {AZURE_ACCOUNT}:{signature}")
    urllib.request.urlopen(request, timeout=30).close()


@contextmanager
def gcs(cache: Path):
    """fake-gcs-server with a bucket `race`."""
    home = cache / "fake-gcs"
    program = home / "fake-gcs"
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).parent / "fake_gcs" / "main.go", home)
        if not (home / "go.mod").exists():
            fetch("go", "mod", "init", "fake-gcs", cwd=home)
        fetch("go", "get", FAKE_GCS, cwd=home)
        fetch("go", "build", "-o", str(program), ".", cwd=home)
    address = f"127.0.0.1:{free_port()}"
    with running([str(program), address], home, lambda: answers(f"http://{address}/storage/v1/b")):
        yield {"gs": {"endpoint_url": f"http://{address}", "bearer_token": "testing"}}, "gs://race"


@contextmanager
def hdfs(cache: Path):
    """A name node and a data node in one JVM, with the Hadoop that PySpark brings."""
    home, jars = cache / "hdfs", Path(pyspark.__path__[0]) / "jars"
    version = next(jars.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    ready = home / f"fetched-{version}"
    if not ready.exists():
        for artifact in (f"{MINICLUSTER}:{version}", *JUNIT):
            fetch("mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", "-DoutputDirectory=.", cwd=home)
        ready.touch()
    port = free_port()
    manager = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    address = f"webhdfs://127.0.0.1:{port}"
    options = {"user": getpass.getuser()}

    def writable() -> bool:
        with suppress(StorageError):
            WebHdfsStore("webhdfs", options).put(f"{address}/ready", b"")
            return True
        return False

    with tempfile.TemporaryDirectory(prefix="headrace-hdfs-", ignore_cleanup_errors=True) as data:
        flags = ["-Xmx512m", f"-Dtest.build.data={data}", "-cp", f"{home}/*:{jars}/*", manager]
        with running([java, *flags, "-nomr", "-format", "-nnhttpport", str(port)], home, writable):
            yield {"webhdfs": options}, address


SERVERS = {"az": azure, "gs": gcs, "webhdfs": hdfs}


class LossyProxy:
    """Passes connections on to a server on loopback, and drops replies that `lose` asks for when the server has sent them."""

    def __init__(self, port: int) -> None:
        self._passing = self._lost = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, count: int, after: int = 0) -> None:
        self._passing, self._lost = after, count

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if replies and self._passing:
                    self._passing -= 1
                elif replies and self._lost:
                    self._lost -= 1
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
