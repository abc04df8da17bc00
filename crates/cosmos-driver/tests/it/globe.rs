//! The emulator with several regions, one container `db/items`, and a mood per region.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cosmos_driver::{Builder, CallOptions, ContainerProperties, Credential, Driver};
use cosmos_emulator::{
    Config, Emulator, Failover, FaultGuard, FaultRule, Offline, Operation, Verdict, WriteMode,
};

/// How a region behaves towards requests for items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Well,
    Status(u16, u32),
    Slow(Duration),
    Hanging,
    /// Executes the request and breaks the stream instead of answering.
    Forgetful,
}

/// An emulated account.
pub(crate) struct Globe {
    pub(crate) emulator: Emulator,
    pub(crate) names: Vec<String>,
    moods: Mutex<Vec<(usize, FaultGuard)>>,
}

impl Globe {
    pub(crate) async fn start(names: &[&str]) -> Self {
        Self::with(Config::default().with_regions(names)).await
    }

    pub(crate) async fn multi_write(names: &[&str]) -> Self {
        Self::with(Config::default().with_regions(names).with_write_mode(WriteMode::Multiple)).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let emulator = Emulator::start(config).expect("the emulator starts");
        let names = emulator.regions().list().into_iter().map(|region| region.name).collect();
        let globe = Self { emulator, names, moods: Mutex::default() };
        let driver = globe.builder().build().await.expect("the driver starts");
        driver.create_database("db", CallOptions::default()).await.expect("created");
        let properties = ContainerProperties::new("items", &["/pk"]);
        let database = driver.database("db");
        database.create_container(&properties, None, CallOptions::default()).await.expect("created");
        globe
    }

    pub(crate) fn endpoint(&self) -> String {
        self.emulator.endpoint()
    }

    /// A driver that prefers the regions in their order.
    pub(crate) fn builder(&self) -> Builder {
        Driver::builder(self.endpoint(), Credential::emulator()).preferred_regions(self.names.clone())
    }

    /// Replaces a region's mood; requests that hang go on.
    pub(crate) fn mood(&self, region: usize, mood: Mood) {
        let mut moods = self.moods.lock().unwrap_or_else(PoisonError::into_inner);
        moods.retain(|(known, _)| *known != region);
        let verdict = match mood {
            Mood::Well => return,
            Mood::Status(code, sub_status) => Verdict::Status { code, sub_status, retry_after: None },
            Mood::Slow(duration) => Verdict::Delay { duration },
            Mood::Hanging => Verdict::Hang,
            Mood::Forgetful => Verdict::ResetAfterCommit,
        };
        for operation in ABOUT_ITEMS {
            let mut rule = FaultRule::new(verdict.clone()).on(operation);
            rule.region = Some(self.names[region].clone());
            moods.push((region, self.emulator.faults().add(rule)));
        }
    }

    /// How many requests have met a region's mood.
    pub(crate) fn struck(&self, region: usize) -> u64 {
        let moods = self.moods.lock().unwrap_or_else(PoisonError::into_inner);
        moods.iter().filter(|(known, _)| *known == region).map(|(_, rule)| rule.struck()).sum()
    }

    /// Moves the write region; nothing is lost.
    pub(crate) fn write_region(&self, region: usize) {
        self.emulator
            .regions()
            .fail_over(&self.names[region], Failover::Planned)
            .expect("both are reachable");
    }

    /// Refuses connections to a region, and cuts those there are.
    pub(crate) fn down(&self, region: usize) {
        self.offline(region, Offline::Refuse);
    }

    pub(crate) fn offline(&self, region: usize, manner: Offline) {
        self.emulator.regions().take_offline(&self.names[region], manner).expect("a region");
    }

    pub(crate) fn up(&self, region: usize) {
        self.emulator.regions().bring_online(&self.names[region]).expect("a region");
    }

    /// Lets no write of others arrive in a region.
    pub(crate) fn fall_behind(&self, region: usize) {
        self.emulator.regions().pause_replication(&self.names[region]).expect("a region");
    }

    pub(crate) fn catch_up(&self, region: usize) {
        self.emulator.regions().resume_replication(&self.names[region]).expect("a region");
    }

    /// Tells every connection to finish and go.
    pub(crate) fn go_away(&self) {
        self.emulator.goaway();
    }

    /// How often the account document was read.
    pub(crate) fn account_reads(&self) -> u64 {
        let snapshot = self.emulator.ledger().snapshot();
        let lines = snapshot.lines.iter().filter(|line| line.operation == Operation::ReadAccount);
        lines.map(|line| line.totals.requests).sum()
    }
}

const ABOUT_ITEMS: [Operation; 9] = [
    Operation::CreateItem,
    Operation::UpsertItem,
    Operation::ReadItem,
    Operation::ReplaceItem,
    Operation::PatchItem,
    Operation::DeleteItem,
    Operation::Batch,
    Operation::Bulk,
    Operation::Query,
];
