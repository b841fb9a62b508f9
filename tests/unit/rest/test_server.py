"""The REST server of a driver: who may ask it, and how the command line finds it."""

import datetime as dt
import ipaddress
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import typer.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace import config
from headrace.cli.main import app as command_line
from headrace.config import Configuration
from headrace.errors import ConfigError
from headrace.rest import discovery
from headrace.rest.client import RestClient, RestError, find_jobs
from headrace.rest.server import _start

ANY_PORT = {"rest.port": 0}


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """No other server of this user is found, and no token comes from the environment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(discovery.TOKEN_VARIABLE, raising=False)


def start():
    return _start(Configuration(ANY_PORT))


def secret_file(tmp_path, text, mode=0o600):
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def command(*args):
    return typer.testing.CliRunner().invoke(command_line, args)


def status(url, token=None):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/jobs", headers=headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_on_loopback_too_a_token_is_needed_which_the_command_line_of_the_user_finds():
    url = start()
    assert status(url) == 401
    assert find_jobs(None) == []
    printed = command("token", "--url", url)
    assert printed.exit_code == 0
    assert status(url, printed.stdout.strip()) == 200
    assert "no job runs" in command("list").stdout


def test_each_process_has_a_token_of_its_own():
    tokens = set()
    for _ in range(2):
        start()
        tokens |= {server.token for server in discovery.known_servers()}
    assert len(tokens) == 2


def test_the_token_is_in_a_file_that_only_its_user_can_read():
    start()
    (path,) = discovery.directory().glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_one_option_turns_it_off():
    url = _start(Configuration(ANY_PORT | {config.REST_AUTHENTICATION.key: False}))
    assert status(url) == 200
    refused = command("token", "--url", url)
    assert refused.exit_code == 1
    assert "no token is known" in refused.stderr


def test_servers_in_a_directory_of_another_user_are_not_asked(monkeypatch):
    """They would be told the token."""
    user = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: user)
    discovery.directory().mkdir()  # it has the name of that user's, but not the owner
    (discovery.directory() / "1.json").write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:1"}))
    assert discovery.known_servers() == []


@pytest.mark.parametrize("way", ["file", "environment", "program"])
def test_a_token_that_the_user_gives(tmp_path, monkeypatch, way):
    options = dict(ANY_PORT)
    if way == "file":
        options[config.REST_TOKEN_FILE.key] = secret_file(tmp_path, "s3cret\n")
    elif way == "environment":
        monkeypatch.setenv(discovery.TOKEN_VARIABLE, "s3cret")
    else:
        options[config.REST_TOKEN.key] = "s3cret"
    url = _start(Configuration(options))
    assert (status(url), status(url, "wrong"), status(url, "s3cret")) == (401, 401, 200)


def test_the_command_line_takes_the_token_of_another_machine_from_the_environment(monkeypatch):
    url = _start(Configuration(ANY_PORT | {config.REST_TOKEN.key: "s3cret"}))
    for path in discovery.directory().glob("*.json"):
        path.unlink()
    with pytest.raises(RestError, match="headrace token"):
        find_jobs(url)
    monkeypatch.setenv(discovery.TOKEN_VARIABLE, "s3cret")
    assert find_jobs(url) == []


def test_a_driver_that_refuses_the_token_is_not_left_out_in_silence():
    url = start()
    (path,) = discovery.directory().glob("*.json")
    path.write_text(json.dumps({"pid": os.getpid(), "url": url, "token": "stale"}))
    shown = command("list")
    assert shown.exit_code == 1
    assert "give the token" in shown.stderr


def test_a_token_is_refused_as_an_argument():
    refused = command("run", __file__, "-D", "headrace.rest.token=s3cret")
    assert refused.exit_code == 1
    assert "every user of the machine sees the arguments" in refused.stderr
    assert "headrace.rest.token-file" in refused.stderr
    assert "s3cret" not in refused.output


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("s3cret", 0o640, "open to other users.*chmod 600"),
        ("", 0o600, "is empty"),
        ("two words", 0o600, "printable ASCII"),
        ("s3cret\nX-Evil: 1", 0o600, "printable ASCII"),
        ("gehéim", 0o600, "cannot read"),
    ],
)
def test_a_token_file_that_is_of_no_use(tmp_path, text, mode, message):
    with pytest.raises(ConfigError, match=message):
        _start(Configuration(ANY_PORT | {config.REST_TOKEN_FILE.key: secret_file(tmp_path, text, mode)}))


def test_a_token_file_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match=r"headrace\.rest\.token-file: cannot read '.*none'"):
        _start(Configuration(ANY_PORT | {config.REST_TOKEN_FILE.key: str(tmp_path / "none")}))


def test_two_tokens(tmp_path):
    with pytest.raises(ConfigError, match="leave one out"):
        _start(Configuration({config.REST_TOKEN.key: "a", config.REST_TOKEN_FILE.key: secret_file(tmp_path, "b")}))


def test_beyond_loopback_no_token_is_made_since_others_could_not_know_it():
    with pytest.raises(
        ConfigError, match=r"rest\.address is 0\.0\.0\.0.*headrace\.rest\.token-file.*HEADRACE_REST_TOKEN"
    ):
        _start(Configuration({"rest.address": "0.0.0.0"}))


# --- addresses --------------------------------------------------------------------------------------------------------


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("address", ["192.0.2.1", "::", "2001:db8::1", "driver.example"])
def test_every_address_beyond_loopback_needs_a_token(address):
    with pytest.raises(ConfigError, match=r"which others can reach: give a secret"):
        _start(Configuration(ANY_PORT | {"rest.address": address}))


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
        ("0:0:0:0:0:0:0:1", "[::1]"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
    ],
)
def test_the_command_line_finds_a_server_on_any_address(address, host):
    if ":" in address and not has_ipv6():
        pytest.skip("the machine has no IPv6")
    url = _start(Configuration(ANY_PORT | {"rest.address": address, config.REST_TOKEN.key: "s3cret"}))
    assert url.rpartition(":")[0] == f"http://{host}"
    assert find_jobs(None) == []
    assert status(url, "s3cret") == 200


def test_on_loopback_only_names_of_loopback_are_answered():
    """A web page must not reach the server under a name that its owner lets point to 127.0.0.1."""
    url = _start(Configuration(ANY_PORT | {config.REST_AUTHENTICATION.key: False}))
    answers = {}
    for host in ("localhost", "127.0.0.1", "[::1]", "evil.example"):
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/jobs", headers={"Host": host})) as answer:
                answers[host] = answer.status
        except urllib.error.HTTPError as error:
            answers[host] = error.code
    assert answers == {"localhost": 200, "127.0.0.1": 200, "[::1]": 200, "evil.example": 400}


@pytest.mark.parametrize("address", ["203.0.113.77", "2001:db8::77", "no-such-host.invalid", "a..b"])
def test_an_address_that_is_not_of_this_machine_is_refused(address):
    with pytest.raises(ConfigError, match=rf"rest\.address is '{re.escape(address)}'.*cannot listen on"):
        _start(Configuration(ANY_PORT | {"rest.address": address, config.REST_TOKEN.key: "s3cret"}))


def test_without_a_port_the_reason_is_told(caplog):
    with socket.create_server(("127.0.0.1", 65535)):
        assert _start(Configuration({"rest.port": 65535})) is None
    assert "from port 65535 on: [Errno" in caplog.text


# --- TLS --------------------------------------------------------------------------------------------------------------


def write_key(path, key, encryption=None):
    encryption = encryption or serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, pkcs8, encryption))
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def key():
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def tls(tmp_path, key):
    """A certificate signed by itself, for 127.0.0.1, and its key."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace test")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    certificate = tmp_path / "rest.crt"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return {config.REST_CERTIFICATE.key: str(certificate), config.REST_KEY.key: write_key(tmp_path / "rest.key", key)}


def test_tls(tls):
    url = _start(Configuration(ANY_PORT | tls))
    assert url.startswith("https://127.0.0.1:")
    assert find_jobs(None) == []
    with pytest.raises(RestError, match="CERTIFICATE_VERIFY_FAILED"):
        RestClient(url).send("GET", "/jobs")
    with pytest.raises(RestError, match="cannot reach"):
        RestClient(url.replace("https", "http")).send("GET", "/jobs")


def test_a_client_elsewhere_trusts_what_ssl_cert_file_names(tls):
    url = _start(Configuration(ANY_PORT | tls | {config.REST_TOKEN.key: "s3cret"}))
    environment = os.environ | {
        "SSL_CERT_FILE": tls[config.REST_CERTIFICATE.key],
        discovery.TOKEN_VARIABLE: "s3cret",
        "TMPDIR": "/var/tmp",
    }
    program = "from headrace.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "list", "--url", url],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no job runs" in done.stdout


def test_tls_needs_both_files(tls):
    del tls[config.REST_KEY.key]
    with pytest.raises(ConfigError, match=r"needs both headrace\.rest\.tls\.certificate-file and"):
        _start(Configuration(ANY_PORT | tls))


def test_a_key_that_others_can_read(tls):
    Path(tls[config.REST_KEY.key]).chmod(0o644)
    with pytest.raises(ConfigError, match=r"key-file: .* open to other users"):
        _start(Configuration(ANY_PORT | tls))


def test_a_key_of_another_certificate(tls, tmp_path):
    other = write_key(tmp_path / "other.key", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(ConfigError, match="no certificate and key in PEM form that belong together"):
        _start(Configuration(ANY_PORT | tls | {config.REST_KEY.key: other}))


def test_an_encrypted_key_is_refused_and_not_asked_for_on_the_terminal(tls, key, tmp_path):
    encrypted = write_key(tmp_path / "encrypted.key", key, serialization.BestAvailableEncryption(b"x"))
    with pytest.raises(ConfigError, match="the key is encrypted"):
        _start(Configuration(ANY_PORT | tls | {config.REST_KEY.key: encrypted}))
