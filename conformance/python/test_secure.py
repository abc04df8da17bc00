"""HTTPS with a certificate of the emulator's own making, and clients that sign in with Entra."""

import base64
import json
import os
import time
import uuid

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ServiceRequestError
from azure.cosmos import CosmosClient, PartitionKey, SSLConfiguration, exceptions


@pytest.fixture(scope="session")
def secure():
    return os.environ["COSMOS_ENDPOINT_TLS"]


@pytest.fixture(scope="session")
def trusting():
    """How a client is told to trust the exported certificate."""
    configuration = SSLConfiguration()
    configuration.SSLCaCerts = os.environ["COSMOS_CERTIFICATE"]
    return {"ssl_config": configuration}


@pytest.fixture
def secure_container(secure, trusting, key):
    with CosmosClient(secure, key, **trusting) as client:
        database = client.create_database(f"secure-{uuid.uuid4()}")
        yield database.create_container("c", partition_key=PartitionKey(path="/pk"))
        client.delete_database(database.id)


class Token:
    """A credential with the token that emulators take in tests."""

    def __init__(self, **claims):
        now = int(time.time())
        self.claims = {
            "aud": "https://localhost.localhost",
            "iss": "https://sts.fake-issuer.net/7b1999a1-dfd7-440e-8204-00170979b984",
            "nbf": now,
            "exp": now + 7200,
            "oid": "96313034-4739-43cb-93cd-74193adbe5b6",
            **claims,
        }

    def get_token(self, *_, **__):
        def part(value):
            return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

        return AccessToken(f"{part({'typ': 'JWT', 'alg': 'RS256'})}.{part(self.claims)}.c2ln", self.claims["exp"])


def test_a_client_that_trusts_the_certificate_works_over_https(secure, secure_container):
    assert secure.startswith("https://")
    secure_container.create_item({"id": "1", "pk": "a"})
    assert secure_container.read_item("1", "a")["id"] == "1"
    found = list(secure_container.query_items("SELECT VALUE c.id FROM c", enable_cross_partition_query=True))
    assert found == ["1"]


def test_a_client_that_does_not_trust_it_is_not_served(secure, key):
    with pytest.raises(ServiceRequestError) as error:
        CosmosClient(secure, key, retry_total=0, connection_timeout=5)
    assert "certificate" in str(error.value).lower()


def test_an_entra_token_reads_and_writes_items_but_makes_no_database(secure, trusting, secure_container):
    database = secure_container.container_link.split("/")[1]
    with CosmosClient(secure, Token(), **trusting) as client:
        container = client.get_database_client(database).get_container_client("c")
        container.upsert_item({"id": "1", "pk": "a"})
        assert [item["id"] for item in container.query_items("SELECT * FROM c", partition_key="a")] == ["1"]
        with pytest.raises(exceptions.CosmosHttpResponseError) as error:
            client.create_database("never")
        assert (error.value.status_code, error.value.sub_status) == (403, 5300)


def test_an_expired_entra_token_is_refused(secure, trusting):
    now = int(time.time())
    with pytest.raises(exceptions.CosmosHttpResponseError) as error:
        CosmosClient(secure, Token(nbf=now - 7200, exp=now - 10), **trusting)
    assert error.value.status_code == 401
    assert "expired" in str(error.value)
