//! The Cosmos DB storage provider of duroxide.
