"""An account of two regions: where the SDK reads and writes when regions go away, move, or lag behind."""

import json
import uuid

import pytest
from azure.cosmos import CosmosClient, PartitionKey, exceptions
from harness import Emulator

EAST, WEST = "East US", "West US"


class Account:
    """A running account, and clients that note which region answered them."""

    def __init__(self, emulator, key):
        self.emulator = emulator
        self.key = key
        self.database = f"regions-{uuid.uuid4()}"
        with CosmosClient(emulator.endpoint, key) as client:
            database = client.create_database(self.database)
            database.create_container("c", partition_key=PartitionKey(path="/pk"))

    def client(self, *preferred, **settings):
        return Client(self, preferred, settings)

    def region(self, name, command, body=None):
        self.emulator.manage("POST", f"/regions/{name}/{command}", body or {})

    def fail_over(self, name, kind="planned"):
        self.emulator.manage("POST", "/failover", {"writeRegion": name, "kind": kind})


class Client:
    """A container through a client that prefers regions in an order."""

    def __init__(self, account, preferred, settings):
        self.account = account
        self.answered = None
        self.client = CosmosClient(
            account.emulator.endpoint, account.key, preferred_locations=list(preferred), **settings
        )
        self.container = self.client.get_database_client(account.database).get_container_client("c")

    def __enter__(self):
        self.client.__enter__()
        return self

    def __exit__(self, *reason):
        self.client.__exit__(*reason)

    def note(self, response):
        url = response.http_request.url
        names = [name for name, endpoint in self.account.emulator.regions.items() if url.startswith(endpoint)]
        self.answered = names[0]

    def write(self, item):
        return self.container.upsert_item(item, raw_response_hook=self.note)

    def read(self, name, **options):
        return self.container.read_item(name, "a", raw_response_hook=self.note, **options)

    def last(self):
        """The region whose answer the caller got last."""
        return self.answered


@pytest.fixture
def make_account(key):
    started = []

    def make(*arguments):
        emulator = Emulator("regions", "--region", EAST, "--region", WEST, *arguments).__enter__()
        started.append(emulator)
        return Account(emulator, key)

    yield make
    for emulator in started:
        emulator.__exit__()


@pytest.fixture
def account(make_account):
    return make_account()


def test_reads_go_to_the_preferred_region_and_writes_to_the_write_region(account):
    with account.client(WEST, EAST) as client:
        client.write({"id": "1", "pk": "a"})
        assert client.last() == EAST
        assert client.read("1")["id"] == "1"
        assert client.last() == WEST


@pytest.mark.parametrize("manner", ["refuse", "unavailable", "hang"])
def test_reads_succeed_elsewhere_when_the_preferred_region_goes_offline(account, manner):
    with account.client(WEST, EAST, read_timeout=2, connection_timeout=2) as client:
        client.write({"id": "1", "pk": "a"})
        client.read("1")
        assert client.last() == WEST
        account.region(WEST, "offline", {"manner": manner})
        assert client.read("1")["id"] == "1"
        assert client.last() == EAST
        account.region(WEST, "online")


def test_reads_succeed_in_a_read_region_while_the_write_region_is_gone(account):
    with account.client(EAST, WEST) as client:
        client.write({"id": "1", "pk": "a"})
        client.read("1")
        account.region(EAST, "offline", {"manner": "refuse"})
        assert client.read("1")["id"] == "1"
        assert client.last() == WEST
        found = list(client.container.query_items("SELECT * FROM c", partition_key="a"))
        assert [item["id"] for item in found] == ["1"]


@pytest.mark.parametrize("kind", ["planned", "forced"])
def test_writes_follow_the_write_region(account, kind):
    with account.client(EAST, WEST) as client:
        client.write({"id": "1", "pk": "a", "n": 1})
        assert client.last() == EAST
        account.fail_over(WEST, kind)
        client.write({"id": "1", "pk": "a", "n": 2})
        assert client.last() == WEST
        assert client.read("1")["n"] == 2
        account.fail_over(EAST, kind)
        client.write({"id": "1", "pk": "a", "n": 3})
        assert client.last() == EAST
        assert client.read("1")["n"] == 3


def test_a_session_is_not_served_from_a_region_that_lags_behind_it(account):
    with account.client(WEST, EAST) as client:
        client.write({"id": "1", "pk": "a", "n": 1})
        assert client.read("1")["n"] == 1
        assert client.last() == WEST
        account.region(WEST, "replication/pause")
        client.write({"id": "1", "pk": "a", "n": 2})
        assert client.read("1")["n"] == 2, "its own write"
        assert client.last() == EAST
        with account.client(WEST, EAST) as other:
            assert other.read("1")["n"] == 1, "one without that session reads what is there"
            assert other.last() == WEST
        account.region(WEST, "replication/resume")
        assert client.read("1")["n"] == 2
        assert client.last() == WEST


def test_a_session_goes_on_over_a_failover_and_over_new_regions(account):
    with account.client(WEST, EAST) as client:
        for number, change in enumerate(
            [
                lambda: account.fail_over(WEST),
                lambda: account.emulator.manage("PUT", "/regions/North Europe", {}),
                lambda: account.fail_over(EAST),
                lambda: account.emulator.manage("DELETE", "/regions/North Europe"),
            ]
        ):
            client.write({"id": "1", "pk": "a", "n": number})
            change()
            assert client.read("1")["n"] == number


def test_a_client_leaves_a_region_that_left_the_account(account):
    with account.client(WEST, EAST) as client:
        client.write({"id": "1", "pk": "a"})
        client.read("1")
        account.emulator.manage("DELETE", f"/regions/{WEST}")
        assert client.read("1")["id"] == "1"
        assert client.last() == EAST


def test_every_region_of_a_multi_write_account_takes_writes_and_the_last_one_wins(make_account):
    account = make_account("--multi-write", "--replication-delay-ms", "3600000")
    everywhere = {"multiple_write_locations": True}
    with account.client(EAST, WEST, **everywhere) as east, account.client(WEST, EAST, **everywhere) as west:
        east.write({"id": "1", "pk": "a", "from": "east"})
        account.emulator.manage("POST", "/clock/advance", {"seconds": 5})
        west.write({"id": "1", "pk": "a", "from": "west"})
        assert (east.last(), west.last()) == (EAST, WEST)
        assert (east.read("1")["from"], west.read("1")["from"]) == ("east", "west")
        account.emulator.manage("PUT", "/config/replication-delay", {"delayMs": 0})
        assert (east.read("1")["from"], west.read("1")["from"]) == ("west", "west")


def test_conflicts_of_a_custom_policy_are_listed_read_and_deleted(make_account):
    account = make_account("--multi-write", "--replication-delay-ms", "3600000")
    everywhere = {"multiple_write_locations": True}
    with account.client(EAST, WEST, **everywhere) as east, account.client(WEST, EAST, **everywhere) as west:
        database = east.client.get_database_client(account.database)
        policy = {"mode": "Custom"}
        database.create_container("custom", PartitionKey(path="/pk"), conflict_resolution_policy=policy)
        for client in (east, west):
            client.container = client.client.get_database_client(account.database).get_container_client("custom")
        east.write({"id": "1", "pk": "a", "from": "east"})
        account.emulator.manage("POST", "/clock/advance", {"seconds": 5})
        west.write({"id": "1", "pk": "a", "from": "west"})
        assert list(east.container.list_conflicts()) == []
        account.emulator.manage("PUT", "/config/replication-delay", {"delayMs": 0})
        assert east.read("1")["from"] == "west"
        [conflict] = west.container.list_conflicts()
        assert conflict["operationType"] == "create"
        assert json.loads(conflict["content"])["from"] == "east"
        assert [found["id"] for found in east.container.query_conflicts("SELECT * FROM c", partition_key="a")] == [conflict["id"]]
        assert east.container.get_conflict(conflict, partition_key="a")["content"] == conflict["content"]
        east.container.delete_conflict(conflict, partition_key="a")
        assert list(west.container.list_conflicts()) == []


def test_a_strong_account_shows_a_write_everywhere_at_once(make_account):
    account = make_account("--consistency", "strong", "--replication-delay-ms", "3600000")
    with account.client(EAST, WEST) as writer, account.client(WEST, EAST) as reader:
        for number in range(5):
            writer.write({"id": "1", "pk": "a", "n": number})
            assert reader.read("1")["n"] == number
            assert reader.last() == WEST


def test_a_read_region_refuses_writes_with_403_and_3(account):
    # A client that may not look for other regions stays where it was sent.
    with CosmosClient(account.emulator.regions[WEST], account.key, enable_endpoint_discovery=False) as client:
        container = client.get_database_client(account.database).get_container_client("c")
        with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
            container.create_item({"id": "1", "pk": "a"})
        assert (refused.value.status_code, refused.value.sub_status) == (403, 3)
