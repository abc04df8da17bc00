//! Who is compared, and how each is opened.

use std::sync::Arc;

use anyhow::anyhow;
use cosmos_emulator::Emulator;
use duroxide::providers::Provider;

use super::postgres::Postgres;

const DATABASE: &str = "compare";
const CONTAINER: &str = "flows";

/// A provider of duroxide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Public,
    Ours,
    Sqlite,
    Postgres,
}

impl Contender {
    /// Those that talk to our server; they come first in every table.
    pub const ON_COSMOS: [Self; 2] = [Self::Public, Self::Ours];

    /// As it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "duroxide-cdb 0.1.10",
            Self::Ours => "ours",
            Self::Sqlite => "SQLite",
            Self::Postgres => "duroxide-pg 0.1.38",
        }
    }

    /// Whether our server counts its requests.
    pub fn is_on_cosmos(self) -> bool {
        Self::ON_COSMOS.contains(&self)
    }
}

/// Everything contenders run on.
#[derive(Debug)]
pub struct Field {
    postgres: Result<Postgres, String>,
}

impl Field {
    /// Starts what has to be started.
    pub async fn new() -> Self {
        let postgres = Postgres::find().await.map_err(|error| format!("{error:#}"));
        match &postgres {
            Ok(_) => eprintln!("PostgreSQL is there"),
            Err(why) => eprintln!("without PostgreSQL: {why}"),
        }
        Self { postgres }
    }

    /// Nothing but our server.
    pub fn on_cosmos() -> Self {
        Self { postgres: Err("it is not asked for".to_owned()) }
    }

    /// Who takes part where only time compares.
    pub fn contenders(&self) -> Vec<Contender> {
        let mut contenders = Contender::ON_COSMOS.to_vec();
        contenders.push(Contender::Sqlite);
        if self.postgres.is_ok() {
            contenders.push(Contender::Postgres);
        }
        contenders
    }

    /// What to know about the contenders.
    pub fn note(&self) -> String {
        let note = "Nobody waits for a disk: the emulator and SQLite are in memory, PostgreSQL runs without fsync. \
                    SQLite has no server, PostgreSQL is not slowed.";
        [Some(note.to_owned()), self.note_of_absent()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Who does not take part.
    pub fn note_of_absent(&self) -> Option<String> {
        self.postgres.as_ref().err().map(|why| format!("duroxide-pg is missing: {why}."))
    }

    /// Opens a provider with nothing in it.
    pub async fn open(
        &self,
        contender: Contender,
        server: &Emulator,
        dispatchers: usize,
    ) -> anyhow::Result<Arc<dyn Provider>> {
        Ok(match contender {
            Contender::Public => {
                let dispatchers = u32::try_from(dispatchers)?;
                let config = public::CosmosDBProviderConfig {
                    endpoint: server.endpoint().trim_end_matches('/').to_owned(),
                    key: server.key().to_owned(),
                    database: DATABASE.to_owned(),
                    container: CONTAINER.to_owned(),
                    orch_concurrency: dispatchers,
                    worker_concurrency: dispatchers,
                    ..Default::default()
                };
                Arc::new(
                    public::CosmosDBProvider::new_with_config(config).await.map_err(|e| anyhow!("{e:?}"))?,
                )
            }
            Contender::Ours => Arc::new(
                ours::CosmosDBProvider::new_with_container(
                    &server.endpoint(),
                    server.key(),
                    DATABASE,
                    CONTAINER,
                )
                .await
                .map_err(|error| anyhow!("{error:?}"))?,
            ),
            Contender::Sqlite => Arc::new(
                duroxide::providers::sqlite::SqliteProvider::new_in_memory()
                    .await
                    .map_err(|error| anyhow!("{error:?}"))?,
            ),
            Contender::Postgres => self.postgres.as_ref().map_err(|why| anyhow!("{why}"))?.open().await?,
        })
    }
}
