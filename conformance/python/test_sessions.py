"""Session tokens, as one client issues and another uses them."""

import pytest
from azure.cosmos import CosmosClient, exceptions


@pytest.fixture
def other(endpoint, key, database, container):
    """The same container through a client that has seen nothing yet."""
    with CosmosClient(endpoint, key) as client:
        yield client.get_database_client(database.id).get_container_client(container.id)


def token_of(answer):
    return answer.get_response_headers()["x-ms-session-token"]


def test_a_token_from_one_client_lets_another_read_the_write(container, other):
    written = container.create_item({"id": "1", "pk": "a"})
    assert other.read_item("1", "a", session_token=token_of(written))["id"] == "1"
    found = other.query_items("SELECT * FROM c", partition_key="a", session_token=token_of(written))
    assert [item["id"] for item in found] == ["1"]


def test_tokens_move_forward_with_every_write_to_a_partition(container):
    numbers = []
    for number in range(3):
        token = token_of(container.create_item({"id": str(number), "pk": "a"}))
        numbers.append(int(token.split("#")[1]))
    assert numbers == sorted(set(numbers))


def test_a_read_ahead_of_the_partition_is_refused_with_404_and_1002(container, other):
    token = token_of(container.create_item({"id": "1", "pk": "a"}))
    range_id, rest = token.split(":")
    version, lsn = rest.split("#")[:2]
    ahead = f"{range_id}:{version}#{int(lsn) + 100000}"
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        other.read_item("1", "a", session_token=ahead)
    assert refused.value.status_code == 404
    assert refused.value.sub_status == 1002


def test_a_client_reads_its_own_writes_without_being_told(container):
    for number in range(20):
        container.upsert_item({"id": "1", "pk": "a", "n": number})
        assert container.read_item("1", "a")["n"] == number
