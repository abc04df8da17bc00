"""Users, permissions, and clients that hold nothing but a resource token."""

import uuid

import pytest
from azure.cosmos import CosmosClient, exceptions


@pytest.fixture
def user(database):
    return database.create_user({"id": f"user-{uuid.uuid4()}"})


@pytest.fixture
def restricted(endpoint, database, container, user):
    """Makes the container as a client sees it that holds a token for it."""

    def make(mode, key=None):
        link = f"dbs/{database.id}/colls/{container.id}"
        body = {"id": f"p-{uuid.uuid4()}", "permissionMode": mode, "resource": link}
        if key is not None:
            body["resourcePartitionKey"] = [key]
        token = user.create_permission(body).properties["_token"]
        client = CosmosClient(endpoint, {link: token})
        return client.get_database_client(database.id).get_container_client(container.id)

    return make


def refused(status, action, *arguments):
    with pytest.raises(exceptions.CosmosHttpResponseError) as error:
        action(*arguments)
    assert error.value.status_code == status


def test_users_are_created_listed_found_by_query_renamed_and_deleted(database):
    name = f"user-{uuid.uuid4()}"
    database.create_user({"id": name})
    assert name in [entry["id"] for entry in database.list_users()]
    query = "SELECT * FROM u WHERE u.id = @id"
    assert len(list(database.query_users(query, parameters=[{"name": "@id", "value": name}]))) == 1
    database.replace_user(name, {"id": f"{name}-renamed"})
    refused(404, database.get_user_client(name).read)
    database.delete_user(f"{name}-renamed")


def test_a_token_to_read_reads_and_does_not_write(container, restricted):
    container.create_item({"id": "1", "pk": "a"})
    reader = restricted("Read")
    assert reader.read_item("1", "a")["id"] == "1"
    assert [item["id"] for item in reader.query_items("SELECT * FROM c", partition_key="a")] == ["1"]
    refused(403, reader.create_item, {"id": "2", "pk": "a"})
    refused(403, reader.delete_item, "1", "a")


def test_a_token_for_one_partition_key_stops_at_others(restricted):
    writer = restricted("All", "a")
    writer.create_item({"id": "1", "pk": "a"})
    refused(403, writer.create_item, {"id": "2", "pk": "b"})
    refused(403, writer.read_item, "1", "b")
    writer.delete_item("1", "a")


def test_a_token_for_one_container_does_not_open_another(make_container, database, restricted):
    other = make_container()
    other.create_item({"id": "1", "pk": "a"})
    client = restricted("All").client_connection
    stranger = database.get_container_client(other.id)
    stranger.client_connection = client
    refused(403, stranger.read_item, "1", "a")
