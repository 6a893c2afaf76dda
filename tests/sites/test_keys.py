"""Certificates and keys: those that fit are taken, and each that does not is refused with its reason."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from fedreel.errors import FedreelError

pytest.importorskip("cryptography", reason="comes with the extra `flower`")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedreel.sites.keys import (
    check_name,
    check_server_certificate,
    make_ca,
    make_server_certificate,
    make_site_keys,
    read_site_key,
)

HOSTS = ["server.example.org", "localhost", "127.0.0.1", "::1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA with a server certificate. Tests that change it take a copy."""
    made = tmp_path_factory.mktemp("server")
    make_ca(made, "a CA")
    make_server_certificate(made, HOSTS)
    return made


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "own"))


def check(folder: Path) -> list[str]:
    return check_server_certificate(folder / "server.crt", folder / "server.key", folder / "ca.crt")


def test_a_certificate_made_here_is_good_for_its_hosts(folder: Path) -> None:
    assert check(folder) == HOSTS


def test_private_keys_are_for_their_owner_alone(folder: Path, tmp_path: Path) -> None:
    make_site_keys(tmp_path, "north")
    for key in (folder / "ca.key", folder / "server.key", tmp_path / "site.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_private_key_is_made_anew_where_a_readable_file_was(own: Path) -> None:
    before = (own / "server.key").read_bytes()
    (own / "server.key").chmod(0o644)
    make_server_certificate(own, HOSTS)
    assert stat.S_IMODE((own / "server.key").stat().st_mode) == 0o600
    assert (own / "server.key").read_bytes() != before
    assert check(own) == HOSTS


def test_an_expired_certificate_is_refused_with_a_way_out(own: Path) -> None:
    make_server_certificate(own, HOSTS, days=-1)
    with pytest.raises(FedreelError, match="has expired") as caught:
        check(own)
    assert "--renew" in caught.value.hint


def test_a_certificate_of_another_ca_is_refused(own: Path) -> None:
    make_ca(own, "a CA")  # the same name, another key
    with pytest.raises(FedreelError, match="not signed by this CA"):
        check(own)


def test_a_key_of_another_certificate_is_refused(own: Path) -> None:
    old = (own / "server.key").read_bytes()
    make_server_certificate(own, HOSTS)
    (own / "server.key").write_bytes(old)
    with pytest.raises(FedreelError, match="do not belong together"):
        check(own)


@pytest.mark.parametrize("name", ["server.crt", "server.key", "ca.crt"])
@pytest.mark.parametrize(
    "content", [None, b"", b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_what_is_no_certificate_or_key_is_named_as_that(own: Path, name: str, content: bytes | None) -> None:
    (own / name).unlink() if content is None else (own / name).write_bytes(content)
    with pytest.raises(FedreelError, match="cannot be read"):
        check(own)


def test_a_key_under_a_password_is_refused(own: Path) -> None:
    key = serialization.load_pem_private_key((own / "server.key").read_bytes(), None)
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (own / "server.key").write_bytes(key.private_bytes(*formats, serialization.BestAvailableEncryption(b"x")))
    with pytest.raises(FedreelError, match="cannot be read"):
        check(own)


def test_a_ca_file_may_hold_several_authorities(own: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make_ca(tmp_path / "other", "another CA")
    (own / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes() + (own / "ca.crt").read_bytes())
    assert check(own) == HOSTS


def test_a_certificate_that_signed_itself_may_be_its_own_authority(own: Path) -> None:
    """A CA's certificate names no hosts: that is what is wrong with it, not who signed it."""
    for name in ("crt", "key"):
        shutil.copy(own / f"ca.{name}", own / f"server.{name}")
    with pytest.raises(FedreelError, match="names no hosts"):
        check(own)


def test_a_sites_key_is_read_with_the_sites_name(tmp_path: Path) -> None:
    make_site_keys(tmp_path, "north-1")
    key, name = read_site_key(tmp_path / "site.pub")
    assert name == "north-1"
    assert (tmp_path / "site.pub").read_text() == f"{key} north-1\n"
    private = serialization.load_ssh_private_key((tmp_path / "site.key").read_bytes(), None)
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    assert private.public_key().public_bytes(*formats).decode() == key


def test_two_sites_never_have_the_same_key(tmp_path: Path) -> None:
    keys = set()
    for _ in range(3):
        make_site_keys(tmp_path, "north")
        keys.add(read_site_key(tmp_path / "site.pub")[0])
    assert len(keys) == 3


def test_a_key_without_a_comment_has_its_files_name(tmp_path: Path) -> None:
    make_site_keys(tmp_path, "north")
    (tmp_path / "west.pub").write_text(read_site_key(tmp_path / "site.pub")[0])
    assert read_site_key(tmp_path / "west.pub")[1] == "west"


def _public(key: object) -> str:
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*formats).decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "ssh-rsa AAAA north", "ecdsa-sha2-nistp384 AAAA north", "\0\0\0"),
        "ssh-unheard AAAA north",
    ],
)
def test_what_is_no_public_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "site.pub").write_text(text)
    with pytest.raises(FedreelError, match="not a site's public key"):
        read_site_key(tmp_path / "site.pub")


def test_a_missing_or_binary_file_is_no_public_key(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe" * 50)
    for path in (tmp_path / "nothing", tmp_path / "binary", tmp_path):
        with pytest.raises(FedreelError, match="not a site's public key"):
            read_site_key(path)


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    make_site_keys(tmp_path, "north")
    with pytest.raises(FedreelError, match="not a site's public key") as caught:
        read_site_key(tmp_path / "site.key")
    assert (tmp_path / "site.key").read_text().splitlines()[1] not in str(caught.value)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site.pub").write_text(_public(ed25519.Ed25519PrivateKey.generate()) + " north")
    with pytest.raises(FedreelError, match="of another kind"):
        read_site_key(tmp_path / "site.pub")
    (tmp_path / "site.pub").write_text(_public(ec.generate_private_key(ec.SECP256R1())) + " north")
    assert read_site_key(tmp_path / "site.pub")[1] == "north"


@pytest.mark.parametrize("name", ["north", "a", "A-1_b.c", "x" * 60, "7"])
def test_plain_names_are_names_of_sites(name: str) -> None:
    assert check_name(name, "there") == name


@pytest.mark.parametrize(
    "name", ["", "x" * 61, "../up", "a/b", "a b", ".hidden", "-", "...", "größe", "a\nb", "a\0b", "a;b", "a*b", "²"]
)
def test_names_that_could_be_more_than_a_files_name_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedreelError, match="cannot be a site's name"):
        check_name(name, "there")
    if name.strip() and "\0" not in name:
        make_site_keys(tmp_path, name)
        with pytest.raises(FedreelError, match="cannot be a site's name"):
            read_site_key(tmp_path / "site.pub")
