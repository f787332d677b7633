"""The blocking face of the rollout service's client; `async_http` has the client itself."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from prorl_service.client.async_http import AsyncRolloutClient
from prorl_service.client.blocking import UnawaitedClient, each, finished
from prorl_service.client.calls import IDLE_TIMEOUT_S, Wire

Result = TypeVar("Result")
P = ParamSpec("P")


def _returns(
    method: Callable[Concatenate[AsyncRolloutClient, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate["RolloutClient", P], Result]:
    """Returns the method that blocks until `method` has returned."""

    @wraps(method)
    def call(client: "RolloutClient", /, *args: P.args, **options: P.kwargs) -> Result:
        return finished(method(client._client, *args, **options))

    return call


def _yields(
    method: Callable[Concatenate[AsyncRolloutClient, P], AsyncGenerator[Result, None]],
) -> Callable[Concatenate["RolloutClient", P], Iterator[Result]]:
    """Returns the method that blocks until `method` has yielded its next item."""

    @wraps(method)
    def call(client: "RolloutClient", /, *args: P.args, **options: P.kwargs) -> Iterator[Result]:
        return each(method(client._client, *args, **options))

    return call


class RolloutClient:
    """Blocking client of the service at `url`. Use it as a context manager, or `close` it.

    `url`: the service, or the front of several.
    `token`: the service's token; default: `PRORL_TOKEN` in the environment, or on this machine the
    token of your own services; "" is none.
    `retry_s`: seconds for which calls to an unreachable or overloaded service are retried.
    `idle_s`: seconds of silence after which a connection counts as broken.
    `wire`: encoding of token arrays; "packed" is smaller and faster, "json" is readable.
    `training`: key of the training that the calls are for; see `client.policy`.
    The methods are `AsyncRolloutClient`'s. Every method raises `ServiceCallError`; the constructor
    raises `ProRLError` for what is not the URL of one service and for a token that cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_s: float = 60,
        idle_s: float = IDLE_TIMEOUT_S,
        wire: Wire = "packed",
        training: str | None = None,
    ) -> None:
        self._client = UnawaitedClient(
            url, token=token, retry_s=retry_s, idle_s=idle_s, wire=wire, training=training
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    close = _returns(AsyncRolloutClient.aclose)

    submit = _returns(AsyncRolloutClient.submit)
    check_tasks = _returns(AsyncRolloutClient.check_tasks)
    get = _returns(AsyncRolloutClient.get)
    wait = _returns(AsyncRolloutClient.wait)
    stream = _yields(AsyncRolloutClient.stream)
    finish = _yields(AsyncRolloutClient.finish)
    cancel = _returns(AsyncRolloutClient.cancel)
    gateway = _returns(AsyncRolloutClient.gateway)
    end_gateway = _returns(AsyncRolloutClient.end_gateway)
    acknowledge = _returns(AsyncRolloutClient.acknowledge)

    create_sampler = _returns(AsyncRolloutClient.create_sampler)
    sampler = _returns(AsyncRolloutClient.sampler)
    add_candidates = _returns(AsyncRolloutClient.add_candidates)
    open_draw = _returns(AsyncRolloutClient.open_draw)
    delete_sampler = _returns(AsyncRolloutClient.delete_sampler)

    backends = _returns(AsyncRolloutClient.backends)
    add_backend = _returns(AsyncRolloutClient.add_backend)
    put_backends = _returns(AsyncRolloutClient.put_backends)
    remove_backend = _returns(AsyncRolloutClient.remove_backend)
    claim_policy = _returns(AsyncRolloutClient.claim_policy)
    release_policy = _returns(AsyncRolloutClient.release_policy)
    report_step = _returns(AsyncRolloutClient.report_step)
    weights_terms = _returns(AsyncRolloutClient.weights_terms)
    open_nccl_group = _returns(AsyncRolloutClient.open_nccl_group)
    broadcast_weights = _returns(AsyncRolloutClient.broadcast_weights)
    load_weights = _returns(AsyncRolloutClient.load_weights)
    stream_weights = _returns(AsyncRolloutClient.stream_weights)

    groups = _returns(AsyncRolloutClient.groups)
    rollouts = _returns(AsyncRolloutClient.rollouts)
    group_pages = _yields(AsyncRolloutClient.group_pages)
    rollout_pages = _yields(AsyncRolloutClient.rollout_pages)
    text = _returns(AsyncRolloutClient.text)
    tokens = _returns(AsyncRolloutClient.tokens)
    page = _returns(AsyncRolloutClient.page)
    training = _returns(AsyncRolloutClient.training)
    runs = _returns(AsyncRolloutClient.runs)
    history = _returns(AsyncRolloutClient.history)
    tasks = _returns(AsyncRolloutClient.tasks)
    agents = _returns(AsyncRolloutClient.agents)
    events = _yields(AsyncRolloutClient.events)

    status = _returns(AsyncRolloutClient.status)
    health = _returns(AsyncRolloutClient.health)
