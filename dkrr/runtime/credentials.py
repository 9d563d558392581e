"""Credentials of the cluster that dkrr starts: a key and a certificate of its own, for TLS in both directions.

A scheduler runs what its clients send it, so it may take nothing from the other users of the machine, who reach the
ports of 127.0.0.1 too. Every process of the cluster, and its client, show the one certificate and accept no other.
The key is made for the cluster and ends with it. It goes from process to process by pipes; OpenSSL reads it from files
only, so distributed writes it to a folder that only this user may enter, for the time of that call.
"""

import ssl
from datetime import UTC, datetime
from typing import Any

ROLES = ("client", "scheduler", "worker")
VALID_FROM, VALID_TO = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""No time limits (RFC 5280, 4.1.2.5): the key ends with the cluster, and a clock that is set back ends no fit."""


def new_credentials() -> dict[str, Any]:
    """Arguments of `distributed.security.Security` with a new key, as values that every process can read.

    `Security.temporary` is not used: its RSA key takes 30 ms or more, a key on a curve less than one.
    """
    # 0.05 s, only where a cluster is started, and while its process imports distributed.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dkrr")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    # The certificate is its own authority, and has what strict checks of OpenSSL ask of one.
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(VALID_TO)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM).decode()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    # Given one by one: what is left out would be taken from Dask's configuration, which may be for another cluster.
    return {
        "require_encryption": True,
        "tls_ca_file": shown,
        "tls_ciphers": None,
        "tls_min_version": ssl.TLSVersion.TLSv1_3,
        "tls_max_version": None,
        **{f"tls_{role}_cert": shown for role in ROLES},
        **{f"tls_{role}_key": secret for role in ROLES},
    }
