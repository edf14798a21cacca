"""Keys and certificates of a deployment: a CA of its own, the server's certificate, the nodes' keys."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS, SERVER_DAYS = 3650, 825


def write_ca(folder: Path) -> None:
    """Write ``ca.key`` and ``ca.crt``."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedcue deployment CA")
    builder = _certificate(name, name, key.public_key(), CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    certificate = builder.sign(key, hashes.SHA384())
    write_secret(folder / "ca.key", _pem(key))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))


def write_server_certificate(ca: Path, folder: Path, host: str) -> None:
    """Write ``server.key`` and ``server.pem``, valid for ``host`` and for this machine itself."""
    issuer = x509.load_pem_x509_certificate((ca / "ca.crt").read_bytes())
    ca_key = load_pem_private_key((ca / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    builder = _certificate(_name("fedcue server"), issuer.subject, key.public_key(), SERVER_DAYS)
    names = [_alternative(name) for name in dict.fromkeys(("localhost", "127.0.0.1", host))]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = builder.add_extension(server, critical=False).sign(ca_key, hashes.SHA384())
    write_secret(folder / "server.key", _pem(key))
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))


def write_node_key(private: Path, public: Path) -> None:
    """Write a node's key pair as ssh-keygen would; the server is given the public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from the moment it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
