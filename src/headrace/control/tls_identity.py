"""The key and the certificate that encrypt the control plane of one job."""

from __future__ import annotations

import ssl
import tempfile

TLS_NAME = "headrace-driver"


class JobIdentity:
    """A key and a certificate for one job."""

    def __init__(self) -> None:
        from datetime import UTC, datetime, timedelta

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, TLS_NAME)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=3650))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        self._private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile() as file:  # Python reads keys from files only; other users cannot read it
            file.write(self._private + self.certificate)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def client_context(certificate: bytes) -> ssl.SSLContext:
    """Return the context for a connection to the driver that has this certificate, and to no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=certificate.decode())
    return context
