//! What a Cosmos DB client and a Cosmos DB server must agree on.
//!
//! Headers, statuses, resource ids and links, partition keys and their hash, session tokens,
//! signatures, batch and patch bodies, binary JSON, frames of Gateway 2.0, the order of values, number and date forms.
//! Pure functions over bytes and text: no I/O, no async, no
//! clock. Because client and server share this code, a mistake here would cancel out between them;
//! so each codec is pinned by vectors from outside: public SDKs, documentation, recordings.
//!
//! ```
//! use cosmos_wire::epk::Epk;
//! use cosmos_wire::partition_key::{Definition, PartitionKey};
//!
//! let definition = Definition::hash("/city")?;
//! let key: PartitionKey = r#"["redmond"]"#.parse()?;
//! assert_eq!(Epk::of(&key, &definition).to_hex(), "22E342F38A486A088463DFF7838A5963");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod batch;
pub mod binary_json;
pub mod date;
pub mod endpoint;
pub mod epk;
pub mod gateway2;
pub mod header;
pub mod mutant;
pub mod number;
pub mod partition_key;
pub mod patch;
pub mod resource;
pub mod rid;
pub mod session_token;
pub mod signature;
pub mod status;
pub mod value_order;

/// The key every Cosmos DB emulator accepts. It is public and protects nothing.
pub const EMULATOR_KEY: &str =
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==";

/// Port on which an emulator listens.
pub const EMULATOR_PORT: u16 = 8081;

/// API version the current SDKs send in `x-ms-version`.
pub const API_VERSION: &str = "2020-07-15";

/// Older version that Java still sends; it does not know hierarchical keys.
pub const API_VERSION_2018: &str = "2018-12-31";
