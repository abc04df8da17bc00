//! What containers and databases may use: their offers.

use cosmos_wire::header;
use cosmos_wire::resource::ResourceKind;
use http::HeaderValue;
use http::header::HeaderName;
use http::uri::PathAndQuery;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::json as to_json;
use crate::container::Container;
use crate::database::Database;
use crate::driver::Driver;
use crate::error::Error;
use crate::metadata::container::path_of;
use crate::operation::{Call, run};
use crate::options::{CallOptions, Throughput};
use crate::request::{Kind, Operation};
use crate::response::Response;

#[derive(Deserialize)]
struct Offers {
    #[serde(rename = "Offers")]
    offers: Vec<Value>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(rename = "_rid")]
    rid: String,
}

impl Container {
    /// The container's own throughput; `None` when it shares its database's, or the account is serverless.
    ///
    /// # Errors
    /// As any operation.
    pub async fn throughput(&self, options: CallOptions) -> Result<Option<Throughput>, Error> {
        let call = Call::start(&self.driver().core, &options);
        let rid = self.cell().info(&self.driver().core, &call).await?.rid.clone();
        Ok(find(self.driver(), &rid, &call).await?.as_ref().and_then(read))
    }

    /// Sets the container's own throughput, also from fixed to scaled and back.
    ///
    /// # Errors
    /// As any operation; [`crate::ErrorKind::NotFound`] when it has no throughput of its own.
    pub async fn replace_throughput(
        &self,
        throughput: Throughput,
        options: CallOptions,
    ) -> Result<Response, Error> {
        let call = Call::start(&self.driver().core, &options);
        let rid = self.cell().info(&self.driver().core, &call).await?.rid.clone();
        replace(self.driver(), &rid, throughput, &call).await
    }
}

impl Database {
    /// The throughput its containers share; `None` when they have their own, or the account is serverless.
    ///
    /// # Errors
    /// As any operation.
    pub async fn throughput(&self, options: CallOptions) -> Result<Option<Throughput>, Error> {
        let call = Call::start(&self.driver().core, &options);
        let Resource { rid } = self.read(options.clone()).await?.json()?;
        Ok(find(self.driver(), &rid, &call).await?.as_ref().and_then(read))
    }

    /// Sets the throughput its containers share, also from fixed to scaled and back.
    ///
    /// # Errors
    /// As any operation; [`crate::ErrorKind::NotFound`] when it has none.
    pub async fn replace_throughput(
        &self,
        throughput: Throughput,
        options: CallOptions,
    ) -> Result<Response, Error> {
        let call = Call::start(&self.driver().core, &options);
        let Resource { rid } = self.read(options.clone()).await?.json()?;
        replace(self.driver(), &rid, throughput, &call).await
    }
}

/// Says how much a new database or container shall have.
pub(crate) fn ask_for(operation: &mut Operation, throughput: Option<Throughput>) {
    let asked = match throughput {
        None => return,
        Some(Throughput::Manual(units)) => (header::OFFER_THROUGHPUT, HeaderValue::from(units)),
        Some(Throughput::Autoscale { max }) => {
            let settings = HeaderValue::try_from(format!(r#"{{"maxThroughput":{max}}}"#));
            (header::OFFER_AUTOPILOT_SETTINGS, settings.expect("plain ASCII"))
        }
    };
    operation.headers.push((HeaderName::from_static(asked.0), asked.1));
}

async fn find(driver: &Driver, rid: &str, call: &Call<'_>) -> Result<Option<Value>, Error> {
    let mut operation = Operation::new(
        Kind::QueryOffers,
        ResourceKind::Offer,
        "".into(),
        PathAndQuery::from_static("/offers"),
    );
    operation.body = to_json(&json!({
        "query": "SELECT * FROM c WHERE c.offerResourceId = @rid",
        "parameters": [{ "name": "@rid", "value": rid }],
    }))?;
    let found: Offers = Box::pin(run(&driver.core, operation, call)).await?.json()?;
    Ok(found.offers.into_iter().find(|offer| offer["offerResourceId"] == rid))
}

async fn replace(
    driver: &Driver,
    rid: &str,
    throughput: Throughput,
    call: &Call<'_>,
) -> Result<Response, Error> {
    let none = "it has no throughput of its own: it shares its database's, or the account is serverless";
    let offer = find(driver, rid, call).await?.ok_or_else(|| Error::not_found(none))?;
    let place = offer["_rid"].as_str().ok_or_else(|| Error::protocol("an offer without a rid"))?;
    let was = read(&offer);
    // Offers are signed by their id in lower case.
    let link = place.to_lowercase().into();
    // From one kind to the other is a step of its own; the service then chooses the amount.
    if let Some(migration) = migration(was, throughput) {
        let mut operation = Operation::new(
            Kind::ReplaceOffer,
            ResourceKind::Offer,
            link,
            path_of(format!("/offers/{place}"))?,
        );
        operation.headers.push((HeaderName::from_static(migration), HeaderValue::from_static("true")));
        operation.body = to_json(&offer)?;
        let answer = Box::pin(run(&driver.core, operation, call)).await?;
        let migrated: Value = answer.json()?;
        if read(&migrated) == Some(throughput) {
            return Ok(answer);
        }
        return Box::pin(set(driver, &migrated, place, throughput, call)).await;
    }
    set(driver, &offer, place, throughput, call).await
}

async fn set(
    driver: &Driver,
    offer: &Value,
    place: &str,
    throughput: Throughput,
    call: &Call<'_>,
) -> Result<Response, Error> {
    let mut operation = Operation::new(
        Kind::ReplaceOffer,
        ResourceKind::Offer,
        place.to_lowercase().into(),
        path_of(format!("/offers/{place}"))?,
    );
    operation.body = to_json(&with(offer, throughput))?;
    Box::pin(run(&driver.core, operation, call)).await
}

/// An offer's throughput. Pure.
fn read(offer: &Value) -> Option<Throughput> {
    let units = |value: &Value| value.as_u64().and_then(|units| u32::try_from(units).ok());
    let content = &offer["content"];
    match units(&content["offerAutopilotSettings"]["maxThroughput"]) {
        Some(max) => Some(Throughput::Autoscale { max }),
        None => units(&content["offerThroughput"]).map(Throughput::Manual),
    }
}

/// The header that changes an offer's kind, where it has to change. Pure.
fn migration(was: Option<Throughput>, shall: Throughput) -> Option<&'static str> {
    match (was, shall) {
        (Some(Throughput::Manual(_)), Throughput::Autoscale { .. }) => {
            Some(header::MIGRATE_OFFER_TO_AUTOPILOT)
        }
        (Some(Throughput::Autoscale { .. }), Throughput::Manual(_)) => Some(header::MIGRATE_OFFER_TO_MANUAL),
        (Some(Throughput::Manual(_)), Throughput::Manual(_))
        | (Some(Throughput::Autoscale { .. }), Throughput::Autoscale { .. })
        | (None, _) => None,
    }
}

/// The offer with another amount of the same kind. Pure.
fn with(offer: &Value, throughput: Throughput) -> Value {
    let mut offer = offer.clone();
    match throughput {
        Throughput::Manual(units) => offer["content"]["offerThroughput"] = units.into(),
        Throughput::Autoscale { max } => {
            offer["content"]["offerAutopilotSettings"] = json!({ "maxThroughput": max });
        }
    }
    offer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_read_and_changed() {
        let manual = json!({ "content": { "offerThroughput": 400 } });
        let scaled = json!({ "content": { "offerThroughput": 100, "offerAutopilotSettings": { "maxThroughput": 1000 } } });
        assert_eq!(read(&manual), Some(Throughput::Manual(400)));
        assert_eq!(read(&scaled), Some(Throughput::Autoscale { max: 1000 }));
        assert_eq!(read(&with(&manual, Throughput::Manual(500))), Some(Throughput::Manual(500)));
        let more = Throughput::Autoscale { max: 4000 };
        assert_eq!(read(&with(&scaled, more)), Some(more));
        assert_eq!(migration(read(&manual), more), Some(header::MIGRATE_OFFER_TO_AUTOPILOT));
        assert_eq!(migration(read(&scaled), Throughput::Manual(400)), Some(header::MIGRATE_OFFER_TO_MANUAL));
        assert_eq!(migration(read(&scaled), more), None);
    }
}
