//! What a command works on: an account, or a data folder opened in this process.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::{Credential, Driver, ErrorKind, Timeouts};
use cosmos_emulator::{Config, Emulator, Fsync, Store};
use cosmos_wire::endpoint::{has_user, without_user};
use duroxide::Client;
use duroxide::providers::Provider;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::{Value, json};

use crate::documents::Documents;
use crate::entra;
use crate::exit::Problem;
use crate::places::Places;
use crate::secret::Secret;

/// Where the container is.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// Folder of an embedded emulator, opened in this process; or through the emulator that has it open.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["endpoint", "key"])]
    pub(crate) data: Option<PathBuf>,

    /// A place that `cdb context add` has given a name [env: CDB_CONTEXT].
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Endpoint of an account, or of a running emulator [env: COSMOS_ENDPOINT].
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,

    /// Key of the account [env: COSMOS_KEY] [default on this machine: the key of all emulators].
    ///
    /// The environment is the better place: command lines are visible to others.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<Secret>,

    /// Sign in with Microsoft Entra instead of a key [env: COSMOS_ENTRA].
    ///
    /// Alone, or with =auto, it takes the first identity that the machine tells of: a service principal (=environment), the
    /// identity of a pod (=workload), that of an app (=managed), or who is signed in with `az` or `azd` (=developer). A
    /// virtual machine's has to be named: --entra=managed.
    #[arg(
        long,
        value_name = "IDENTITY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto",
        conflicts_with_all = ["key", "data"]
    )]
    pub(crate) entra: Option<String>,

    /// Database [env: COSMOS_DATABASE] [default: duroxide].
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,

    /// Container [env: COSMOS_CONTAINER] [default: duroxide].
    #[arg(long, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

/// Where a container is, with nothing left to look up.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) place: Place,
    pub(crate) database: String,
    pub(crate) container: String,
}

/// An account, or a folder.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// An embedded emulator on a folder.
    Folder(PathBuf),
    /// An embedded emulator that forgets.
    Memory,
    /// An account.
    Account { endpoint: String, access: Access },
}

/// How one gets in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// With a key of the account.
    Key(String),
    /// With tokens of an identity.
    Entra(String),
}

impl Access {
    fn credential(&self) -> Result<Credential, Problem> {
        match self {
            Self::Key(key) => Credential::key(key).map_err(|error| {
                Problem::Usage(format!("the key cannot be one of an account: {}", error.message()))
            }),
            Self::Entra(identity) => entra::credential(identity),
        }
    }
}

impl Target {
    /// What was typed, then a place that was named, then the environment; `otherwise` if none of them names a place.
    pub(crate) fn resolve(
        args: &ConnectionArgs,
        environment: impl Fn(&str) -> Option<String>,
        otherwise: impl FnOnce() -> Result<Place, Problem>,
    ) -> Result<Self, Problem> {
        let places = || Places::read().map_err(|error| Problem::Usage(format!("{error:#}")));
        Self::resolve_with(args, environment, places, otherwise)
    }

    fn resolve_with(
        args: &ConnectionArgs,
        environment: impl Fn(&str) -> Option<String>,
        places: impl FnOnce() -> Result<Places, Problem>,
        otherwise: impl FnOnce() -> Result<Place, Problem>,
    ) -> Result<Self, Problem> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let find = |suffix: &str| {
            ["COSMOS", "COSMOSDB"].into_iter().find_map(|prefix| set(&format!("{prefix}_{suffix}")))
        };
        let is_typed = args.data.is_some() || args.endpoint.is_some();
        let name = args.context.clone().or_else(|| set("CDB_CONTEXT").filter(|_| !is_typed));
        let named = match name {
            Some(name) => Some(places()?.find(&name)?.clone()),
            None if !is_typed && find("ENDPOINT").is_none() => {
                let places = places()?;
                places.used.as_ref().map(|used| places.find(used).cloned()).transpose()?
            }
            None => None,
        };
        let named = named.unwrap_or_default();
        let folder = args
            .data
            .clone()
            .or_else(|| named.data.as_ref().filter(|_| args.endpoint.is_none()).map(PathBuf::from));
        let endpoint = args.endpoint.clone().or(named.endpoint).or_else(|| find("ENDPOINT"));
        let place = match (folder, endpoint) {
            (Some(folder), _) => Place::Folder(folder),
            (None, Some(endpoint)) => {
                // Before anything is said of it.
                refuse_user(&endpoint)?;
                require_scheme(&endpoint)?;
                let typed = args.key.as_ref().map(|key| key.reveal().to_owned());
                // What was typed, what belongs to the place, what the environment says: in each an identity before a key.
                let identity = match (&args.entra, &typed, &named.entra, &named.key_env) {
                    (Some(identity), ..) => Some(identity.clone()),
                    (None, Some(_), ..) => None,
                    (None, None, Some(identity), _) => Some(identity.clone()),
                    (None, None, None, Some(_)) => None,
                    (None, None, None, None) => find("ENTRA"),
                };
                let of_place = || named.key_env.as_deref().and_then(set);
                let access = match identity {
                    Some(identity) => Access::Entra(identity),
                    None => {
                        let key = typed.or_else(of_place).or_else(|| find("KEY"));
                        Access::Key(key.or_else(|| emulator_key(&endpoint)).ok_or_else(|| {
                            let variable = named.key_env.as_deref().unwrap_or("COSMOS_KEY");
                            Problem::Usage(format!(
                                "there is no key for {endpoint}: set {variable}, or sign in with --entra"
                            ))
                        })?)
                    }
                };
                Place::Account { endpoint, access }
            }
            (None, None) => otherwise()?,
        };
        let name = |typed: &Option<String>, named: Option<String>, suffix: &str| {
            typed.clone().or(named).or_else(|| find(suffix)).unwrap_or_else(|| "duroxide".to_owned())
        };
        Ok(Self {
            place,
            database: name(&args.database, named.database, "DATABASE"),
            container: name(&args.container, named.container, "CONTAINER"),
        })
    }

    /// The options that name the same place again, for hints.
    pub(crate) fn options(&self) -> String {
        let mut options = match &self.place {
            Place::Folder(folder) => format!("--data {}", quoted(&folder.display().to_string())),
            Place::Memory => String::new(),
            Place::Account { endpoint, access: Access::Entra(identity) } => {
                format!("--endpoint {endpoint} --entra={}", quoted(identity))
            }
            Place::Account { endpoint, access: Access::Key(_) } => format!("--endpoint {endpoint}"),
        };
        for (option, name) in [("database", &self.database), ("container", &self.container)] {
            if name != "duroxide" {
                options.push_str(&format!(" --{option} {}", quoted(name)));
            }
        }
        options
    }
}

/// An endpoint is printed in many places, and none of them is for passwords.
pub(crate) fn refuse_user(endpoint: &str) -> Result<(), Problem> {
    if has_user(endpoint) {
        return Err(Problem::Usage(format!(
            "the endpoint {} has a user name or password, which Cosmos DB does not know: leave that out",
            without_user(endpoint)
        )));
    }
    Ok(())
}

/// An endpoint without a scheme is the commonest slip.
fn require_scheme(endpoint: &str) -> Result<(), Problem> {
    if endpoint.contains("://") {
        return Ok(());
    }
    Err(Problem::Usage(format!(
        "the endpoint {endpoint:?} has no scheme: write https://{endpoint} for an account, http://{endpoint} for an emulator"
    )))
}

/// The well-known key opens emulators, which listen on this machine only.
fn emulator_key(endpoint: &str) -> Option<String> {
    let host = endpoint.split_once("://")?.1;
    let is_local = ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| {
        host.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    });
    is_local.then(|| cosmos_wire::EMULATOR_KEY.to_owned())
}

/// A text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_./~:@%+=,".contains(c));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// What happens if the container is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Say so.
    Refuse,
    /// Make it.
    Create,
}

/// A container that is there and can be reached.
pub(crate) struct Connection {
    pub(crate) target: Target,
    emulator: Option<Emulator>,
    endpoint: String,
    access: Access,
    credential: Credential,
    driver: Driver,
    /// Also containers that are none of workflows.
    accepts_any: bool,
}

impl Connection {
    /// As [`during`](Self::during), with any container.
    pub(crate) async fn during_any<T>(
        args: &ConnectionArgs,
        work: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let target = Target::resolve(args, |name| std::env::var(name).ok(), || Err(no_place()))?;
        let emulator = embedded(&target.place, IfMissing::Refuse, Config::default())?;
        let mut connection = Box::pin(Self::connect(target, emulator, IfMissing::Create)).await?;
        connection.accepts_any = true;
        connection.require_container().await?;
        let outcome = connection.guard(work(&connection)).await;
        connection.close().await;
        outcome
    }

    /// Opens what an operating command works on.
    pub(crate) async fn open(args: &ConnectionArgs) -> anyhow::Result<Self> {
        let target = Target::resolve(args, |name| std::env::var(name).ok(), || Err(no_place()))?;
        Box::pin(Self::open_target(target, IfMissing::Refuse)).await
    }

    /// Opens what an operating command works on, works on it, and closes it again.
    pub(crate) async fn during<T>(
        args: &ConnectionArgs,
        work: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let connection = Self::open(args).await?;
        let outcome = connection.guard(work(&connection)).await;
        connection.close().await;
        outcome
    }

    /// Opens a place, and makes the container if that is wanted.
    pub(crate) async fn open_target(target: Target, if_missing: IfMissing) -> anyhow::Result<Self> {
        let emulator = embedded(&target.place, if_missing, Config::default())?;
        Box::pin(Self::connect(target, emulator, if_missing)).await
    }

    /// Opens a place whose emulator, if it is one of this process, has a management port.
    pub(crate) async fn open_managed(target: Target, if_missing: IfMissing) -> anyhow::Result<Self> {
        let emulator = embedded(&target.place, if_missing, Config::default().with_management())?;
        Box::pin(Self::connect(target, emulator, if_missing)).await
    }

    async fn connect(target: Target, embedded: Embedded, if_missing: IfMissing) -> anyhow::Result<Self> {
        let (endpoint, access, emulator) = match embedded {
            Embedded::Account { endpoint, access } => (endpoint, access, None),
            Embedded::Own(emulator) => {
                (emulator.endpoint(), Access::Key(emulator.key().to_owned()), Some(*emulator))
            }
        };
        let credential = access.credential()?;
        let timeouts = Timeouts { operation: OPERATION_TIMEOUT, ..Timeouts::default() };
        let driver = Driver::builder(&endpoint, credential.clone())
            .application_name("cdb")
            .timeouts(timeouts)
            .build()
            .await
            .map_err(|error| explain(&error, &endpoint, &access))?;
        let connection = Self { target, emulator, endpoint, access, credential, driver, accepts_any: false };
        if if_missing == IfMissing::Refuse {
            connection.require_container().await?;
        }
        Ok(connection)
    }

    /// The embedded emulator, if there is one.
    pub(crate) fn emulator(&self) -> Option<&Emulator> {
        self.emulator.as_ref()
    }

    /// Where the data is, in words.
    pub(crate) fn place(&self) -> String {
        match &self.target.place {
            Place::Folder(folder) => folder.display().to_string(),
            Place::Memory => "memory".to_owned(),
            Place::Account { endpoint, .. } => endpoint.clone(),
        }
    }

    /// The key that requests are signed with, if it is one.
    pub(crate) fn key(&self) -> Option<&str> {
        match &self.access {
            Access::Key(key) => Some(key),
            Access::Entra(_) => None,
        }
    }

    /// The driver, for what is not about this container.
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Where requests go.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The provider of an operating command: it does what it is told and sweeps nothing by itself.
    pub(crate) async fn provider(&self) -> anyhow::Result<Arc<CosmosDBProvider>> {
        self.provider_with(|config| config.reconciler_interval = NO_SWEEP).await
    }

    /// A provider with settings of its own.
    pub(crate) async fn provider_with(
        &self,
        adjust: impl FnOnce(&mut CosmosDBProviderConfig),
    ) -> anyhow::Result<Arc<CosmosDBProvider>> {
        let mut config = CosmosDBProviderConfig::new(&self.endpoint, "")
            .with_credential(self.credential.clone())
            .with_database(&self.target.database)
            .with_container(&self.target.container);
        config.codec = crate::sealed::codec();
        config.shows_sealed = true;
        adjust(&mut config);
        // Opening an account is a large future, and happens once.
        let provider = Box::pin(CosmosDBProvider::new_with_config(config)).await;
        Ok(Arc::new(provider.context("cannot open the container")?))
    }

    /// A client of duroxide.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let provider: Arc<dyn Provider> = self.provider().await?;
        Ok(Client::new(provider))
    }

    /// The documents themselves.
    pub(crate) fn documents(&self) -> anyhow::Result<Documents> {
        Ok(Documents::new(self.driver.container(&self.target.database, &self.target.container)?))
    }

    /// Does something, and stops in the middle when the data folder takes no more writes: trying again does not help
    /// there, and everybody in between would.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        tokio::select! {
            outcome = work => outcome,
            // In a box, because it is a part of every command's future.
            problem = Box::pin(self.failure()) => Err(problem.into()),
        }
    }

    async fn failure(&self) -> Problem {
        match &self.emulator {
            Some(emulator) => Problem::Folder(emulator.failed().await.to_string()),
            None => std::future::pending().await,
        }
    }

    /// Ends the embedded emulator after its last writes.
    pub(crate) async fn close(self) {
        let Self { emulator, driver, .. } = self;
        drop(driver);
        if let Some(emulator) = emulator {
            emulator.shutdown().await;
        }
    }

    /// A container of another program has nothing in it that is known here: all commands would say that it is empty.
    fn require_ours(&self, definition: &Value) -> anyhow::Result<()> {
        let paths = &definition["partitionKey"]["paths"];
        if paths.is_null() || *paths == json!([PARTITION_KEY]) || self.accepts_any {
            return Ok(());
        }
        let text = format!(
            "the container {:?} in database {:?} is not one of workflows: its partition key is {paths} and not \
             [{PARTITION_KEY:?}]. Check --database and --container; `cdb sql` asks any container",
            self.target.container, self.target.database
        );
        Err(Problem::Usage(text).into())
    }

    /// Checks that the container is there.
    pub(crate) async fn require_container(&self) -> anyhow::Result<()> {
        let container = self.driver.container(&self.target.database, &self.target.container);
        let container = container.map_err(|error| Problem::Usage(error.message().to_owned()))?;
        match container.read(cosmos_driver::CallOptions::default()).await {
            Ok(response) => self.require_ours(&response.json::<Value>().unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Problem::Missing(format!(
                "there is no container {:?} in database {:?} at {}: check --database and --container; `cdb demo` and \
                 the first runtime that connects make one",
                self.target.container,
                self.target.database,
                self.place()
            ))
            .into()),
            Err(error) => Err(explain(&error, &self.endpoint, &self.access).into()),
        }
    }
}

/// What answers for a place.
enum Embedded {
    /// Somebody else's process.
    Account { endpoint: String, access: Access },
    /// An emulator of this process.
    Own(Box<Emulator>),
}

/// A folder that another process has open is looked at through that process, which serves it. Whoever would make one, the demo
/// for example, wants it for itself.
fn embedded(place: &Place, if_missing: IfMissing, config: Config) -> anyhow::Result<Embedded> {
    let path = match place {
        Place::Account { endpoint, access } => {
            return Ok(Embedded::Account { endpoint: endpoint.clone(), access: access.clone() });
        }
        Place::Memory => {
            let emulator = Emulator::start(Config { store: Store::Memory, ..config })?;
            return Ok(Embedded::Own(Box::new(emulator)));
        }
        Place::Folder(path) => path,
    };
    if if_missing == IfMissing::Refuse && !path.join(FOLDER_MARK).is_file() {
        let state = if path.is_dir() { "has no data of an emulator" } else { "is not there" };
        let path = path.display();
        let text = format!("the folder {path} {state}: `cdb demo --data {path}` makes one");
        return Err(Problem::Missing(text).into());
    }
    // A demo survives a killed process either way; waiting for the disk would only slow it down.
    let store = Store::Folder { path: path.clone(), fsync: Fsync::Off };
    match (Emulator::start(Config { store, ..config }), if_missing) {
        (Ok(emulator), _) => Ok(Embedded::Own(Box::new(emulator))),
        (Err(error), IfMissing::Create) => Err(error.into()),
        (Err(error), IfMissing::Refuse) => {
            let endpoint = cosmos_emulator::storage::running_at(path).ok_or(error)?;
            let key = std::env::var("COSMOS_KEY").ok().filter(|key| !key.is_empty());
            let access = Access::Key(key.unwrap_or_else(|| cosmos_wire::EMULATOR_KEY.to_owned()));
            Ok(Embedded::Account { endpoint, access })
        }
    }
}

/// A sentence that says what to do.
fn explain(error: &cosmos_driver::Error, endpoint: &str, access: &Access) -> Problem {
    match error.kind() {
        ErrorKind::Unauthorized | ErrorKind::Forbidden if matches!(access, Access::Entra(_)) => {
            Problem::Refused(format!(
                "{endpoint} did not let the identity in: it needs the role Cosmos DB Built-in Data Contributor (or Reader, \
                 for commands that only look), and to be signed in. It said: {}",
                first_line(error.message())
            ))
        }
        ErrorKind::Unauthorized | ErrorKind::Forbidden => Problem::Refused(format!(
            "{endpoint} refused the key: check --key or COSMOS_KEY (a read-only key is not enough for commands that \
             write). It said: {}",
            first_line(error.message())
        )),
        ErrorKind::Connection | ErrorKind::Deadline | ErrorKind::Unavailable | ErrorKind::Protocol
            if error.message().contains("InvalidContentType") && endpoint.starts_with("https://") =>
        {
            Problem::Unreachable(format!(
                "somebody answers at {endpoint}, but not in TLS: write {} if that is an emulator without --tls",
                endpoint.replacen("https://", "http://", 1)
            ))
        }
        ErrorKind::Connection | ErrorKind::Deadline | ErrorKind::Unavailable | ErrorKind::Protocol => {
            Problem::Unreachable(format!(
                "nobody answers at {endpoint}: check --endpoint or COSMOS_ENDPOINT, and that the account or `cdb \
                 emulator` is up. {}",
                first_line(error.message())
            ))
        }
        ErrorKind::Configuration => Problem::Usage(error.message().to_owned()),
        _ => Problem::Unreachable(format!("{endpoint}: {error}")),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// What to say when nothing tells where the container is.
pub(crate) fn no_place() -> Problem {
    let folder = if Path::new(DEMO_FOLDER).is_dir() {
        format!("the demo's data is here: --data {DEMO_FOLDER}")
    } else {
        "an embedded emulator's folder: --data DIR (`cdb demo` makes one)".to_owned()
    };
    Problem::Usage(format!(
        "say where the container is: an account (--endpoint and --entra, or COSMOS_ENDPOINT and COSMOS_KEY), or {folder}"
    ))
}

/// What containers of workflows are divided by.
const PARTITION_KEY: &str = "/instanceId";
/// Where the demo keeps its data unless told otherwise.
pub(crate) const DEMO_FOLDER: &str = "cdb-demo";
/// An operator waits this long for one answer, retries included.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);
/// What every data folder of an emulator has in it.
const FOLDER_MARK: &str = "emulator.format";
/// Longer than any command runs.
pub(crate) const NO_SWEEP: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Named;

    fn resolve(args: &ConnectionArgs, environment: &[(&str, &str)]) -> Result<Target, Problem> {
        let lookup = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        Target::resolve_with(args, lookup, || Ok(places()), || Err(no_place()))
    }

    /// Two named places, of which the first is used.
    fn places() -> Places {
        let prod = Named {
            endpoint: Some("https://p.test".into()),
            key_env: Some("P_KEY".into()),
            database: Some("flows".into()),
            ..Named::default()
        };
        let here = Named { data: Some("/d".into()), ..Named::default() };
        Places { used: Some("prod".into()), named: [("prod".into(), prod), ("here".into(), here)].into() }
    }

    #[test]
    fn a_named_place_is_used_where_nothing_else_is_said() {
        let with = |context: Option<&str>| ConnectionArgs {
            context: context.map(str::to_owned),
            ..Default::default()
        };
        let prod = resolve(&with(None), &[("P_KEY", "a2V5")]).unwrap();
        assert!(
            prod.place
                == Place::Account { endpoint: "https://p.test".into(), access: Access::Key("a2V5".into()) }
        );
        assert_eq!((prod.database.as_str(), prod.container.as_str()), ("flows", "duroxide"));
        let problem = resolve(&with(None), &[]).err().unwrap().to_string();
        assert!(problem.contains("set P_KEY"), "{problem}");
        let here = resolve(&with(Some("here")), &[("COSMOS_ENDPOINT", "https://a.test")]).unwrap();
        assert!(here.place == Place::Folder("/d".into()), "what was asked for by name is meant");
        let other = resolve(&with(None), &[("COSMOS_ENDPOINT", "http://localhost:1")]).unwrap();
        assert_eq!(other.database, "duroxide", "the environment comes before the one that is used");
        assert!(resolve(&with(Some("nowhere")), &[]).is_err());
        let typed = ConnectionArgs { endpoint: Some("http://localhost:2".into()), ..with(Some("here")) };
        assert!(matches!(resolve(&typed, &[]).unwrap().place, Place::Account { .. }));
        let slip = ConnectionArgs { endpoint: Some("localhost:8081".into()), ..Default::default() };
        assert!(resolve(&slip, &[]).err().unwrap().to_string().contains("has no scheme"));
    }

    #[test]
    fn what_is_typed_comes_before_the_environment() {
        let environment =
            [("COSMOS_ENDPOINT", "https://a.test"), ("COSMOSDB_KEY", "a2V5"), ("COSMOS_CONTAINER", "flows")];
        let target = resolve(&ConnectionArgs::default(), &environment).unwrap();
        assert!(
            target.place
                == Place::Account { endpoint: "https://a.test".into(), access: Access::Key("a2V5".into()) }
        );
        assert_eq!((target.database.as_str(), target.container.as_str()), ("duroxide", "flows"));
        let args =
            ConnectionArgs { data: Some("x".into()), container: Some("c d".into()), ..Default::default() };
        let target = resolve(&args, &environment).unwrap();
        assert!(target.place == Place::Folder("x".into()));
        assert_eq!(target.options(), "--data x --container 'c d'");
    }

    #[test]
    fn an_identity_comes_before_a_key_and_what_is_typed_before_both() {
        let access = |args: &ConnectionArgs, environment: &[(&str, &str)]| match resolve(args, environment)
            .map(|target| target.place)
        {
            Ok(Place::Account { access: Access::Key(key), .. }) => key,
            Ok(Place::Account { access: Access::Entra(identity), .. }) => identity,
            Ok(Place::Folder(_) | Place::Memory) => "none".to_owned(),
            Err(problem) => problem.to_string(),
        };
        let at = |entra: Option<&str>, key: Option<&str>| ConnectionArgs {
            endpoint: Some("https://a.test".into()),
            entra: entra.map(str::to_owned),
            key: key.map(|key| Secret::from(key.to_owned())),
            ..Default::default()
        };
        let both = [("COSMOS_KEY", "a2V5"), ("COSMOS_ENTRA", "workload")];
        assert_eq!(access(&at(Some("managed"), None), &both), "managed");
        assert_eq!(access(&at(None, Some("dHlwZWQ=")), &both), "dHlwZWQ=");
        assert_eq!(access(&at(None, None), &both), "workload");
        assert_eq!(access(&at(None, None), &both[..1]), "a2V5");
        assert!(access(&at(None, None), &[]).contains("sign in with --entra"));
        let named = ConnectionArgs { context: Some("prod".into()), ..Default::default() };
        assert_eq!(
            access(&named, &[("P_KEY", "cA=="), ("COSMOS_ENTRA", "auto")]),
            "cA==",
            "the place has a key"
        );
    }

    #[test]
    fn only_this_machine_has_a_default_key() {
        for local in ["http://localhost:8081", "https://127.0.0.1:8081/", "http://[::1]"] {
            assert!(emulator_key(local).is_some(), "{local}");
        }
        for other in ["https://localhost.example.com", "https://a.test", "localhost"] {
            assert!(emulator_key(other).is_none(), "{other}");
        }
    }

    #[test]
    fn no_place_at_all_says_what_to_type() {
        let nowhere = Target::resolve_with(
            &ConnectionArgs::default(),
            |_| None,
            || Ok(Places::default()),
            || Err(no_place()),
        );
        let problem = nowhere.err().unwrap();
        assert!(problem.to_string().contains("--data"), "{problem}");
    }
}
