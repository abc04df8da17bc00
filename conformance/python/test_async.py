"""The same areas through the asynchronous client, many requests in flight at once."""

import asyncio

import pytest
from azure.core import MatchConditions
from azure.cosmos import exceptions


async def test_items_written_concurrently_all_read_back(async_container):
    async def write(number):
        return await async_container.create_item({"id": str(number), "pk": f"k{number % 5}", "n": number})

    await asyncio.gather(*(write(number) for number in range(60)))
    items = await asyncio.gather(*(async_container.read_item(str(n), f"k{n % 5}") for n in range(60)))
    assert [item["n"] for item in items] == list(range(60))


async def test_of_many_conditional_writers_one_wins_each_round(async_container):
    item = await async_container.create_item({"id": "1", "pk": "a", "winner": None})

    async def attempt(number):
        try:
            return await async_container.replace_item(
                "1", {"id": "1", "pk": "a", "winner": number}, etag=item["_etag"],
                match_condition=MatchConditions.IfNotModified,
            )
        except exceptions.CosmosAccessConditionFailedError:
            return None

    results = await asyncio.gather(*(attempt(number) for number in range(12)))
    winners = [result["winner"] for result in results if result]
    assert len(winners) == 1
    assert (await async_container.read_item("1", "a"))["winner"] == winners[0]


async def test_concurrent_increments_are_all_counted(async_container):
    await async_container.create_item({"id": "1", "pk": "a", "n": 0})
    operation = [{"op": "incr", "path": "/n", "value": 1}]
    await asyncio.gather(*(async_container.patch_item("1", "a", operation) for _ in range(30)))
    assert (await async_container.read_item("1", "a"))["n"] == 30


async def test_a_failing_batch_rolls_back(async_container):
    await async_container.create_item({"id": "1", "pk": "a"})
    with pytest.raises(exceptions.CosmosBatchOperationError) as refused:
        await async_container.execute_item_batch(
            [("upsert", ({"id": "2", "pk": "a"},)), ("create", ({"id": "1", "pk": "a"},))], partition_key="a"
        )
    assert [result["statusCode"] for result in refused.value.operation_responses] == [424, 409]
    found = async_container.query_items("SELECT VALUE c.id FROM c", partition_key="a")
    assert [name async for name in found] == ["1"]


async def test_order_by_and_aggregates_merge_the_partitions(async_container):
    for number in range(24):
        await async_container.create_item({"id": str(number), "pk": f"k{number % 6}", "n": number})
    ordered = async_container.query_items("SELECT VALUE c.n FROM c ORDER BY c.n DESC", max_item_count=5)
    assert [n async for n in ordered] == list(range(23, -1, -1))
    total = async_container.query_items("SELECT VALUE SUM(c.n) FROM c")
    assert [n async for n in total] == [276]
    window = async_container.query_items("SELECT VALUE c.n FROM c ORDER BY c.n OFFSET 20 LIMIT 2")
    assert [n async for n in window] == [20, 21]


async def test_the_change_feed_resumes_from_its_token(async_container):
    await async_container.create_item({"id": "1", "pk": "a"})
    pages = async_container.query_items_change_feed(start_time="Beginning").by_page()
    first = [change["id"] async for page in pages async for change in page]
    await async_container.create_item({"id": "2", "pk": "b"})
    again = async_container.query_items_change_feed(continuation=pages.continuation_token)
    assert (first, [change["id"] async for change in again]) == (["1"], ["2"])


async def test_read_items_fetches_many(async_container):
    for number in range(10):
        await async_container.create_item({"id": str(number), "pk": f"k{number % 4}"})
    found = await async_container.read_items([(str(number), f"k{number % 4}") for number in range(10)])
    assert sorted(int(item["id"]) for item in found) == list(range(10))
