"""Queries within and across partitions, as the SDK plans, sends and merges them."""

import pytest
from azure.cosmos import exceptions


def across(container, query, parameters=None, **options):
    return list(container.query_items(query, parameters=parameters, enable_cross_partition_query=True, **options))


def test_a_filter_with_parameters_finds_its_items_in_every_partition(people):
    query = "SELECT * FROM c WHERE c.city = @city AND c.age >= @age"
    parameters = [{"name": "@city", "value": "Rome"}, {"name": "@age", "value": 25}]
    found = across(people, query, parameters)
    assert sorted(item["rank"] for item in found) == [5, 9, 17, 25, 29, 37]


def test_order_by_merges_the_partitions(people):
    assert across(people, "SELECT VALUE c.rank FROM c ORDER BY c.rank") == list(range(40))
    assert across(people, "SELECT VALUE c.rank FROM c ORDER BY c.rank DESC") == list(range(39, -1, -1))


def test_order_by_keeps_its_order_over_pages(people):
    pages = people.query_items(
        "SELECT * FROM c ORDER BY c.rank", enable_cross_partition_query=True, max_item_count=3
    ).by_page()
    assert [item["rank"] for page in pages for item in page] == list(range(40))


def test_order_by_two_paths_uses_the_composite_index(make_container):
    policy = {
        "includedPaths": [{"path": "/*"}],
        "compositeIndexes": [[{"path": "/a", "order": "ascending"}, {"path": "/b", "order": "descending"}]],
    }
    container = make_container(indexing_policy=policy)
    for number in range(20):
        container.create_item({"id": str(number), "pk": f"k{number % 6}", "a": number % 4, "b": number})
    found = across(container, "SELECT c.a, c.b FROM c ORDER BY c.a ASC, c.b DESC")
    expected = sorted(((number % 4, number) for number in range(20)), key=lambda pair: (pair[0], -pair[1]))
    assert [(item["a"], item["b"]) for item in found] == expected


def test_order_by_two_paths_without_a_composite_index_is_refused_with_400(people):
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        across(people, "SELECT * FROM c ORDER BY c.age, c.rank")
    assert refused.value.status_code == 400


def test_mixed_types_order_as_undefined_null_boolean_number_text(container):
    values = ["text", 5, True, None, False, -1.5, "", "a"]
    for number, value in enumerate(values):
        container.create_item({"id": str(number), "pk": "a", "v": value})
    container.create_item({"id": "none", "pk": "a"})
    found = container.query_items("SELECT c.id, c.v FROM c ORDER BY c.v", partition_key="a")
    assert [item.get("v", "undefined") for item in found] == [
        "undefined", None, False, True, -1.5, 5, "", "a", "text",
    ]


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("COUNT(1)", 40),
        ("SUM(c.rank)", 780),
        ("AVG(c.rank)", 19.5),
        ("MIN(c.rank)", 0),
        ("MAX(c.rank)", 39),
        ("COUNT(c.missing)", 0),
    ],
)
def test_an_aggregate_covers_every_partition(people, expression, expected):
    assert across(people, f"SELECT VALUE {expression} FROM c") == [expected]


def test_an_aggregate_over_nothing_has_the_service_s_answer(people):
    nothing = "FROM c WHERE c.rank > 1000"
    assert across(people, f"SELECT VALUE COUNT(1) {nothing}") == [0]
    assert across(people, f"SELECT VALUE SUM(c.rank) {nothing}") == [0]
    assert across(people, f"SELECT VALUE MIN(c.rank) {nothing}") == [None]


def test_distinct_covers_every_partition(people):
    assert sorted(across(people, "SELECT DISTINCT VALUE c.city FROM c")) == ["Cairo", "Lima", "Oslo", "Rome"]
    assert across(people, "SELECT DISTINCT VALUE c.age FROM c ORDER BY c.age") == list(range(20, 30))
    pairs = across(people, "SELECT DISTINCT c.city, c.age FROM c")
    assert len(pairs) == len({(pair["city"], pair["age"]) for pair in pairs}) == 20


def test_top_limits_the_answer_and_composes_with_order_by(people):
    assert len(across(people, "SELECT TOP 7 * FROM c")) == 7
    assert across(people, "SELECT TOP 3 VALUE c.rank FROM c ORDER BY c.rank DESC") == [39, 38, 37]
    top = [{"name": "@n", "value": 2}]
    assert across(people, "SELECT TOP @n VALUE c.rank FROM c ORDER BY c.rank", top) == [0, 1]


def test_offset_and_limit_cut_a_window_out_of_the_merged_order(people):
    query = "SELECT VALUE c.rank FROM c ORDER BY c.rank OFFSET 12 LIMIT 5"
    assert across(people, query) == [12, 13, 14, 15, 16]
    assert len(across(people, "SELECT * FROM c OFFSET 35 LIMIT 10")) == 5


def test_group_by_within_one_partition_counts_each_group(people):
    query = "SELECT c.city, COUNT(1) AS n FROM c GROUP BY c.city"
    found = people.query_items(query, partition_key="key1")
    assert [(item["city"], item["n"]) for item in found] == [("Rome", 5)]


def test_group_by_across_partitions_is_refused_as_this_sdk_cannot_merge_it(people):
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        across(people, "SELECT c.city, COUNT(1) AS n FROM c GROUP BY c.city")
    assert refused.value.status_code == 400


def test_a_join_unfolds_the_elements_of_a_list(people):
    found = across(people, "SELECT c.rank, t AS tag FROM c JOIN t IN c.tags WHERE t = 't2' AND c.rank < 8")
    assert sorted(item["rank"] for item in found) == [2, 2, 5, 7]


def test_subqueries_exists_and_array_expressions_evaluate(people):
    exists = "SELECT VALUE c.rank FROM c WHERE EXISTS (SELECT VALUE t FROM t IN c.tags WHERE t = 't4')"
    assert sorted(across(people, exists)) == [4, 9, 14, 19, 24, 29, 34, 39]
    array = "SELECT VALUE ARRAY(SELECT VALUE UPPER(t) FROM t IN c.tags) FROM c WHERE c.rank = 4"
    assert across(people, array) == [["T1", "T4"]]


@pytest.mark.parametrize(
    "condition, ranks",
    [
        ("c.city LIKE 'R%' AND c.rank < 10", [1, 5, 9]),
        ("c.rank BETWEEN 3 AND 5", [3, 4, 5]),
        ("c.rank IN (1, 2, 77)", [1, 2]),
        ("STARTSWITH(c.id, 'p0') AND c.rank > 7", [8, 9]),
        ("ARRAY_CONTAINS(c.tags, 't2') AND c.rank < 6", [2, 5]),
        ("IS_DEFINED(c.nothing) OR c.rank = 3", [3]),
        ("NOT (c.rank > 0)", [0]),
        ("c.address.number = 11", [11]),
        ("c['address']['street'] = 'Street 12'", [12]),
        ("c.rank % 20 = 7", [7, 27]),
        ("CONTAINS(c.city, 'lim', true) AND c.rank < 4", [2]),
    ],
)
def test_a_condition_finds_exactly_its_items(people, condition, ranks):
    assert sorted(across(people, f"SELECT VALUE c.rank FROM c WHERE {condition}")) == ranks


def test_projections_build_objects_lists_and_computed_values(people):
    query = "SELECT c.rank AS r, {'x': c.age} AS o, [c.rank, c.age] AS l, c.rank + 1 AS s, c.missing FROM c WHERE c.rank = 6"
    assert across(people, query) == [{"r": 6, "o": {"x": 26}, "l": [6, 26], "s": 7}]


def test_paging_one_partition_by_continuation_token_visits_each_item_once(container):
    for number in range(23):
        container.create_item({"id": f"{number:02}", "pk": "a"})
    seen, token = [], None
    while True:
        pages = container.query_items("SELECT * FROM c", partition_key="a", max_item_count=5).by_page(token)
        page = list(next(pages))
        assert len(page) <= 5
        seen += [item["id"] for item in page]
        token = pages.continuation_token
        if not token:
            break
    assert seen == sorted(set(seen)) and len(seen) == 23


def test_paging_across_partitions_visits_each_item_once(people):
    pages = people.query_items("SELECT * FROM c", enable_cross_partition_query=True, max_item_count=4).by_page()
    sizes, seen = [], []
    for page in pages:
        items = [item["rank"] for item in page]
        sizes.append(len(items))
        seen += items
    assert max(sizes) <= 4
    assert sorted(seen) == list(range(40))


def test_a_continuation_token_that_is_not_one_is_refused_with_400(people):
    pages = people.query_items("SELECT * FROM c", partition_key="key1").by_page("not a token")
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        next(pages)
    assert refused.value.status_code == 400


@pytest.mark.parametrize("query", ["SELEC * FROM c", "SELECT * FROM c WHERE", "SELECT * FROM c WHERE c.x = 'open", ""])
def test_a_query_that_does_not_parse_is_refused_with_400(people, query):
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        list(people.query_items(query, partition_key="key1"))
    assert refused.value.status_code == 400


def test_a_cross_partition_query_must_be_asked_for(make_container, endpoint):
    container = make_container()
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        list(container.query_items("SELECT * FROM c WHERE c.x = 1", enable_cross_partition_query=False))
    assert refused.value.status_code == 400


def test_a_query_sees_only_the_partition_key_it_names(people):
    found = list(people.query_items("SELECT VALUE c.rank FROM c", partition_key="key3"))
    assert sorted(found) == [3, 11, 19, 27, 35]
    assert list(people.query_items("SELECT VALUE COUNT(1) FROM c", partition_key="key3")) == [5]


def test_feed_ranges_split_a_query_without_loss_or_overlap(people):
    seen = []
    for feed_range in people.read_feed_ranges():
        seen += list(people.query_items("SELECT VALUE c.rank FROM c", feed_range=feed_range))
    assert sorted(seen) == list(range(40))
