//! The partition-key ranges of a container, as a feed that ends with 304.

use cosmos_wire::number::Style;

use super::{Envelope, Reply, container};
use crate::failure::Failure;
use crate::http::headers::name;
use crate::http::{Account, Call};

pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let container = container(account, call)?;
    let asked = call.asked();
    let since = asked.text(name::IF_NONE_MATCH).filter(|_| asked.is_change_feed());
    let answer = account.engine.ranges(&container, since)?;
    let body = if answer.status == 304 {
        bytes::Bytes::new()
    } else {
        Envelope::new(&container.rid(), "PartitionKeyRanges").values(&answer.ranges, Style::Point)
    };
    Ok(Reply {
        status: answer.status,
        body,
        charge: answer.charge,
        etag: Some(answer.etag),
        item_count: Some(answer.ranges.len()),
        container: Some(container.content_path.clone()),
        ..Reply::default()
    })
}
