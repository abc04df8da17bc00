"""Clients and containers of the suite. Every test makes the container it needs."""

import os
import time
import uuid

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient

ENDPOINTS = {"one partition": "COSMOS_ENDPOINT", "four partitions": "COSMOS_ENDPOINT_PARTITIONED"}


@pytest.fixture(scope="session")
def key():
    return os.environ["COSMOS_KEY"]


@pytest.fixture(scope="session", params=list(ENDPOINTS.values()), ids=list(ENDPOINTS))
def endpoint(request):
    """Every test runs on containers of one physical partition, then of four."""
    return os.environ[request.param]


@pytest.fixture(scope="session")
def client(endpoint, key):
    with CosmosClient(endpoint, key) as client:
        yield client


@pytest.fixture(scope="session")
def database(client):
    name = f"conformance-{uuid.uuid4()}"
    yield client.create_database(name)
    client.delete_database(name)


@pytest.fixture
def make_container(database):
    """Makes containers, keyed by /pk unless told otherwise."""

    def make(path="/pk", **settings):
        kind = "MultiHash" if isinstance(path, list) else "Hash"
        key = PartitionKey(path=path, kind=kind)
        return database.create_container(f"c-{uuid.uuid4()}", partition_key=key, **settings)

    return make


@pytest.fixture
def container(make_container):
    return make_container()


@pytest.fixture
def people(container):
    """Forty people in eight partitions, with what the query tests ask about."""
    cities = ["Oslo", "Rome", "Lima", "Cairo"]
    for number in range(40):
        container.create_item(
            {
                "id": f"p{number:02}",
                "pk": f"key{number % 8}",
                "age": 20 + number % 10,
                "rank": number,
                "city": cities[number % 4],
                "tags": [f"t{number % 3}", f"t{number % 5}"],
                "address": {"street": f"Street {number}", "number": number},
            }
        )
    return container


@pytest.fixture
async def async_client(endpoint, key):
    async with AsyncCosmosClient(endpoint, key) as client:
        yield client


@pytest.fixture
async def async_container(async_client, database):
    proxy = async_client.get_database_client(database.id)
    return await proxy.create_container(f"c-{uuid.uuid4()}", partition_key=PartitionKey(path="/pk"))


def eventually(condition, seconds=10):
    """Waits for what the service does in its own time, such as expiring an item."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(0.1)
