//! Several futures at the same time.

use futures::future::BoxFuture;
use futures::stream::StreamExt as _;

/// Runs futures at the same time, so many at once, and returns their results in order.
pub(crate) async fn in_parallel<'a, T>(
    limit: usize,
    work: impl IntoIterator<Item = BoxFuture<'a, T>>,
) -> Vec<T> {
    let work: Vec<BoxFuture<'a, T>> = work.into_iter().collect();
    futures::stream::iter(work).buffered(limit).collect().await
}
