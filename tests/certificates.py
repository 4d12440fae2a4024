"""Certificates and their keys."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """The files of a certificate for that name, and of its key."""
    certificate, key = _make(name)
    return _write(folder, "", [certificate], key)


def make_chains(folder: Path, *names: str) -> list[tuple[Path, Path]]:
    """As above for each name, all of one authority, whose certificate follows in the file as servers want it."""
    authority = _make("authority", is_authority=True)
    made = []
    for name in names:
        certificate, key = _make(name, authority)
        made.append(_write(folder, f"{name}-", [certificate, authority[0]], key))
    return made


def _make(name: str, issuer: tuple[Any, Any] | None = None, *, is_authority: bool = False) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key, subject = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
    )
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    )
    if is_authority:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key if issuer is None else issuer[1], hashes.SHA256()), key


def _write(folder: Path, prefix: str, certificates: list[Any], key: Any) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    paths = folder / f"{prefix}cert.pem", folder / f"{prefix}key.pem"
    paths[0].write_bytes(b"".join(each.public_bytes(pem) for each in certificates))
    paths[1].write_bytes(private)
    return paths
