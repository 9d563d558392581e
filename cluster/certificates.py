"""Make the certificates of a Dask cluster: an authority, and a key and a certificate for each role.

Scheduler, workers and clients accept connections only with a certificate of this authority. Its own key is not kept, so
that no other certificate can be made. `source FOLDER/environment.sh` sets what Dask reads.
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROLES = ("scheduler", "worker", "client")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--days", type=click.IntRange(1), default=365, show_default=True, help="How long they are valid.")
def main(folder: Path, days: int) -> None:
    """Make the certificates of a Dask cluster in a new FOLDER that only you may enter."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be made: {error.strerror}; expected a new folder") from error
    authority = ec.generate_private_key(ec.SECP256R1())
    _write(folder / "ca.pem", _certificate("authority", authority, authority, days))
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        _write(folder / f"{role}.pem", _certificate(role, key, authority, days))
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _write(folder / f"{role}.key", secret)
    _write(folder / "environment.sh", _environment().encode())
    click.echo(f"certificates for {days} days in {folder}; source {folder}/environment.sh")


def _certificate(role: str, key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, days: int) -> bytes:
    is_authority, now = role == "authority", datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    of_authority = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"dkrr {role}")]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dkrr authority")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(of_authority), critical=False)
        .sign(authority, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _environment() -> str:
    """Shell commands that set Dask's configuration; the folder is that of the file, wherever it was copied to."""
    tls = "DASK_DISTRIBUTED__COMM__TLS"
    lines = [
        'dkrr_tls=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        "export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True",
        f'export {tls}__CA_FILE="$dkrr_tls/ca.pem"',
    ]
    for role in ROLES:
        lines += [
            f'export {tls}__{role.upper()}__CERT="$dkrr_tls/{role}.pem"',
            f'export {tls}__{role.upper()}__KEY="$dkrr_tls/{role}.key"',
        ]
    # The pages of the HTTP servers know no certificates.
    lines += [f'export DASK_DISTRIBUTED__{role}__HTTP__ROUTES="[]"' for role in ("SCHEDULER", "WORKER")]
    return "\n".join([*lines, "unset dkrr_tls", ""])


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    sys.exit(main())
