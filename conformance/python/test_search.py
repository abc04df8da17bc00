"""Full text and hybrid search, as the SDK plans and fuses them."""

import pytest
from azure.cosmos import exceptions

TEXTS = [
    ("1", "The red bicycle is fast", [1, 0]),
    ("2", "Red cars, red roofs and a very long tail of words about nothing in particular", [0, 1]),
    ("3", "A blue car", [0.9, 0.1]),
    ("4", "Bicycles for everybody: blue bicycles, green bicycles", [0.5, 0.5]),
]


@pytest.fixture
def library(make_container):
    container = make_container(
        full_text_policy={
            "defaultLanguage": "en-US",
            "fullTextPaths": [{"path": "/text", "language": "en-US"}],
        },
        indexing_policy={"includedPaths": [{"path": "/*"}], "fullTextIndexes": [{"path": "/text"}]},
    )
    for number, text, vector in TEXTS:
        container.create_item({"id": number, "pk": f"key{number}", "text": text, "v": vector})
    return container


def ids(container, query, **settings):
    return [row["id"] for row in container.query_items(query, enable_cross_partition_query=True, **settings)]


def test_words_are_found_by_their_stems_and_phrases_as_they_stand(library):
    assert ids(library, "SELECT c.id FROM c WHERE FullTextContains(c.text, 'bicycles') ORDER BY c.id") == ["1", "4"]
    assert ids(library, "SELECT c.id FROM c WHERE FullTextContains(c.text, 'red bicycle')") == ["1"]
    assert ids(library, "SELECT c.id FROM c WHERE FullTextContainsAll(c.text, 'blue', 'car')") == ["3"]
    any_of = "SELECT c.id FROM c WHERE FullTextContainsAny(c.text, 'roof', @word) ORDER BY c.id"
    assert ids(library, any_of, parameters=[{"name": "@word", "value": "fast"}]) == ["1", "2"]


def test_the_best_text_comes_first_over_all_partitions(library):
    query = "SELECT TOP 3 c.id FROM c ORDER BY RANK FullTextScore(c.text, 'bicycle')"
    assert ids(library, query)[:2] == ["4", "1"]
    query = "SELECT c.id FROM c ORDER BY RANK FullTextScore(c.text, @word) OFFSET 1 LIMIT 1"
    assert ids(library, query, parameters=[{"name": "@word", "value": "bicycle"}]) == ["1"]


def test_ranks_are_fused_by_weight(library):
    rank = "RRF(FullTextScore(c.text, 'bicycle'), VectorDistance(c.v, [1, 0]))"
    assert ids(library, f"SELECT TOP 1 c.id FROM c ORDER BY RANK {rank}") == ["1"]
    rank = "RRF(FullTextScore(c.text, 'bicycle'), VectorDistance(c.v, [1, 0]), [10, 0.1])"
    assert ids(library, f"SELECT TOP 1 c.id FROM c ORDER BY RANK {rank}") == ["4"]
    rank = "RRF(FullTextScore(c.text, 'bicycle'), VectorDistance(c.v, [1, 0]), [0.1, -10])"
    assert ids(library, f"SELECT TOP 1 c.id FROM c ORDER BY RANK {rank}") == ["2"]


def test_a_search_within_a_key_is_run_by_the_server(library):
    query = "SELECT TOP 2 c.id FROM c ORDER BY RANK FullTextScore(c.text, 'car')"
    assert [row["id"] for row in library.query_items(query, partition_key="key3")] == ["3"]


@pytest.mark.parametrize("rank", [
    "FullTextScore(c.text, 'car') DESC",
    "RRF(FullTextScore(c.text, 'car'), VectorDistance(c.v, [1, 0]), [1])",
    "c.n",
])
def test_what_cannot_be_ranked_is_refused(library, rank):
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        ids(library, f"SELECT TOP 2 c.id FROM c ORDER BY RANK {rank}")
    assert refused.value.status_code == 400
