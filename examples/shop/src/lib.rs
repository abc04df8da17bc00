//! A shop that takes orders: what the worker and the client have in common.
//!
//! ```text
//! shop order rye 12         ->  Cosmos DB  ->  shop-worker   (as many as you like)
//! shop packed order-1       ->             ->
//! ```
//!
//! An order is reserved and paid, then waits for somebody to pack it, for two days at most, and is shipped. What was done
//! is undone when a later step fails. Since release 1.1 the customer is asked a week later whether all was well.

mod activities;
mod settings;
mod workflows;

pub use activities::{Outside, activities};
pub use settings::Settings;
pub use workflows::{ASK_AFTER, ORDER, Order, PACK_WITHIN, PACKED, Receipt, Release, orchestrations};
