"""`/v1/page`: groups as one HTML file, over HTTP."""

import json
from typing import Any

import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.server import saved_pages
from tests.server.application import finished, group

pytestmark = pytest.mark.processes


def answers(page: bytes) -> dict[str, Any]:
    data = page.decode().split('id="saved">')[1].split("</script>")[0]
    found: dict[str, Any] = json.loads(data)["answers"]
    return found


async def test_a_page_has_whole_groups_with_texts_and_tokens(client: AsyncRolloutClient) -> None:
    await finished(client, group(n=2))
    await finished(client, group("other"))
    page = await client.page(["g"], title="Two of a kind")
    assert b"<title>Two of a kind</title>" in page
    found = answers(page)
    assert [one["group_id"] for one in found["/v1/groups"]["groups"]] == ["g"]
    rows = found["/v1/rollouts"]["rollouts"]
    assert [(row["rollout_id"], row["has_content"]) for row in rows] == [
        ("g.0", True),
        ("g.1", True),
    ]
    for rollout_id in ("g.0", "g.1"):
        text = await client.text(rollout_id)
        assert found[f"/v1/rollouts/{rollout_id}/text"] == text.model_dump(mode="json")
        [segment] = found[f"/v1/rollouts/{rollout_id}/tokens"]
        tokens = await client.tokens(rollout_id, n=4096)
        assert segment == tokens.model_dump(mode="json")
    assert "/v1/rollouts/other.0/text" not in found


async def test_a_segment_of_several_slices_is_saved_whole(
    client: AsyncRolloutClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_pages, "MAX_TOKENS", 7)
    await finished(client, group())
    [segment] = answers(await client.page(["g"]))["/v1/rollouts/g.0/tokens"]
    tokens = await client.tokens("g.0", n=4096)
    assert tokens.length > 2 * 7
    assert segment == tokens.model_dump(mode="json")


async def test_requests_that_cannot_be_saved_are_refused_in_one_line(
    client: AsyncRolloutClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServiceCallError, match="no group nobody is listed"):
        await client.page(["nobody"])
    with pytest.raises(ServiceCallError, match="group_id"):
        await client.page([])
    await finished(client, group())
    monkeypatch.setattr(saved_pages, "MAX_BYTES", 100)
    with pytest.raises(ServiceCallError, match="choose fewer"):
        await client.page(["g"])
