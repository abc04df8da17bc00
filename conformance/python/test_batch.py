"""Transactional batches: all of it or nothing."""

import pytest
from azure.cosmos import exceptions


def ids(container):
    return sorted(item["id"] for item in container.query_items("SELECT c.id FROM c", partition_key="a"))


def test_a_batch_of_every_kind_applies_in_order_and_answers_each(container):
    for name in ("replaced", "deleted", "patched", "read"):
        container.create_item({"id": name, "pk": "a", "n": 1})
    results = container.execute_item_batch(
        [
            ("create", ({"id": "created", "pk": "a"},)),
            ("upsert", ({"id": "upserted", "pk": "a"},)),
            ("replace", ("replaced", {"id": "replaced", "pk": "a", "n": 2})),
            ("read", ("read",)),
            ("delete", ("deleted",)),
            ("patch", ("patched", [{"op": "incr", "path": "/n", "value": 1}])),
        ],
        partition_key="a",
    )
    assert [result["statusCode"] for result in results] == [201, 201, 200, 200, 204, 200]
    assert results[3]["resourceBody"]["id"] == "read"
    assert results[5]["resourceBody"]["n"] == 2
    assert ids(container) == ["created", "patched", "read", "replaced", "upserted"]


def test_a_batch_that_fails_rolls_back_and_names_the_operation(container):
    container.create_item({"id": "there", "pk": "a", "n": 1})
    with pytest.raises(exceptions.CosmosBatchOperationError) as refused:
        container.execute_item_batch(
            [
                ("create", ({"id": "new", "pk": "a"},)),
                ("patch", ("there", [{"op": "incr", "path": "/n", "value": 1}])),
                ("create", ({"id": "there", "pk": "a"},)),
                ("upsert", ({"id": "later", "pk": "a"},)),
            ],
            partition_key="a",
        )
    assert refused.value.error_index == 2
    assert [result["statusCode"] for result in refused.value.operation_responses] == [424, 424, 409, 424]
    assert ids(container) == ["there"]
    assert container.read_item("there", "a")["n"] == 1


def test_a_stale_etag_in_a_batch_is_refused_with_412_and_rolls_back(container):
    stale = container.create_item({"id": "1", "pk": "a"})["_etag"]
    fresh = container.replace_item("1", {"id": "1", "pk": "a", "n": 1})["_etag"]

    def batch(etag):
        return container.execute_item_batch(
            [
                ("create", ({"id": "2", "pk": "a"},)),
                ("replace", ("1", {"id": "1", "pk": "a", "n": 2}), {"if_match_etag": etag}),
            ],
            partition_key="a",
        )

    with pytest.raises(exceptions.CosmosBatchOperationError) as refused:
        batch(stale)
    assert [result["statusCode"] for result in refused.value.operation_responses] == [424, 412]
    assert ids(container) == ["1"]
    assert [result["statusCode"] for result in batch(fresh)] == [201, 200]
    assert ids(container) == ["1", "2"]


def test_a_later_operation_sees_what_an_earlier_one_of_its_batch_wrote(container):
    results = container.execute_item_batch(
        [
            ("create", ({"id": "1", "pk": "a", "n": 1},)),
            ("patch", ("1", [{"op": "incr", "path": "/n", "value": 1}])),
            ("read", ("1",)),
        ],
        partition_key="a",
    )
    assert results[2]["resourceBody"]["n"] == 2


def test_a_patch_condition_that_does_not_hold_rolls_the_batch_back(container):
    container.create_item({"id": "1", "pk": "a", "n": 1})
    with pytest.raises(exceptions.CosmosBatchOperationError) as refused:
        container.execute_item_batch(
            [
                ("create", ({"id": "2", "pk": "a"},)),
                (
                    "patch", ("1", [{"op": "incr", "path": "/n", "value": 1}]),
                    {"filter_predicate": "FROM c WHERE c.n = 7"},
                ),
            ],
            partition_key="a",
        )
    assert [result["statusCode"] for result in refused.value.operation_responses] == [424, 412]
    assert ids(container) == ["1"]


def test_a_hundred_operations_pass_and_a_hundred_and_one_are_refused_with_400(container):
    def batch(count):
        operations = [("upsert", ({"id": str(number), "pk": "a"},)) for number in range(count)]
        return container.execute_item_batch(operations, partition_key="a")

    assert len(batch(100)) == 100
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        batch(101)
    assert refused.value.status_code == 400


def test_an_operation_with_another_partition_key_fails_the_batch_with_400(container):
    with pytest.raises(exceptions.CosmosBatchOperationError) as refused:
        container.execute_item_batch(
            [("create", ({"id": "1", "pk": "a"},)), ("create", ({"id": "2", "pk": "b"},))], partition_key="a"
        )
    assert [result["statusCode"] for result in refused.value.operation_responses] == [424, 400]
    assert ids(container) == []


def test_a_batch_over_two_megabytes_is_refused_with_413(container):
    operations = [("create", ({"id": str(number), "pk": "a", "t": "x" * 700_000},)) for number in range(4)]
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        container.execute_item_batch(operations, partition_key="a")
    assert refused.value.status_code == 413
    assert ids(container) == []
