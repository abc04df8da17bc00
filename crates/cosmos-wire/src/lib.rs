//! What a Cosmos DB client and a Cosmos DB server must agree on.
