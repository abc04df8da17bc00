//! Races between regions: which operations run them, who can forbid them, and what the loser cost.

use std::time::{Duration, Instant};

use cosmos_driver::{
    Builder, CallOptions, Container, Hedging, HedgingMode, HedgingSwitch, ItemOptions, LateCharge, OnUnknown,
    Patch, Response, Timeouts,
};
use serde_json::json;

use crate::globe::{Globe, Mood};

fn soon() -> Hedging {
    Hedging { mode: HedgingMode::After(Duration::from_millis(20)), ..Hedging::default() }
}

async fn seeded(builder: Builder) -> Container {
    let driver = builder.build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    let item = json!({ "id": "1", "pk": "p" });
    items.upsert_item("p", &item, ItemOptions::default()).await.expect("written");
    items
}

fn regions(response: &Response) -> Vec<String> {
    response.diagnostics().attempts().iter().map(|attempt| attempt.region.to_string()).collect()
}

async fn etag(items: &Container) -> String {
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read");
    read.etag().expect("items have one").to_owned()
}

#[tokio::test]
async fn on_a_multi_write_account_writes_race_that_do_no_harm_twice() {
    let globe = Globe::multi_write(&["East", "West"]).await;
    let items = seeded(globe.builder().hedging(soon())).await;
    let etag = etag(&items).await;
    globe.mood(0, Mood::Hanging);
    let item = json!({ "id": "1", "pk": "p", "n": 1 });
    let conditional = ItemOptions::default().with_if_match(etag);
    let replaced = items.replace_item("p", "1", &item, conditional).await.expect("West takes it");
    assert_eq!(regions(&replaced), ["East", "West"]);
    let allowed = ItemOptions::from(CallOptions::default().with_on_unknown(OnUnknown::Repeat));
    let created =
        items.create_item("p", &json!({ "id": "2", "pk": "p" }), allowed).await.expect("West takes it");
    assert!(created.diagnostics().is_hedged(), "{}", created.diagnostics());
}

#[tokio::test]
async fn writes_that_two_regions_would_both_take_do_not_race() {
    let globe = Globe::multi_write(&["East", "West"]).await;
    let timeouts = Timeouts { attempt: Duration::from_secs(60), ..Timeouts::default() };
    let items = seeded(globe.builder().hedging(soon()).timeouts(timeouts)).await;
    globe.mood(0, Mood::Slow(Duration::from_millis(200)));
    let plain = ItemOptions::default;
    let written = [
        items.create_item("p", &json!({ "id": "2", "pk": "p" }), plain()).await.expect("created"),
        items.upsert_item("p", &json!({ "id": "3", "pk": "p" }), plain()).await.expect("written"),
        items.patch_item("p", "1", &Patch::new().set("/n", 1), plain()).await.expect("patched"),
        items.replace_item("p", "1", &json!({ "id": "1", "pk": "p" }), plain()).await.expect("replaced"),
    ];
    for response in &written {
        assert_eq!(regions(response), ["East"], "{}", response.diagnostics());
    }
}

#[tokio::test]
async fn a_switch_turns_races_off_for_all_drivers_that_share_it() {
    let globe = Globe::start(&["East", "West"]).await;
    let switch = HedgingSwitch::default();
    let shared = || globe.builder().hedging(Hedging { switch: switch.clone(), ..soon() });
    let drivers = [seeded(shared()).await, seeded(shared()).await];
    globe.mood(0, Mood::Slow(Duration::from_millis(200)));
    let read = |items: Container, call: CallOptions| async move {
        let read = items.read_item("p", "1", ItemOptions::from(call)).await.expect("read");
        read.diagnostics().is_hedged()
    };
    switch.turn_off();
    for items in &drivers {
        assert!(!read(items.clone(), CallOptions::default()).await);
        let insisting = CallOptions::default().with_hedging(HedgingMode::After(Duration::from_millis(1)));
        assert!(!read(items.clone(), insisting).await, "whatever a call says");
    }
    switch.turn_on();
    for items in &drivers {
        assert!(read(items.clone(), CallOptions::default()).await);
    }
}

/// In a process of its own, so that the tests beside it go on racing.
#[test]
fn the_switch_of_the_process_turns_races_off_for_all_its_drivers() {
    const IN_CHILD: &str = "COSMOS_DRIVER_TEST_CHILD";
    if std::env::var_os(IN_CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        return runtime.block_on(obey_the_switch_of_the_process());
    }
    let name = "racing::the_switch_of_the_process_turns_races_off_for_all_its_drivers";
    let child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name])
        .env(IN_CHILD, "1")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

async fn obey_the_switch_of_the_process() {
    let globe = Globe::start(&["East", "West"]).await;
    let own = || globe.builder().hedging(Hedging { switch: HedgingSwitch::default(), ..soon() });
    let drivers = [seeded(own()).await, seeded(own()).await];
    globe.mood(0, Mood::Slow(Duration::from_millis(200)));
    for is_on in [true, false, true] {
        let switch = HedgingSwitch::of_process();
        if is_on {
            switch.turn_on();
        } else {
            switch.turn_off();
        }
        for items in &drivers {
            let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read");
            assert_eq!(read.diagnostics().is_hedged(), is_on, "{}", read.diagnostics());
        }
    }
}

#[tokio::test]
async fn the_losers_charge_is_reported_when_its_answer_arrives() {
    let globe = Globe::start(&["East", "West"]).await;
    let items = seeded(globe.builder().hedging(soon())).await;
    globe.mood(0, Mood::Slow(Duration::from_millis(300)));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("West was faster");
    let log = read.diagnostics();
    assert_eq!(&*log.attempts()[0].region, "East");
    let begun = Instant::now();
    let late = loop {
        match log.attempts()[0].late_charge() {
            Some(LateCharge::Pending) => {}
            other => break other,
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{log}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let Some(LateCharge::Known(late)) = late else { panic!("East answered: {log}") };
    assert!(late > 0.0 && !log.has_unknown_charge(), "{log}");
    assert!((log.charge() - read.charge() - late).abs() < 0.001, "{log}");
}

#[tokio::test]
async fn the_charge_of_a_loser_that_never_answers_is_said_to_be_unknown() {
    let globe = Globe::start(&["East", "West"]).await;
    let items = seeded(globe.builder().hedging(soon())).await;
    globe.mood(0, Mood::Hanging);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("West was faster");
    let log = read.diagnostics();
    assert!(log.has_unknown_charge());
    let begun = Instant::now();
    while log.attempts()[0].late_charge() == Some(LateCharge::Pending) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{log}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(log.attempts()[0].late_charge(), Some(LateCharge::Unknown));
    assert!(log.has_unknown_charge() && log.to_string().contains("or more"), "{log}");
}
