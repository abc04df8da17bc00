//! A lean Cosmos DB NoSQL driver.
