"""Lookup of what a name in a registry stands for now, by its HTTP API, without an account.

Only manifests are read here; apptainer fetches the layers. Registries are contacted over TLS, those
on loopback over plain HTTP.
"""

import re
from typing import Any

import httpx

from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.sandbox.images import oci_layout
from prorl_service.sandbox.images.references import (
    DEFAULT_REGISTRY,
    RegistryReference,
    is_loopback,
)
from prorl_service.sandbox.images.store import Ref

API_HOSTS = {DEFAULT_REGISTRY: "registry-1.docker.io"}
"""API hosts of registries that do not answer under their own names."""

REQUEST_TIMEOUT_S = 30.0
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


async def resolve(reference: RegistryReference, known: Ref | None = None) -> Ref:
    """Resolves a name. Returns `known` if it still points there: registries do not count that as a
    pull.

    Raises `TaskError` if it does not exist or is refused, `SandboxError` for network trouble.
    """
    headers = {"Accept": ", ".join(oci_layout.MEDIA_TYPES)}
    try:
        async with httpx.AsyncClient(
            headers=headers, timeout=REQUEST_TIMEOUT_S, follow_redirects=True
        ) as client:
            return await _Manifests(client, reference).resolve(known)
    except (httpx.TransportError, httpx.TooManyRedirects) as error:
        raise SandboxError(
            f"registry {reference.registry} cannot be reached: {error!r}",
            hint="check the network, or bring the image as an archive",
        ) from error


class _Manifests:
    def __init__(self, client: httpx.AsyncClient, reference: RegistryReference) -> None:
        self._client = client
        self._reference = reference
        scheme = "http" if reference.is_loopback else "https"
        host = API_HOSTS.get(reference.registry, reference.registry)
        self._url = f"{scheme}://{host}/v2/{reference.repository}/manifests"

    async def resolve(self, known: Ref | None) -> Ref:
        wanted = self._reference.digest or self._reference.tag
        assert wanted is not None
        if known is not None:
            response = await self._request("HEAD", wanted)
            if response.headers.get("Docker-Content-Digest") == known.listed:
                return known
        listed, manifest = await self._manifest(wanted)
        name = str(self._reference)
        digest = oci_layout.choose_platform(manifest, name)
        if digest is not None:
            _, manifest = await self._manifest(digest)
        return Ref(name, listed, digest or listed, oci_layout.layers_bytes(manifest))

    async def _manifest(self, wanted: str) -> tuple[str, dict[str, Any]]:
        """Returns the true digest of the manifest, and the manifest."""
        response = await self._request("GET", wanted)
        digest = oci_layout.digest_of(response.content)
        said = response.headers.get("Docker-Content-Digest", digest)
        if digest != said or (":" in wanted and digest != wanted):
            raise TaskError(
                f"{self._reference}: the registry answered {digest} where {wanted} was asked for",
                hint="its content was altered on the way or at the registry: do not use it",
            )
        return digest, oci_layout.read_manifest(response.content, str(self._reference))

    async def _request(self, method: str, wanted: str) -> httpx.Response:
        response = await self._client.request(method, f"{self._url}/{wanted}")
        if response.status_code == 401 and "Authorization" not in self._client.headers:
            token = await self._token(response.headers.get("WWW-Authenticate", ""))
            self._client.headers["Authorization"] = f"Bearer {token}"
            response = await self._client.request(method, f"{self._url}/{wanted}")
        if response.is_success:
            return response
        raise self._failure(response)

    async def _token(self, challenge: str) -> str:
        """Gets an anonymous token from where the registry's challenge says."""
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        realm = httpx.URL(parameters.pop("realm", ""))
        secure = realm.scheme == "https" or (realm.scheme == "http" and is_loopback(realm.host))
        if scheme.lower() != "bearer" or not secure:
            raise self._refused("it requires a login")
        response = await self._client.get(realm, params=parameters)
        if not response.is_success:
            raise self._failure(response)
        answer = response.json()
        return str(answer.get("token") or answer.get("access_token"))

    def _failure(self, response: httpx.Response) -> ProRLError:
        status = response.status_code
        if status in (401, 403):
            return self._refused("it does not exist, or is not public")
        if status == 404:
            return self._refused("it does not exist")
        wait = response.headers.get("Retry-After")
        return SandboxError(
            f"registry {self._reference.registry} answered {status} for {self._reference}",
            hint=f"try again after {wait} s" if wait else "try again later",
            retryable=status == 429 or status >= 500,
        )

    def _refused(self, why: str) -> TaskError:
        return TaskError(
            f"{self._reference}: {why}",
            hint="check the name; for a private image pull it elsewhere and bring an archive",
        )
