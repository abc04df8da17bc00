"""Partial updates."""

import pytest
from azure.cosmos import exceptions

DOCUMENT = {
    "id": "1", "pk": "a", "count": 10, "name": "first", "list": [1, 2, 3], "nested": {"inner": "x", "other": "y"},
}


@pytest.fixture
def patched(container):
    container.create_item(DOCUMENT)

    def patch(*operations, **options):
        return container.patch_item("1", "a", list(operations), **options)

    return patch


def refused_with(status, action, *arguments, **options):
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        action(*arguments, **options)
    assert refused.value.status_code == status, refused.value


def test_all_six_operations_apply_in_order(patched):
    result = patched(
        {"op": "add", "path": "/added", "value": {"deep": True}},
        {"op": "set", "path": "/name", "value": "second"},
        {"op": "replace", "path": "/nested/inner", "value": "z"},
        {"op": "remove", "path": "/nested/other"},
        {"op": "incr", "path": "/count", "value": 5},
        {"op": "move", "from": "/name", "path": "/title"},
    )
    assert result["added"] == {"deep": True}
    assert result["title"] == "second"
    assert "name" not in result
    assert result["nested"] == {"inner": "z"}
    assert result["count"] == 15


def test_list_elements_are_added_inserted_appended_and_removed(patched):
    assert patched({"op": "add", "path": "/list/-", "value": 4})["list"] == [1, 2, 3, 4]
    assert patched({"op": "add", "path": "/list/0", "value": 0})["list"] == [0, 1, 2, 3, 4]
    assert patched({"op": "remove", "path": "/list/1"})["list"] == [0, 2, 3, 4]
    assert patched({"op": "replace", "path": "/list/0", "value": 9})["list"] == [9, 2, 3, 4]


def test_increment_creates_a_missing_number_and_takes_fractions(patched):
    assert patched({"op": "incr", "path": "/fresh", "value": 3})["fresh"] == 3
    assert patched({"op": "incr", "path": "/count", "value": -0.5})["count"] == 9.5


def test_a_condition_that_holds_lets_the_patch_through(patched):
    result = patched({"op": "set", "path": "/name", "value": "x"}, filter_predicate="FROM c WHERE c.count = 10")
    assert result["name"] == "x"


def test_a_condition_that_does_not_hold_is_refused_with_412_and_changes_nothing(container, patched):
    operation = {"op": "set", "path": "/name", "value": "x"}
    refused_with(412, patched, operation, filter_predicate="FROM c WHERE c.count > 10")
    assert container.read_item("1", "a")["name"] == "first"


def test_a_patch_of_a_missing_item_is_refused_with_404(container):
    refused_with(404, container.patch_item, "nobody", "a", [{"op": "set", "path": "/x", "value": 1}])


def test_a_patch_that_fails_midway_changes_nothing(container, patched):
    refused_with(
        400, patched, {"op": "set", "path": "/name", "value": "x"}, {"op": "remove", "path": "/not/there"}
    )
    assert container.read_item("1", "a")["name"] == "first"


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "set", "path": "/id", "value": "2"},
        {"op": "set", "path": "/pk", "value": "b"},
        {"op": "set", "path": "/_ts", "value": 1},
        {"op": "replace", "path": "/absent", "value": 1},
        {"op": "incr", "path": "/name", "value": 1},
        {"op": "twist", "path": "/name", "value": 1},
    ],
    ids=["the id", "the partition key", "a system property", "a missing path", "text incremented", "an unknown verb"],
)
def test_a_patch_the_service_does_not_allow_is_refused_with_400(patched, operation):
    refused_with(400, patched, operation)


def test_more_than_ten_operations_are_refused_with_400(patched):
    refused_with(400, patched, *[{"op": "set", "path": f"/p{number}", "value": 1} for number in range(11)])
    assert patched(*[{"op": "set", "path": f"/p{number}", "value": 1} for number in range(10)])["p9"] == 1
