"""Databases, containers and their throughput."""

import uuid

import pytest
from azure.cosmos import PartitionKey, ThroughputProperties, exceptions


def test_a_database_is_created_read_listed_and_deleted(client):
    name = f"db-{uuid.uuid4()}"
    database = client.create_database(name)
    assert database.read()["id"] == name
    assert name in [entry["id"] for entry in client.list_databases()]
    client.delete_database(name)
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        database.read()


def test_a_database_of_the_same_name_is_refused_with_409(client, database):
    with pytest.raises(exceptions.CosmosResourceExistsError):
        client.create_database(database.id)


def test_a_database_is_found_by_query(client, database):
    query = "SELECT * FROM root r WHERE r.id = @id"
    found = list(client.query_databases(query=query, parameters=[{"name": "@id", "value": database.id}]))
    assert [entry["id"] for entry in found] == [database.id]


def test_creating_a_container_if_it_does_not_exist_keeps_the_existing_one(database, container):
    container.create_item({"id": "kept", "pk": "a"})
    again = database.create_container_if_not_exists(container.id, partition_key=PartitionKey(path="/pk"))
    assert again.read_item("kept", "a")["id"] == "kept"


def test_a_container_keeps_the_definition_it_was_created_with(make_container):
    policy = {
        "indexingMode": "consistent",
        "automatic": True,
        "includedPaths": [{"path": "/*"}],
        "excludedPaths": [{"path": "/secret/*"}, {"path": '/"_etag"/?'}],
        "compositeIndexes": [[{"path": "/a", "order": "ascending"}, {"path": "/b", "order": "descending"}]],
    }
    container = make_container(
        indexing_policy=policy, default_ttl=60, unique_key_policy={"uniqueKeys": [{"paths": ["/email"]}]}
    )
    read = container.read()
    assert read["indexingPolicy"]["compositeIndexes"] == policy["compositeIndexes"]
    assert {"path": "/secret/*"} in read["indexingPolicy"]["excludedPaths"]
    assert read["defaultTtl"] == 60
    assert read["uniqueKeyPolicy"]["uniqueKeys"][0]["paths"] == ["/email"]
    assert read["partitionKey"]["paths"] == ["/pk"]


def test_a_container_takes_a_new_time_to_live_and_keeps_its_items(database, container):
    container.create_item({"id": "1", "pk": "a"})
    database.replace_container(container, partition_key=PartitionKey(path="/pk"), default_ttl=3600)
    assert container.read()["defaultTtl"] == 3600
    assert container.read_item("1", "a")["id"] == "1"


def test_a_container_does_not_take_a_new_partition_key(database, container):
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        database.replace_container(container, partition_key=PartitionKey(path="/other"))
    assert refused.value.status_code == 400


def test_a_container_with_an_invalid_indexing_policy_is_refused_with_400(make_container):
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        make_container(indexing_policy={"indexingMode": "sometimes"})
    assert refused.value.status_code == 400


def test_a_deleted_container_is_not_found_anymore(database, container):
    database.delete_container(container)
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        container.read()
    assert container.id not in [entry["id"] for entry in database.list_containers()]


def test_a_container_recreated_under_its_name_is_empty(database, container):
    container.create_item({"id": "old", "pk": "a"})
    database.delete_container(container)
    fresh = database.create_container(container.id, partition_key=PartitionKey(path="/pk"))
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        fresh.read_item("old", "a")


def test_the_throughput_of_a_container_is_read_and_replaced(make_container):
    container = make_container(offer_throughput=500)
    assert container.get_throughput().offer_throughput == 500
    container.replace_throughput(800)
    assert container.get_throughput().offer_throughput == 800


def test_autoscale_throughput_is_read_back(make_container):
    container = make_container(offer_throughput=ThroughputProperties(auto_scale_max_throughput=4000))
    assert container.get_throughput().auto_scale_max_throughput == 4000


def test_the_account_names_the_endpoint_the_client_came_by(client, endpoint):
    account = client.get_database_account()
    assert account.WritableLocations[0]["databaseAccountEndpoint"].rstrip("/") == endpoint.rstrip("/")
    assert account.ConsistencyPolicy["defaultConsistencyLevel"] == "Session"
