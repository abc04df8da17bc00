//! `cdb`: durable workflows on Cosmos DB from the command line.

fn main() {}
