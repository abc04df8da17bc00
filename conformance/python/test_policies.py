"""What a container enforces: time to live, unique keys, hierarchical partition keys."""

import pytest
from azure.cosmos import exceptions
from conftest import eventually


def is_gone(container, name, key):
    try:
        container.read_item(name, key)
    except exceptions.CosmosResourceNotFoundError:
        return True
    return False


def test_an_item_expires_after_the_container_s_time_to_live(make_container):
    container = make_container(default_ttl=1)
    container.create_item({"id": "short", "pk": "a"})
    container.create_item({"id": "kept", "pk": "a", "ttl": -1})
    container.create_item({"id": "long", "pk": "a", "ttl": 1000})
    eventually(lambda: is_gone(container, "short", "a"))
    assert sorted(container.query_items("SELECT VALUE c.id FROM c", partition_key="a")) == ["kept", "long"]
    container.create_item({"id": "short", "pk": "a", "ttl": -1})


def test_an_item_s_own_time_to_live_counts_only_if_the_container_has_one(make_container):
    off = make_container()
    on = make_container(default_ttl=-1)
    off.create_item({"id": "1", "pk": "a", "ttl": 1})
    on.create_item({"id": "1", "pk": "a", "ttl": 1})
    on.create_item({"id": "2", "pk": "a"})
    eventually(lambda: is_gone(on, "1", "a"))
    assert not is_gone(off, "1", "a")
    assert not is_gone(on, "2", "a")


@pytest.mark.parametrize("ttl", [0, -2, "soon", 1.5], ids=repr)
def test_a_time_to_live_that_is_not_one_is_refused_with_400(make_container, ttl):
    container = make_container(default_ttl=10)
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        container.create_item({"id": "1", "pk": "a", "ttl": ttl})
    assert refused.value.status_code == 400


def test_a_unique_key_holds_within_a_partition_key_and_not_across(make_container):
    policy = {"uniqueKeys": [{"paths": ["/email"]}, {"paths": ["/first", "/last"]}]}
    container = make_container(unique_key_policy=policy)
    container.create_item({"id": "1", "pk": "a", "email": "x@y", "first": "A", "last": "B"})
    with pytest.raises(exceptions.CosmosResourceExistsError):
        container.create_item({"id": "2", "pk": "a", "email": "x@y", "first": "C", "last": "D"})
    with pytest.raises(exceptions.CosmosResourceExistsError):
        container.create_item({"id": "3", "pk": "a", "email": "z@y", "first": "A", "last": "B"})
    container.create_item({"id": "4", "pk": "a", "email": "z@y", "first": "A", "last": "C"})
    container.create_item({"id": "5", "pk": "b", "email": "x@y", "first": "A", "last": "B"})
    with pytest.raises(exceptions.CosmosResourceExistsError):
        container.replace_item("4", {"id": "4", "pk": "a", "email": "x@y", "first": "A", "last": "C"})
    container.delete_item("1", "a")
    container.create_item({"id": "6", "pk": "a", "email": "x@y", "first": "A", "last": "B"})


@pytest.fixture
def cities(make_container):
    container = make_container(["/country", "/city", "/zip"])
    for country, city, code in [
        ("NO", "Oslo", 1), ("NO", "Oslo", 2), ("NO", "Bergen", 1), ("IT", "Rome", 1), ("IT", "Oslo", 1), ("PE", "Lima", 9),
    ]:
        name = f"{country}-{city}-{code}"
        container.create_item({"id": name, "country": country, "city": city, "zip": code})
    return container


def test_a_hierarchical_key_addresses_an_item_by_all_its_parts(cities):
    assert cities.read_item("NO-Oslo-2", ["NO", "Oslo", 2])["zip"] == 2
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        cities.read_item("NO-Oslo-2", ["NO", "Oslo", 1])
    cities.delete_item("NO-Oslo-2", ["NO", "Oslo", 2])
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        cities.read_item("NO-Oslo-2", ["NO", "Oslo", 2])


def test_a_prefix_of_a_hierarchical_key_scopes_a_query(cities):
    def ids(key):
        return sorted(cities.query_items("SELECT VALUE c.id FROM c", partition_key=key))

    assert ids(["NO"]) == ["NO-Bergen-1", "NO-Oslo-1", "NO-Oslo-2"]
    assert ids(["NO", "Oslo"]) == ["NO-Oslo-1", "NO-Oslo-2"]
    assert ids(["NO", "Oslo", 2]) == ["NO-Oslo-2"]
    assert ids(["SE"]) == []


def test_queries_across_hierarchical_keys_see_everything(cities):
    query = "SELECT VALUE c.id FROM c WHERE c.city = 'Oslo' ORDER BY c.id"
    found = list(cities.query_items(query, enable_cross_partition_query=True))
    assert found == ["IT-Oslo-1", "NO-Oslo-1", "NO-Oslo-2"]
