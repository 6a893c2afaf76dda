"""Keys and certificates, made here: a small CA, server certificates under it, and the key pair of a site."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from fedreel.errors import FedreelError, RunError

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:  # comes with the extra
    raise RunError("Flower is not installed", hint="pip install 'fedreel[flower]' (Python 3.11 or later)") from error

CA_DAYS, SERVER_DAYS = 3650, 730


def make_ca(folder: Path, name: str) -> None:
    """Write `ca.crt` and `ca.key`."""
    key = ec.generate_private_key(ec.SECP384R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _certificate(who, who, key.public_key(), CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write_private(folder / "ca.key", _pem(key))
    (folder / "ca.crt").write_bytes(builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def make_server_certificate(folder: Path, hosts: Sequence[str], days: float = SERVER_DAYS) -> None:
    """Write `server.crt` and `server.key` for these host names and addresses, signed by the CA in the same folder."""
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP384R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = _certificate(who, ca.subject, key.public_key(), days)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())  # type: ignore[arg-type]
    builder = builder.add_extension(issuer, critical=False)
    signed = builder.sign(ca_key, hashes.SHA384())  # type: ignore[arg-type]
    _write_private(folder / "server.key", _pem(key))
    (folder / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def check_hosts(hosts: Sequence[str]) -> list[str]:
    """Raise unless a certificate can be made for these names and addresses."""
    for host in hosts:
        try:
            if not host or host != host.strip() or "/" in host or (":" in host.replace("::", "") and "." in host):
                raise ValueError("not a name or an address")
            _host(host)
        except ValueError as error:
            raise FedreelError(
                f"'{host}' cannot be a host in a certificate",
                found=str(error),
                expected="a DNS name in ASCII (xn--... for others) or an IP address, without port",
            ) from error
    return list(hosts)


def check_server_certificate(certificate: Path, key: Path, ca: Path) -> list[str]:
    """Raise unless the three fit together and hold today; returns the hosts that the certificate is for."""
    try:
        held = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        private = serialization.load_pem_private_key(key.read_bytes(), None)
        issuers = x509.load_pem_x509_certificates(ca.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise FedreelError("a certificate or key cannot be read", found=str(error), expected="PEM files") from error
    if private.public_key() != held.public_key():
        raise FedreelError("key and certificate do not belong together", where=f"{certificate}, {key}")
    if held.not_valid_after_utc < datetime.datetime.now(datetime.timezone.utc):
        raise FedreelError(
            "the server's certificate has expired",
            where=str(certificate),
            found=f"valid until {held.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            hint="make a new one: fedreel server init --renew",
        )
    if not any(_signed_by(held, issuer) for issuer in issuers) and held not in issuers:
        chain = x509.load_pem_x509_certificates(certificate.read_bytes())[1:]
        if not any(_signed_by(c, issuer) for c in chain for issuer in issuers):
            raise FedreelError("the certificate is not signed by this CA", where=f"{certificate}, {ca}")
    try:
        names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise FedreelError("the certificate names no hosts", where=str(certificate), expected="SANs") from error
    return [str(name.value) for name in names]


def make_site_keys(folder: Path, name: str) -> None:
    """Write `site.key` and `site.pub`, with the site's name as the comment of the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    _write_private(folder / "site.key", key.private_bytes(*formats))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "site.pub").write_text(f"{public.decode()} {name}\n")


def read_site_key(path: Path) -> tuple[str, str]:
    """The key and the site's name of a `site.pub`."""
    try:
        text = path.read_text().strip()
        kind, body, *comment = text.split(None, 2)
        key = serialization.load_ssh_public_key(f"{kind} {body}".encode())
    except (OSError, ValueError, UnsupportedAlgorithm, NotImplementedError) as error:
        raise FedreelError(
            "this is not a site's public key", where=str(path), expected="a site.pub", found=str(error)[:100]
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedreelError(
            "the key is of another kind", where=str(path), expected="an ECDSA key (fedreel site init makes one)"
        )
    return f"{kind} {body}", check_name(comment[0] if comment else path.stem, str(path))


def check_name(name: str, where: str) -> str:
    """A site's name: short and plain, because it becomes a file's name."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (0 < len(name) <= 60 and plain.isalnum() and name.isascii() and not name.startswith(".")):
        raise FedreelError(
            f"'{name}' cannot be a site's name", where=where, expected="letters, digits, '-', '_' and '.', at most 60"
        )
    return name


def _certificate(
    who: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    start = now - datetime.timedelta(days=1)  # clocks differ
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(min(start, now + datetime.timedelta(days=days - 1))).not_valid_after(
        now + datetime.timedelta(days=days)
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
        return True
    except Exception:  # of several kinds, all meaning no
        return False


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(path: Path, content: bytes) -> None:
    """Only its owner may read it, from the first moment on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
