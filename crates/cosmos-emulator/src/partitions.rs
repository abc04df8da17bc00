//! Physical partitions by command: watched, split, merged.

use std::sync::Arc;

use crate::emulator::Emulator;
use crate::engine::{Container, Engine, PartitionOperation, PartitionReport, Progression, SplitMode};
use crate::failure::Failure;

impl Emulator {
    /// What each physical partition of a container holds and does: consumption for finding hot ones, items, bytes.
    ///
    /// # Errors
    /// 404 without such a container.
    pub fn partitions(&self, database: &str, container: &str) -> Result<Vec<PartitionReport>, Failure> {
        self.engine().partition_reports(&*self.container(database, container)?)
    }

    /// Splits the physical partition with this range id in two.
    ///
    /// # Errors
    /// 404 without such a container or range, 400 for a place outside of it, 409 while another operation changes the
    /// container's partitions.
    #[expect(clippy::needless_pass_by_value, reason = "the mode is usually a literal")]
    pub fn split(
        &self,
        database: &str,
        container: &str,
        range: u32,
        mode: SplitMode,
        progression: Progression,
    ) -> Result<PartitionOperation, Failure> {
        self.engine().split(&*self.container(database, container)?, range, &mode, progression)
    }

    /// Merges two neighbouring physical partitions.
    ///
    /// # Errors
    /// 404 without such a container or range, 400 if they are no neighbours, 409 while another operation changes the
    /// container's partitions.
    pub fn merge(
        &self,
        database: &str,
        container: &str,
        ranges: [u32; 2],
        progression: Progression,
    ) -> Result<PartitionOperation, Failure> {
        self.engine().merge(&*self.container(database, container)?, ranges, progression)
    }

    /// A split or merge by its id, as far as it is now.
    ///
    /// # Errors
    /// 404 for an id nobody got.
    pub fn operation(&self, id: u64) -> Result<PartitionOperation, Failure> {
        self.engine().operation(id)
    }

    /// All splits and merges, oldest first.
    ///
    /// # Errors
    /// 500 when the store fails.
    pub fn operations(&self) -> Result<Vec<PartitionOperation>, Failure> {
        self.engine().operations()
    }

    /// Moves a split or merge to its next phase, whatever its progression; one that succeeded stays as it is.
    ///
    /// # Errors
    /// 404 for an id nobody got.
    pub fn advance(&self, id: u64) -> Result<PartitionOperation, Failure> {
        self.engine().advance(id)
    }

    fn engine(&self) -> &Engine {
        &self.account.engine
    }

    fn container(&self, database: &str, container: &str) -> Result<Arc<Container>, Failure> {
        self.engine().container(database, container)
    }
}
