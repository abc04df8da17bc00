//! The web pages: every workflow, why it waits, and what can be done about it.
//!
//! The life of a request: [`server`] reads it within limits; the guard shared with the emulator's management port and
//! [`access`] decide whether it is answered; [`route`] finds who answers; a file of [`api`] asks the account, with a
//! meter of its own, and the answer says what it cost. [`live`] is the one who looks for changes on behalf of all tabs,
//! and only while there is one. The pages are in [`assets`], as they are sent.

mod access;
mod answer;
mod api;
mod assets;
mod live;
mod plain;
mod route;
mod server;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use clap::Args;
use duroxide_cdb::CosmosDBProvider;
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;

use self::access::Access;
use self::api::care::Examination;
use self::live::Live;
use crate::context::Connection;
use crate::documents::Documents;
use crate::exit::Problem;
use crate::secret::Secret;

/// How the pages are served.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) bind: IpAddr,
    /// 0 takes any free one.
    pub(crate) port: u16,
    /// What opens the pages; made if there is none.
    pub(crate) token: Option<Secret>,
    /// What changes something is not served.
    pub(crate) is_read_only: bool,
    /// Request units per second that looking for changes may take.
    pub(crate) budget: f64,
}

/// The pages beside another command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Pages")]
pub(crate) struct SideArgs {
    /// Port of the pages; 0 takes any free one.
    #[arg(long, default_value_t = PORT, value_name = "PORT")]
    dashboard_port: u16,
}

impl SideArgs {
    /// For this machine only, with a token of each start.
    pub(crate) fn options(&self) -> Options {
        Options {
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: self.dashboard_port,
            token: std::env::var(TOKEN_VARIABLE).ok().map(Secret::from),
            is_read_only: false,
            budget: BUDGET,
        }
    }
}

/// Where the pages are unless told otherwise.
pub(crate) const PORT: u16 = 8083;
/// What looking may take unless told otherwise: a sixteenth of the smallest container's throughput.
pub(crate) const BUDGET: f64 = 25.0;
/// What opens the pages, if the operator chooses it.
pub(crate) const TOKEN_VARIABLE: &str = "CDB_DASHBOARD_TOKEN";

/// What the pages work on.
pub(crate) struct Store {
    connection: Arc<Connection>,
    documents: Documents,
    /// Opened by the first action or look that needs it, never by starting.
    provider: OnceCell<Arc<CosmosDBProvider>>,
    live: Live,
    examination: Mutex<Examination>,
    is_read_only: bool,
    /// Where the management port of the emulator is, if it is one.
    management: Option<String>,
    budget: f64,
}

impl Store {
    /// The container's documents, with a meter of their own.
    fn documents(&self) -> Documents {
        self.documents.metered()
    }

    /// The provider. It would make a container that is not there, which nobody asked for.
    async fn provider(&self) -> anyhow::Result<Arc<CosmosDBProvider>> {
        let open = || async {
            self.connection.require_container().await?;
            self.connection.provider().await
        };
        Ok(self.provider.get_or_try_init(open).await?.clone())
    }
}

/// Pages that are being served.
pub(crate) struct Dashboard {
    url: String,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Dashboard {
    /// Serves pages about a container from now on.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        options: &Options,
        management: Option<String>,
    ) -> anyhow::Result<Self> {
        if !options.bind.to_canonical().is_loopback() && options.token.is_none() {
            return Err(Problem::Usage(format!(
                "the pages would be open to other machines at {}: set {TOKEN_VARIABLE} to a text of at least {} \
                 characters that opens them, or leave --bind out",
                options.bind,
                access::TOKEN_MIN
            ))
            .into());
        }
        let wanted = SocketAddr::new(options.bind, options.port);
        let listener = TcpListener::bind(wanted)
            .await
            .with_context(|| format!("the pages cannot be served at {wanted}: name another port"))?;
        let address = listener.local_addr()?;
        let access = Access::new(address, options.token.as_ref().map(Secret::reveal))?;
        let url = format!("http://{address}/#k={}", access.token());
        let management = management
            .or_else(|| connection.emulator().and_then(cosmos_emulator::Emulator::management_endpoint));
        let store = Arc::new(Store {
            documents: connection.documents()?,
            connection,
            provider: OnceCell::new(),
            live: Live::default(),
            examination: Mutex::default(),
            is_read_only: options.is_read_only,
            management,
            budget: options.budget,
        });
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(server::serve(listener, access, store, stopped));
        Ok(Self { url, stop, serving })
    }

    /// Where the pages are, with what opens them in a part that browsers keep to themselves.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Ends the connections of all tabs.
    pub(crate) async fn close(self) {
        let _ = self.stop.send(true);
        let _ = self.serving.await;
    }
}
