"""Failures of calls as callers see them: error answers of the service, broken connections."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
from pydantic import ValidationError

from prorl_service.errors import PolicyUnclaimed, ProRLError, problems_of
from prorl_service.schemas import Blame, ErrorInfo, ErrorResponse

CA_FILE = "PRORL_CA_FILE"
"""Environment variable with a file of certificates, in PEM form, that are trusted, too."""


class ServiceCallError(ProRLError):
    """A call that failed for good. `http_status` is None if there was no answer at all."""

    def __init__(self, call: str, info: ErrorInfo, http_status: int | None) -> None:
        status = "" if http_status is None else f"{http_status} "
        unsaid = (one for one in info.fields if one.message not in info.message)
        problems = [f"{one.field}: {one.message}" for one in unsaid]
        details = [line for line in (*problems, info.hint) if line and line not in info.message]
        super().__init__(
            "\n  ".join([f"{call}: {status}{info.kind}: {info.message}", *details]),
            hint=info.hint,
            retryable=info.retryable,
            fields=info.fields,
        )
        self.blame = info.blame
        self.http_status = http_status
        self.error = info

    @property
    def is_forgotten(self) -> bool:
        """True if the service does not know what it was given: it was restarted without a journal,
        and has forgotten rollouts and training."""
        return self.http_status == 404 or self.error.kind == PolicyUnclaimed.__name__


class WaitTimeout(ServiceCallError, TimeoutError):
    """Some rollouts did not end in time. `pending` are their ids; they are still running."""

    def __init__(self, pending: Sequence[str], timeout_s: float) -> None:
        ProRLError.__init__(
            self,
            f"{len(pending)} rollouts did not end within {timeout_s:g} s, first {pending[0]}",
            hint="wait longer, or cancel them",
        )
        self.pending = list(pending)
        self.http_status = None
        self.error = self.info()


def _label(request: httpx.Request) -> str:
    return f"{request.method} {request.url.copy_with(query=None)}"


def raise_for_status(response: httpx.Response) -> None:
    """Raises `ServiceCallError` for an error, whose body must have been read."""
    if response.is_error:
        raise ServiceCallError(
            _label(response.request), _error_info(response), response.status_code
        )


def _error_info(response: httpx.Response) -> ErrorInfo:
    """Returns the service's error; a proxy may have answered 502 or 503 in words of its own."""
    try:
        return ErrorResponse.from_answer(response.content).error
    except ValidationError:
        return ErrorInfo(
            kind=response.reason_phrase or "HTTPError",
            blame=Blame.SERVICE,
            message=response.text[:500] or "empty answer",
            hint="if this is not an answer of a rollout service, correct the URL",
            retryable=response.status_code in (502, 503, 504),
        )


@contextmanager
def readable_errors(request: httpx.Request) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        is_distrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
        own = f"if its authority is your own, name its certificate (PEM) in {CA_FILE}"
        info = ErrorInfo(
            kind=type(error).__name__,
            blame=Blame.SERVICE,
            message=str(error) or "the connection broke",
            hint=own if is_distrusted else "check that the service runs there: `prorl serve`",
            retryable=not (is_distrusted or isinstance(error, httpx.UnsupportedProtocol)),
        )
        raise ServiceCallError(_label(request), info, None) from None
    except ValidationError as error:
        info = ErrorInfo(
            kind="UnexpectedAnswer",
            blame=Blame.SERVICE,
            message=f"it is no {error.title}: {problems_of(error).removeprefix(': ')}",
            hint="the client and the service must be of the same version",
        )
        raise ServiceCallError(_label(request), info, None) from None
