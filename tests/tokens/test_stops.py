"""Where sampled ids complete a stop text, whatever the tokens are."""

from hypothesis import given
from hypothesis import strategies as st

from prorl_service.tokens.stops import first_stop

PIECES = st.lists(st.text("aé\n:", min_size=1, max_size=3).map(str.encode), max_size=8)


@given(pieces=PIECES, texts=st.lists(st.text("aé\n:", min_size=1, max_size=3), max_size=3))
def test_the_token_that_completes_a_stop_is_the_last_one(
    pieces: list[bytes], texts: list[str]
) -> None:
    pieces = [bytes([byte]) for byte in b"".join(pieces[::2])] + pieces[1::2]  # parts of characters
    found = first_stop(range(len(pieces)), texts, pieces.__getitem__)
    if found is None:
        assert not any(text.encode() in b"".join(pieces) for text in texts)
        return
    assert found.text in texts
    assert found.text.encode() in b"".join(pieces[: found.tokens])
    before = b"".join(pieces[: found.tokens - 1])
    assert not any(text.encode() in before for text in texts)


def test_the_stop_that_is_complete_first_counts() -> None:
    def piece(id_: int) -> bytes:
        return b"Act.\nObservation: none"[id_ : id_ + 1]

    found = first_stop(range(22), ["Observation:", "Obs", "\nO"], piece)
    assert found == ("\nO", 6)
