"""The change feed, incremental."""

from datetime import datetime, timedelta, timezone

from conftest import eventually


def drain(container, **options):
    """The changes until the feed has no more, and the token to go on from."""
    changes = list(container.query_items_change_feed(**options))
    return changes, container.client_connection.last_response_headers["etag"]


def ids(changes):
    return sorted(change["id"] for change in changes)


def test_from_the_beginning_each_item_comes_once_with_its_latest_version(container):
    for number in range(10):
        container.create_item({"id": str(number), "pk": f"k{number % 4}", "v": 1})
    container.replace_item("3", {"id": "3", "pk": "k3", "v": 2})
    container.delete_item("4", "k0")
    changes, _ = drain(container, start_time="Beginning")
    assert ids(changes) == ["0", "1", "2", "3", "5", "6", "7", "8", "9"]
    assert [change["v"] for change in changes if change["id"] == "3"] == [2]


def test_from_now_only_what_is_written_afterwards_comes(container):
    container.create_item({"id": "before", "pk": "a"})
    changes, token = drain(container, start_time="Now")
    assert changes == []
    container.create_item({"id": "after", "pk": "b"})
    changes, _ = drain(container, continuation=token)
    assert ids(changes) == ["after"]


def test_the_feed_resumes_where_its_token_was_taken(container):
    container.create_item({"id": "1", "pk": "a"})
    container.create_item({"id": "2", "pk": "b"})
    changes, token = drain(container, start_time="Beginning")
    assert ids(changes) == ["1", "2"]
    assert drain(container, continuation=token)[0] == []
    container.upsert_item({"id": "1", "pk": "a", "again": True})
    container.create_item({"id": "3", "pk": "c"})
    changes, token = drain(container, continuation=token)
    assert ids(changes) == ["1", "3"]
    assert drain(container, continuation=token)[0] == []


def test_from_a_time_only_later_changes_come(container):
    first = container.create_item({"id": "early", "pk": "a"})

    def is_a_later_second():
        container.upsert_item({"id": "late", "pk": "a"})
        return container.read_item("late", "a")["_ts"] >= first["_ts"] + 2

    eventually(is_a_later_second)
    since = datetime.fromtimestamp(first["_ts"], timezone.utc) + timedelta(seconds=1)
    changes, _ = drain(container, start_time=since)
    assert ids(changes) == ["late"]


def test_one_partition_key_has_a_feed_of_its_own(container):
    for number in range(12):
        container.create_item({"id": str(number), "pk": f"k{number % 3}"})
    changes, token = drain(container, start_time="Beginning", partition_key="k1")
    assert ids(changes) == ["1", "10", "4", "7"]
    container.create_item({"id": "other", "pk": "k0"})
    container.create_item({"id": "mine", "pk": "k1"})
    changes, _ = drain(container, continuation=token)
    assert ids(changes) == ["mine"]


def test_the_feeds_of_all_ranges_together_are_the_whole_feed(container):
    for number in range(30):
        container.create_item({"id": str(number), "pk": f"k{number}"})
    seen = []
    for feed_range in container.read_feed_ranges():
        seen += drain(container, start_time="Beginning", feed_range=feed_range)[0]
    assert sorted(int(change["id"]) for change in seen) == list(range(30))


def test_the_feed_comes_in_pages_of_the_size_asked_for_in_order_of_change(container):
    for number in range(11):
        container.create_item({"id": f"{number:02}", "pk": "a"})
    pages = container.query_items_change_feed(start_time="Beginning", partition_key="a", max_item_count=4).by_page()
    pages = [[change["id"] for change in page] for page in pages]
    assert all(len(page) <= 4 for page in pages)
    assert [name for page in pages for name in page] == [f"{number:02}" for number in range(11)]
