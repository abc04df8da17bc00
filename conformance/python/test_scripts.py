"""Stored procedures, triggers, user defined functions, computed properties and vectors."""

import pytest
from azure.cosmos import exceptions


def test_a_stored_procedure_runs_in_its_partition(container):
    body = """function (name) {
        var all = getContext().getCollection();
        all.createDocument(all.getSelfLink(), {id: name, pk: 'a'}, function (error, made) {
            if (error) throw error;
            getContext().getResponse().setBody({made: made.id});
        });
    }"""
    container.scripts.create_stored_procedure({"id": "make", "body": body})
    answer = container.scripts.execute_stored_procedure("make", partition_key="a", params=["one"])
    assert answer == {"made": "one"}
    assert container.read_item("one", "a")["id"] == "one"
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        container.scripts.execute_stored_procedure("make", partition_key="a", params=["one"])
    assert refused.value.status_code == 400
    assert [script["id"] for script in container.scripts.list_stored_procedures()] == ["make"]
    container.scripts.delete_stored_procedure("make")
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        container.scripts.get_stored_procedure("make")


def test_a_trigger_runs_when_it_is_named(container):
    body = "function () { var r = getContext().getRequest(), b = r.getBody(); b.stamp = 1; r.setBody(b); }"
    container.scripts.create_trigger(
        {"id": "stamp", "serverScript": body, "body": body, "triggerType": "Pre", "triggerOperation": "Create"}
    )
    made = container.create_item({"id": "1", "pk": "a"}, pre_trigger_include="stamp")
    assert made["stamp"] == 1
    assert "stamp" not in container.create_item({"id": "2", "pk": "a"})


def test_a_query_calls_a_user_defined_function(container):
    container.scripts.create_user_defined_function({"id": "twice", "body": "function (n) { return n * 2; }"})
    container.create_item({"id": "1", "pk": "a", "n": 21})
    query = "SELECT VALUE udf.twice(c.n) FROM c"
    assert list(container.query_items(query, partition_key="a")) == [42]


def test_computed_properties_are_seen_by_queries(make_container):
    properties = [{"name": "lower", "query": "SELECT VALUE LOWER(c.s) FROM c"}]
    container = make_container(computed_properties=properties)
    container.create_item({"id": "1", "pk": "a", "s": "ABC"})
    assert container.read()["computedProperties"] == properties
    query = "SELECT VALUE c.lower FROM c WHERE c.lower = 'abc'"
    assert list(container.query_items(query, partition_key="a")) == ["abc"]


@pytest.mark.parametrize("function, expected", [("euclidean", ["near", "far"]), ("dotproduct", ["far", "near"])])
def test_vectors_are_compared_by_the_function_of_the_container(make_container, function, expected):
    embedding = {"path": "/v", "dataType": "float32", "dimensions": 2, "distanceFunction": function}
    container = make_container(vector_embedding_policy={"vectorEmbeddings": [embedding]})
    container.create_item({"id": "near", "pk": "a", "v": [1, 0]})
    container.create_item({"id": "far", "pk": "b", "v": [9, 1]})
    query = "SELECT TOP 2 c.id FROM c ORDER BY VectorDistance(c.v, [1, 0])"
    rows = container.query_items(query, enable_cross_partition_query=True)
    assert [row["id"] for row in rows] == expected
