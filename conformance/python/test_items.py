"""Point operations on items."""

import pytest
from azure.core import MatchConditions
from azure.cosmos import exceptions


def refusal(status, action, *arguments, **options):
    """The error an action ends with, after checking its status."""
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        action(*arguments, **options)
    assert refused.value.status_code == status, refused.value
    return refused.value


def test_a_created_item_reads_back_with_its_system_properties(container):
    created = container.create_item({"id": "1", "pk": "a", "nested": {"list": [1, None, True, "x"]}})
    read = container.read_item("1", "a")
    assert read == created
    assert read["nested"] == {"list": [1, None, True, "x"]}
    assert {"_rid", "_self", "_etag", "_ts", "_attachments"} <= set(read)


def test_numbers_and_text_keep_their_value(container):
    values = {
        "large": 9007199254740993,
        "negative": -1.5e-7,
        "third": 1 / 3,
        "text": 'quote " slash \\ tab \t snowman \u2603 clef \U0001d11e',
        "empty": "",
    }
    container.create_item({"id": "1", "pk": "a", **values})
    read = container.read_item("1", "a")
    assert {name: read[name] for name in values} == values


def test_creating_an_item_twice_is_refused_with_409(container):
    container.create_item({"id": "1", "pk": "a"})
    refusal(409, container.create_item, {"id": "1", "pk": "a"})


def test_the_same_id_lives_once_per_partition_key(container):
    container.create_item({"id": "1", "pk": "a", "from": "a"})
    container.create_item({"id": "1", "pk": "b", "from": "b"})
    assert container.read_item("1", "a")["from"] == "a"
    assert container.read_item("1", "b")["from"] == "b"


def test_a_missing_item_is_refused_with_404(container):
    refusal(404, container.read_item, "nobody", "a")
    refusal(404, container.delete_item, "nobody", "a")
    refusal(404, container.replace_item, "nobody", {"id": "nobody", "pk": "a"})


def test_upsert_creates_then_replaces_under_the_same_identity(container):
    created = container.upsert_item({"id": "1", "pk": "a", "n": 1})
    replaced = container.upsert_item({"id": "1", "pk": "a", "n": 2})
    assert container.read_item("1", "a")["n"] == 2
    assert replaced["_rid"] == created["_rid"]
    assert replaced["_etag"] != created["_etag"]


def test_replace_changes_the_etag_and_delete_removes_the_item(container):
    created = container.create_item({"id": "1", "pk": "a", "n": 1})
    replaced = container.replace_item("1", {"id": "1", "pk": "a", "n": 2})
    assert replaced["n"] == 2
    assert replaced["_etag"] != created["_etag"]
    assert replaced["_rid"] == created["_rid"]
    container.delete_item("1", "a")
    refusal(404, container.read_item, "1", "a")


def test_a_stale_etag_is_refused_with_412_on_every_write(container):
    stale = container.create_item({"id": "1", "pk": "a", "n": 1})["_etag"]
    fresh = container.replace_item("1", {"id": "1", "pk": "a", "n": 2})["_etag"]
    condition = {"etag": stale, "match_condition": MatchConditions.IfNotModified}
    refusal(412, container.replace_item, "1", {"id": "1", "pk": "a", "n": 3}, **condition)
    refusal(412, container.upsert_item, {"id": "1", "pk": "a", "n": 3}, **condition)
    refusal(412, container.delete_item, "1", "a", **condition)
    patch = [{"op": "set", "path": "/n", "value": 3}]
    refusal(412, container.patch_item, "1", "a", patch, **condition)
    assert container.read_item("1", "a")["n"] == 2
    condition["etag"] = fresh
    assert container.replace_item("1", {"id": "1", "pk": "a", "n": 4}, **condition)["n"] == 4


def test_a_read_of_an_unchanged_item_answers_304_without_a_body(container):
    etag = container.create_item({"id": "1", "pk": "a"})["_etag"]
    condition = {"etag": etag, "match_condition": MatchConditions.IfModified}
    assert not container.read_item("1", "a", **condition)
    container.replace_item("1", {"id": "1", "pk": "a", "n": 2})
    assert container.read_item("1", "a", **condition)["n"] == 2


def test_no_response_on_write_leaves_the_body_out_and_keeps_the_etag(container):
    answer = container.create_item({"id": "1", "pk": "a"}, no_response=True)
    assert not dict(answer)
    assert answer.get_response_headers()["etag"] == container.read_item("1", "a")["_etag"]


def test_items_with_null_missing_and_typed_partition_keys_are_told_apart(container):
    from azure.cosmos.partition_key import NonePartitionKeyValue, NullPartitionKeyValue

    for value in (True, False, 0, 1.5, "1.5", ""):
        container.create_item({"id": "same", "pk": value, "as": repr(value)})
    container.create_item({"id": "same", "pk": None, "as": "null"})
    container.create_item({"id": "same", "as": "missing"})
    for value in (True, False, 0, 1.5, "1.5", ""):
        assert container.read_item("same", value)["as"] == repr(value)
    assert container.read_item("same", NullPartitionKeyValue)["as"] == "null"
    assert container.read_item("same", NonePartitionKeyValue)["as"] == "missing"


def test_an_item_over_two_megabytes_is_refused_with_413(container):
    refusal(413, container.create_item, {"id": "1", "pk": "a", "text": "x" * (2 * 1024 * 1024 + 1)})


def test_an_id_that_the_service_does_not_allow_is_refused(container):
    refusal(400, container.create_item, {"id": "x" * 1024, "pk": "a"})
    refusal(400, container.create_item, {"id": "", "pk": "a"})


def test_ids_with_unusual_characters_round_trip(container):
    for name in ("with space", "ünïcödé ☃", "100%", "a+b&c=d", "'quoted'", "semi;colon", "a@b.c:d"):
        container.create_item({"id": name, "pk": name})
        assert container.read_item(name, name)["id"] == name
        container.delete_item(name, name)


def test_each_answer_carries_a_charge_and_a_session_token(container):
    answer = container.create_item({"id": "1", "pk": "a"})
    headers = answer.get_response_headers()
    assert float(headers["x-ms-request-charge"]) > 1
    assert "#" in headers["x-ms-session-token"]
    read = container.read_item("1", "a").get_response_headers()
    assert float(read["x-ms-request-charge"]) == 1


def test_a_wrong_key_is_refused_with_401(endpoint):
    from azure.cosmos import CosmosClient

    wrong = "d3Jvbmcga2V5IHdyb25nIGtleSB3cm9uZyBrZXkgd3Jvbmcga2V5IHdyb25nIGtleSB3cm9uZyBrZXkgMTIzNA=="
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        CosmosClient(endpoint, wrong).get_database_account()
    assert refused.value.status_code == 401


def test_all_items_of_one_partition_key_are_read_together(container):
    for number in range(5):
        container.create_item({"id": str(number), "pk": "a" if number < 3 else "b"})
    found = container.query_items("SELECT * FROM c", partition_key="a")
    assert sorted(item["id"] for item in found) == ["0", "1", "2"]
    assert sorted(item["id"] for item in container.read_all_items()) == ["0", "1", "2", "3", "4"]


def test_read_items_fetches_many_items_across_partitions_and_leaves_out_the_missing(container):
    wanted = []
    for number in range(25):
        container.create_item({"id": f"i{number}", "pk": f"k{number % 7}", "n": number})
        wanted.append((f"i{number}", f"k{number % 7}"))
    found = container.read_items([*wanted, ("nobody", "k0")])
    assert sorted(item["n"] for item in found) == list(range(25))
