//! A fresh emulator with one container, and a driver for it.

use cosmos_driver::{Builder, CallOptions, Container, ContainerProperties, Credential, Driver};
use cosmos_emulator::{Clock, Config, Emulator};

pub(crate) struct Account {
    pub(crate) emulator: Emulator,
    pub(crate) driver: Driver,
    pub(crate) container: Container,
}

impl Account {
    pub(crate) async fn start() -> Self {
        Self::with(Config::default(), |builder| builder).await
    }

    pub(crate) async fn with(config: Config, build: impl FnOnce(Builder) -> Builder) -> Self {
        Self::by_clock(Clock::real(), config, build).await
    }

    pub(crate) async fn by_clock(
        clock: Clock,
        config: Config,
        build: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let emulator = Emulator::start_with_clock(config, clock).expect("the emulator starts");
        let builder = Driver::builder(emulator.endpoint(), Credential::emulator());
        let driver = build(builder).build().await.expect("the driver starts");
        let database = driver.database("db");
        database.create(CallOptions::default()).await.expect("created");
        let properties = ContainerProperties::new("items", &["/pk"]);
        database.create_container(&properties, None, CallOptions::default()).await.expect("created");
        let container = database.container("items").expect("a valid name");
        Self { emulator, driver, container }
    }
}

#[tokio::test]
async fn gateway_two_endpoints_are_asked_for_and_shown() {
    let world = crate::world::World::start().await;
    let driver = world.builder().build().await.expect("the driver starts");
    assert_eq!(driver.gateway2_endpoints(), ["https://world.example:10250/"]);
}
