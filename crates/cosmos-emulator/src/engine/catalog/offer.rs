//! Throughput, as the offer documents that clients read and replace.

use cosmos_wire::rid::Rid;
use serde_json::{Value, json};

use crate::Failure;
use crate::engine::request::{OfferMigration, Throughput};

/// The throughput of one database or container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its own resource id.
    pub(crate) rid: Rid,
    /// `_self` of what it belongs to.
    pub(crate) resource: String,
    /// Resource id of what it belongs to.
    pub(crate) resource_rid: String,
    /// How much.
    pub(crate) throughput: Throughput,
    /// With its quotes.
    pub(crate) etag: String,
    /// Seconds since 1970.
    pub(crate) timestamp: u64,
}

impl Offer {
    /// The document clients see.
    pub(crate) fn document(&self) -> Value {
        let content = match self.throughput {
            Throughput::Manual(throughput) => json!({
                "offerThroughput": throughput,
                "offerIsRUPerMinuteThroughputEnabled": false,
                "offerMinimumThroughputParameters": {
                    "maxThroughputEverProvisioned": throughput,
                    "maxConsumedStorageEverInKB": 0
                },
                "offerLastReplaceTimestamp": self.timestamp
            }),
            Throughput::Autoscale(max, increment) => {
                let mut settings = json!({"tier": 0, "maximumTierThroughput": max, "autoUpgrade": false, "maxThroughput": max});
                if let Some(percent) = increment {
                    settings["autoUpgradePolicy"] =
                        json!({"throughputPolicy": {"incrementPercent": percent}});
                }
                json!({
                    "offerThroughput": max / 10,
                    "offerIsRUPerMinuteThroughputEnabled": false,
                    "offerMinimumThroughputParameters": {
                        "maxThroughputEverProvisioned": max,
                        "maxConsumedStorageEverInKB": 0
                    },
                    "offerLastReplaceTimestamp": self.timestamp,
                    "offerAutopilotSettings": settings
                })
            }
        };
        let rid = self.rid.to_string();
        json!({
            "resource": self.resource,
            "offerType": "Invalid",
            "offerResourceId": self.resource_rid,
            "offerVersion": "V2",
            "content": content,
            "id": rid,
            "_rid": rid,
            "_self": format!("offers/{rid}/"),
            "_etag": self.etag,
            "_ts": self.timestamp
        })
    }

    /// As kept in a record.
    pub(crate) fn to_record(&self) -> Value {
        let (kind, amount, increment) = match self.throughput {
            Throughput::Manual(amount) => ("manual", amount, None),
            Throughput::Autoscale(amount, increment) => ("autoscale", amount, increment),
        };
        json!({"rid": self.rid.to_string(), "resource": self.resource, "resourceRid": self.resource_rid, "kind": kind,
               "amount": amount, "increment": increment, "etag": self.etag, "ts": self.timestamp})
    }

    /// From a record.
    pub(crate) fn from_record(record: &Value) -> Option<Self> {
        let amount = record["amount"].as_u64()?;
        Some(Self {
            rid: record["rid"].as_str()?.parse().ok()?,
            resource: record["resource"].as_str()?.to_owned(),
            resource_rid: record["resourceRid"].as_str()?.to_owned(),
            throughput: match record["kind"].as_str()? {
                "autoscale" => {
                    let increment =
                        record["increment"].as_u64().and_then(|percent| u32::try_from(percent).ok());
                    Throughput::Autoscale(amount, increment)
                }
                _ => Throughput::Manual(amount),
            },
            etag: record["etag"].as_str()?.to_owned(),
            timestamp: record["ts"].as_u64()?,
        })
    }
}

/// Refuses throughput the service does not sell.
pub(crate) fn check(throughput: Throughput) -> Result<Throughput, Failure> {
    let (amount, least, step, what) = match throughput {
        Throughput::Manual(amount) => (amount, MANUAL_MIN, 100, "The offer throughput"),
        Throughput::Autoscale(amount, _) => (amount, AUTOSCALE_MIN, 1_000, "The autoscale max throughput"),
    };
    if amount < least || amount > THROUGHPUT_MAX || amount % step != 0 {
        return Err(Failure::bad_request(format!(
            "{what} {amount} is invalid: it must be between {least} and {THROUGHPUT_MAX} in steps of {step}."
        )));
    }
    Ok(throughput)
}

/// The throughput an offer's new body asks for.
pub(crate) fn replaced(
    old: Throughput,
    body: &Value,
    migration: OfferMigration,
) -> Result<Throughput, Failure> {
    let content = &body["content"];
    let manual = content["offerThroughput"].as_u64();
    let autoscale = content["offerAutopilotSettings"]["maxThroughput"].as_u64();
    let increment = increment_percent(&content["offerAutopilotSettings"]);
    let wanted = match (migration, old, manual, autoscale) {
        (OfferMigration::ToAutoscale, Throughput::Manual(now), _, None) => {
            Throughput::Autoscale((now.div_ceil(1_000) * 1_000).max(AUTOSCALE_MIN), increment)
        }
        (OfferMigration::ToAutoscale, _, _, Some(max)) => Throughput::Autoscale(max, increment),
        (OfferMigration::ToAutoscale, same @ Throughput::Autoscale(..), _, None) => same,
        (OfferMigration::ToManual, Throughput::Autoscale(max, _), _, _) => Throughput::Manual(max),
        (OfferMigration::ToManual, same @ Throughput::Manual(_), _, _) => same,
        (OfferMigration::None, Throughput::Autoscale(..), _, Some(max)) => {
            Throughput::Autoscale(max, increment)
        }
        (OfferMigration::None, Throughput::Manual(_), Some(amount), None) => Throughput::Manual(amount),
        (OfferMigration::None, Throughput::Manual(_), _, Some(_)) => {
            return Err(Failure::bad_request(
                "The offer has manual throughput; migrate it with x-ms-cosmos-migrate-offer-to-autopilot first.",
            ));
        }
        (OfferMigration::None, Throughput::Autoscale(..), _, None) => {
            return Err(Failure::bad_request(
                "The offer is autoscale; set content.offerAutopilotSettings.maxThroughput, or migrate it with \
                 x-ms-cosmos-migrate-offer-to-manual-throughput first.",
            ));
        }
        (OfferMigration::None, Throughput::Manual(_), None, None) => {
            return Err(Failure::bad_request("An offer needs content.offerThroughput."));
        }
    };
    check(wanted)
}

/// By how many percent the maximum grows when the data outgrows it, as autoscale settings say it.
pub(crate) fn increment_percent(settings: &Value) -> Option<u32> {
    let percent = settings["autoUpgradePolicy"]["throughputPolicy"]["incrementPercent"].as_u64()?;
    u32::try_from(percent).ok()
}

/// Physical partitions that can carry this much at least.
pub(crate) fn partitions(throughput: Throughput) -> u32 {
    let (Throughput::Manual(amount) | Throughput::Autoscale(amount, _)) = throughput;
    spread(amount, PER_PARTITION_MAX)
}

/// Physical partitions of what is created with this much. The service leaves them room to grow when manual throughput
/// needs more than one.
pub(crate) fn partitions_at_creation(throughput: Throughput) -> u32 {
    match throughput {
        Throughput::Manual(amount) if amount > PER_PARTITION_MAX => spread(amount, PER_PARTITION_AT_CREATION),
        Throughput::Manual(_) | Throughput::Autoscale(..) => partitions(throughput),
    }
}

fn spread(amount: u64, each: u64) -> u32 {
    u32::try_from(amount.div_ceil(each)).unwrap_or(u32::MAX).clamp(1, 100)
}

/// What a container gets when nobody says.
pub(crate) const DEFAULT: Throughput = Throughput::Manual(MANUAL_MIN);

const MANUAL_MIN: u64 = 400;
const AUTOSCALE_MIN: u64 = 1_000;
const THROUGHPUT_MAX: u64 = 1_000_000;
const PER_PARTITION_MAX: u64 = 10_000;
const PER_PARTITION_AT_CREATION: u64 = 6_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_must_be_one_the_service_sells() {
        for (throughput, ok) in [
            (Throughput::Manual(400), true),
            (Throughput::Manual(399), false),
            (Throughput::Manual(450), false),
            (Throughput::Manual(1_000_100), false),
            (Throughput::Autoscale(1_000, None), true),
            (Throughput::Autoscale(1_500, None), false),
            (Throughput::Autoscale(500, None), false),
        ] {
            assert_eq!(check(throughput).is_ok(), ok, "{throughput:?}");
        }
        assert_eq!([400, 10_000, 10_100, 50_000].map(|n| partitions(Throughput::Manual(n))), [1, 1, 2, 5]);
        let created = |amount| partitions_at_creation(Throughput::Manual(amount));
        assert_eq!([400, 10_000, 10_100, 21_000, 25_100, 30_000].map(created), [1, 1, 2, 4, 5, 5]);
        assert_eq!(partitions_at_creation(Throughput::Autoscale(30_000, None)), 3);
    }

    #[test]
    fn offers_are_replaced_in_kind_or_migrated() {
        let manual = |n: u64| json!({"content": {"offerThroughput": n}});
        let auto = |n: u64| json!({"content": {"offerAutopilotSettings": {"maxThroughput": n, "autoUpgradePolicy": {"throughputPolicy": {"incrementPercent": 10}}}}});
        use OfferMigration as M;
        use Throughput::{Autoscale, Manual};
        for (old, body, migration, expected) in [
            (Manual(400), manual(800), M::None, Some(Manual(800))),
            (Manual(400), manual(850), M::None, None),
            (Manual(400), auto(4_000), M::None, None),
            (Manual(1_500), manual(0), M::ToAutoscale, Some(Autoscale(2_000, None))),
            (Autoscale(4_000, None), auto(5_000), M::None, Some(Autoscale(5_000, Some(10)))),
            (Autoscale(4_000, None), manual(500), M::None, None),
            (Autoscale(4_000, None), manual(0), M::ToManual, Some(Manual(4_000))),
        ] {
            assert_eq!(replaced(old, &body, migration).ok(), expected, "{old:?} {body} {migration:?}");
        }
    }
}
