from pathlib import Path

import pytest

from prorl_service.errors import TaskError
from prorl_service.sandbox.images import parse
from prorl_service.sandbox.images.references import RegistryReference, is_loopback

DIGEST = "sha256:" + "a1" * 32

CANONICAL = {
    "python": "docker://docker.io/library/python:latest",
    "python:3.11": "docker://docker.io/library/python:3.11",
    "docker://python": "docker://docker.io/library/python:latest",
    "team/app:v1": "docker://docker.io/team/app:v1",
    "docker://team/app_1776_x": "docker://docker.io/team/app_1776_x:latest",
    "registry.example/a/b/c": "docker://registry.example/a/b/c:latest",
    "localhost/app": "docker://localhost/app:latest",
    "localhost:5000/app:v1": "docker://localhost:5000/app:v1",
    "[::1]:5000/app:v1": "docker://[::1]:5000/app:v1",
    f"team/app@{DIGEST}": f"docker://docker.io/team/app@{DIGEST}",
    f"docker://team/app:v1@{DIGEST}": f"docker://docker.io/team/app@{DIGEST}",
    "oci:/images/x": "oci:/images/x",
    "oci:/images/x:v1": "oci:/images/x:v1",
    "oci-archive:/x.tar": "oci-archive:/x.tar",
    "docker-archive:/x.tar": "docker-archive:/x.tar",
    "oci:relative": f"oci:{Path.cwd()}/relative",
    "./x.sif": f"{Path.cwd()}/x.sif",
    "~/x.sif": f"{Path.home()}/x.sif",
    "/a/b c:d.sif": "/a/b c:d.sif",
    "local:mine-1.0": "local:mine-1.0",
    f"dockerfile:{DIGEST}": f"dockerfile:{DIGEST}",
}

REFUSED = {
    "nosuch.sif": "a file needs a path: ./nosuch.sif",
    "": "empty",
    " python": "spaces around",
    "Python": "lower case",
    "python:": "not a tag",
    "python:a b": "not a tag",
    "a//b": "not a repository",
    "team/app@sha256:12": "64 hexadecimal digits",
    "docker:python": "followed by //",
    "docker://": "not a repository",
    "library://x/y": "library:// is not supported",
    "https://registry.example/app": "https:// is not supported",
    "bad_host.x/app": "not a host",
    "oci:": "it needs a path",
    "oci-archive:/a:b": "it needs a path",
    "local:../x": "not a tag or name",
    "local:": "not a tag or name",
    "dockerfile:": "dockerfile:sha256: and 64 hexadecimal digits",
    "dockerfile:./tree": "dockerfile:sha256: and 64 hexadecimal digits",
    f"dockerfile:{DIGEST.upper()}": "dockerfile:sha256: and 64 hexadecimal digits",
    "--help": "not a repository",
    "a\0b": "empty",
}


@pytest.mark.parametrize("text", CANONICAL)
def test_references_have_one_spelling(text: str) -> None:
    assert str(parse(text)) == CANONICAL[text]
    assert parse(CANONICAL[text]) == parse(text)


@pytest.mark.parametrize("text", REFUSED)
def test_a_malformed_reference_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(TaskError, match=REFUSED[text]):
        parse(text)


def test_only_loopback_registries_are_used_without_tls() -> None:
    for host in ("localhost", "localhost:5000", "127.0.0.1:5000", "127.8.8.8", "[::1]:5000"):
        assert is_loopback(host), host
    for host in ("registry.example", "localhost.example:80", "10.0.0.1:5000", "127.0.0.1.example"):
        assert not is_loopback(host), host
    reference = parse("localhost:5000/app")
    assert isinstance(reference, RegistryReference)
    assert reference.is_loopback
