"""Clients of a service behind TLS whose certificate is of a private authority."""

import ssl

import pytest
import trustme

from prorl_service.client import RolloutClient
from prorl_service.client.errors import CA_FILE
from prorl_service.errors import ProRLError
from tests.client.scripted import answering, raw


def test_a_private_authority_is_trusted_only_if_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    healthy = answering(raw(b'{"status":"ok"}'), context)
    with healthy as url, authority.cert_pem.tempfile() as ca_file:
        unknown = pytest.raises(ProRLError, match=f"own, name its certificate .* in {CA_FILE}")
        with RolloutClient(url, token="t", retry_s=60) as client, unknown:
            client.health()
        monkeypatch.setenv(CA_FILE, ca_file)
        with RolloutClient(url, token="t", retry_s=0) as client:
            client.health()


@pytest.mark.parametrize("name", ["absent.pem", "empty.pem"])
def test_a_file_without_certificates_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, name: str
) -> None:
    path = f"{tmp_path}/{name}"
    if name == "empty.pem":
        with open(path, "w") as file:
            file.write("nothing")
    monkeypatch.setenv(CA_FILE, path)
    with pytest.raises(ProRLError, match=f"{CA_FILE}=.*{name} cannot be used"):
        RolloutClient("https://127.0.0.1:1", token="t")
