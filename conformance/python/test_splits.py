"""Physical partitions that are split and merged under the SDK's hands."""

import os
import uuid

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from harness import Emulator

ITEMS = 60


class World:
    """A container of one partition, known to a client, and the commands that change its partitions."""

    def __init__(self, emulator, client):
        self.emulator = emulator
        name = f"splits-{uuid.uuid4()}"
        database = client.create_database(name)
        self.container = database.create_container("items", partition_key=PartitionKey(path="/pk"))
        self.partitions = f"/databases/{name}/containers/items/partitions"
        for number in range(ITEMS):
            self.write(number)

    def write(self, number, **more):
        return self.container.upsert_item({"id": f"{number:03}", "pk": f"k{number}", "n": number % 7, **more})

    def ids(self):
        return [partition["id"] for partition in self.emulator.manage("GET", self.partitions)["partitions"]]

    def split(self):
        done = self.emulator.manage("POST", f"{self.partitions}/{self.ids()[0]}/split", {})
        assert done["phase"] == "Succeeded"

    def merge(self):
        done = self.emulator.manage("POST", f"{self.partitions}/merge", {"partitionIds": self.ids()[:2]})
        assert done["phase"] == "Succeeded"


@pytest.fixture(scope="module")
def emulator():
    with Emulator("splits") as emulator:
        yield emulator


@pytest.fixture
def world(emulator):
    with CosmosClient(emulator.endpoint, os.environ["COSMOS_KEY"]) as client:
        yield World(emulator, client)


CHANGES = pytest.mark.parametrize("change", ["split", "split twice", "merge"])


def everything():
    return [f"{number:03}" for number in range(ITEMS)]


def before(world, change):
    """What must be so for the change to be one."""
    if change == "merge":
        world.split()


def after(world, change):
    for _ in range(2 if change == "split twice" else 1):
        (world.merge if change == "merge" else world.split)()


@CHANGES
def test_the_client_finds_its_items_where_they_went(world, change):
    before(world, change)
    assert len(list(world.container.read_feed_ranges())) == len(world.ids())
    after(world, change)
    for number in range(ITEMS):
        item = world.container.read_item(f"{number:03}", f"k{number}")
        world.container.replace_item(item, {**item, "again": True})
    again = world.container.query_items("SELECT VALUE COUNT(1) FROM c WHERE c.again", enable_cross_partition_query=True)
    assert list(again) == [ITEMS]


@CHANGES
def test_the_client_learns_the_new_ranges(world, change):
    before(world, change)
    old = {str(feed_range) for feed_range in world.container.read_feed_ranges()}
    after(world, change)
    new = {str(feed_range) for feed_range in world.container.read_feed_ranges(force_refresh=True)}
    assert len(new) == len(world.ids())
    assert new != old


# Not with ORDER BY: in the middle of one this SDK answers a 410 by asking the new ranges from their start again.
@CHANGES
@pytest.mark.parametrize("query", ["SELECT * FROM c", "SELECT * FROM c WHERE c.n >= 0"])
def test_a_query_goes_on_page_by_page(world, change, query):
    before(world, change)
    pages = world.container.query_items(query, enable_cross_partition_query=True, max_item_count=7).by_page()
    seen = list(next(pages))
    after(world, change)
    for page in pages:
        seen += page
    assert sorted(item["id"] for item in seen) == everything()


@CHANGES
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT DISTINCT VALUE c.n FROM c", list(range(7))),
        ("SELECT DISTINCT VALUE c.n FROM c ORDER BY c.n", list(range(7))),
        ("SELECT VALUE c.n FROM c ORDER BY c.n OFFSET 20 LIMIT 9", sorted(number % 7 for number in range(ITEMS))[20:29]),
        ("SELECT VALUE COUNT(1) FROM c", [ITEMS]),
        ("SELECT TOP 5 VALUE c.id FROM c ORDER BY c.id", everything()[:5]),
    ],
)
def test_what_the_client_merges_is_right_when_its_ranges_are_old(world, change, query, expected):
    def ask():
        return sorted(world.container.query_items(query, enable_cross_partition_query=True, max_item_count=3))

    before(world, change)
    assert ask() == expected
    after(world, change)
    assert ask() == expected


@CHANGES
def test_a_continuation_kept_by_the_application_is_good_afterwards(world, change):
    before(world, change)

    def pages(continuation=None):
        query = world.container.query_items("SELECT * FROM c", enable_cross_partition_query=True, max_item_count=7)
        return query.by_page(continuation)

    first = pages()
    seen = list(next(first))
    kept = first.continuation_token
    after(world, change)
    for page in pages(kept):
        seen += page
    assert sorted(item["id"] for item in seen) == everything()


@CHANGES
def test_a_change_feed_goes_on_behind_its_token(world, change):
    before(world, change)

    def drain(**options):
        changes = list(world.container.query_items_change_feed(**options))
        return [item["id"] for item in changes], world.container.client_connection.last_response_headers["etag"]

    seen, token = drain(start_time="Beginning")
    assert sorted(seen) == everything()
    for number in (1, 2, 3):
        world.write(number, again=True)
    after(world, change)
    for number in (3, 4, 5):
        world.write(number, again=True)
    seen, token = drain(continuation=token)
    assert sorted(set(seen)) == ["001", "002", "003", "004", "005"]
    assert drain(continuation=token)[0] == []


@CHANGES
def test_a_session_goes_on(world, change):
    before(world, change)
    world.write(9, mark=1)
    after(world, change)
    assert world.container.read_item("009", "k9")["mark"] == 1
    world.write(9, mark=2)
    assert world.container.read_item("009", "k9")["mark"] == 2
