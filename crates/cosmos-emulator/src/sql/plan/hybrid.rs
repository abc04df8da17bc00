//! The plan of a search: the query that counts over all documents what scores need, and one query for each score.
//!
//! The client sends the first to every partition and adds up what it hears; puts the sums into the others in place of
//! `{documentdb-formattablehybridsearchquery-..}`; sends those to the partitions; and fuses the ranks.

use serde::Serialize;
use serde_json::Map;

use super::super::ast::{Aggregate, BinaryOp, Callee, Count, Expr, Item, Kind, OrderKey, Query, Select};
use super::super::bind::{Parameters, count_of};
use super::super::lexer::Span;
use super::super::print::expr_in_service_spelling;
use super::super::rank::{Component, PLACE_CONSTANT, Ranking};
use super::super::source::Direction;
use super::rewrite::{expr, name, named, object, payload_of, root_of, with_placeholder};
use super::{DistinctType, Features, QueryInfo, direction_name, refuse_missing, text_of};
use crate::Failure;

/// How the client searches.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HybridSearch {
    /// Counts over all documents.
    pub global_statistics_query: String,
    /// One query for each score.
    pub component_query_infos: Vec<QueryInfo>,
    /// Always empty.
    pub component_without_payload_query_infos: Vec<QueryInfo>,
    /// Always null.
    pub projection_query_info: Option<QueryInfo>,
    /// What each score weighs; empty where all weigh the same.
    pub component_weights: Vec<f64>,
    /// OFFSET.
    pub skip: Option<u64>,
    /// TOP or LIMIT.
    pub take: Option<u64>,
    /// Whether any score needs the counts.
    pub requires_global_statistics: bool,
}

/// Fewest rows a component asks each partition for: those further behind hardly count when ranks are fused.
const TAKE_MIN: u64 = 2 * PLACE_CONSTANT as u64;
/// The score of what has none, where the best has the highest, as the service spells it.
const WORST: &str = "-1.79769e+308";
/// The same where the best has the lowest.
const WORST_LOW: &str = "1.79769e+308";

/// The text with numbers in place of the counts.
pub(super) fn filled(text: &str) -> String {
    let mut parts = text.split(PLACEHOLDER);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |filled, part| filled + "0" + part.split_once('}').map_or("", |(_, rest)| rest))
}

/// How the name of a count begins.
const PLACEHOLDER: &str = "{documentdb-formattablehybridsearchquery-";

/// The plan of a query with ORDER BY RANK.
pub(super) fn describe(
    query: &Query,
    bound: &Query,
    parameters: &Parameters,
    features: &Features,
) -> Result<HybridSearch, Failure> {
    Ranking::check(bound)?;
    let (Some(rank), Some(bound_rank)) = (&query.rank, &bound.rank) else {
        return Err(Failure::bad_request("The query ranks by nothing."));
    };
    // Weights count as they are; everything else stays as the query spells it, parameters included.
    let known = Ranking::of(bound_rank)?;
    let ranking =
        Ranking { components: components_of(rank, known.components.len())?, weights: known.weights };
    let needs = [("HybridSearch", true), ("WeightedRankFusion", !ranking.weights.is_empty())];
    refuse_missing(&needs, features)?;
    let count = |count: &Count, clause| count_of(count, clause, parameters);
    let top = query.top.as_ref().map(|top| count(top, "TOP")).transpose()?;
    let (skip, limit) = match &query.offset_limit {
        Some((offset, limit)) => (Some(count(offset, "OFFSET")?), Some(count(limit, "LIMIT")?)),
        None => (None, None),
    };
    let take = top.or(limit);
    let search = Search {
        query,
        ranking: &ranking,
        take: take.map(|take| take.saturating_add(skip.unwrap_or(0)).max(TAKE_MIN)),
        // What the client fuses need not be merged by a key before.
        is_plain: features.has("HybridSearchSkipOrderByRewrite") && ranking.components.len() > 1,
        is_lone: features.has("HybridSearchSkipOrderByRewrite") && ranking.components.len() == 1,
    };
    let components = 0..ranking.components.len();
    Ok(HybridSearch {
        global_statistics_query: text_of(&statistics(query, &ranking))?,
        component_query_infos: components.map(|at| search.component(at)).collect::<Result<_, _>>()?,
        component_without_payload_query_infos: Vec::new(),
        projection_query_info: None,
        component_weights: ranking.weights.iter().map(|weight| weight.abs()).collect(),
        skip,
        take,
        requires_global_statistics: ranking.components.iter().any(is_text),
    })
}

/// The scores as the query spells them.
fn components_of(rank: &Expr, count: usize) -> Result<Vec<Component>, Failure> {
    let Kind::Call(callee, span, arguments) = &rank.kind else { return Ok(Ranking::of(rank)?.components) };
    if arguments.len() <= count {
        return Ok(Ranking::of(rank)?.components);
    }
    let is_fusion = matches!(callee, Callee::Builtin(function) if function.name == "RRF");
    let arguments = if is_fusion { arguments[..count].to_vec() } else { arguments.clone() };
    Ok(Ranking::of(&Expr::new(Kind::Call(callee.clone(), *span, arguments), rank.span))?.components)
}

fn is_text(component: &Component) -> bool {
    matches!(component, Component::Text { .. })
}

/// `SELECT COUNT(1) AS documentCount, [{..}, ..] AS fullTextStatistics` over all documents.
fn statistics(query: &Query, ranking: &Ranking) -> Query {
    let aggregate = |aggregate, argument| expr(Kind::Aggregate(aggregate, 0, Box::new(argument)));
    let texts = ranking.components.iter().filter_map(|component| {
        let hits = component.hits().into_iter().map(|hit| aggregate(Aggregate::CountIf, hit)).collect();
        let words = aggregate(Aggregate::Sum, component.words()?);
        Some(object(vec![("totalWordCount", words), ("hitCounts", expr(Kind::Array(hits)))]))
    });
    let items = vec![
        named(aggregate(Aggregate::Count, Expr::literal(1)), "documentCount"),
        named(expr(Kind::Array(texts.collect())), "fullTextStatistics"),
    ];
    Query {
        select: Select::List(items),
        from: query.from.iter().take(1).cloned().collect(),
        top: None,
        filter: None,
        rank: None,
        offset_limit: None,
        ..query.clone()
    }
}

struct Search<'q> {
    query: &'q Query,
    ranking: &'q Ranking,
    /// How many rows each partition gives.
    take: Option<u64>,
    /// Whether rows come as they are, without keys to merge them by.
    is_plain: bool,
    /// Whether there is one score, by which the client merges and which it need not be told again.
    is_lone: bool,
}

impl Search<'_> {
    fn component(&self, at: usize) -> Result<QueryInfo, Failure> {
        let score = self.score(at);
        let direction = self.ranking.direction(at);
        let is_text = is_text(&self.ranking.components[at]);
        // The nearest vector comes first by itself.
        let spelt = (is_text || direction == Direction::Ascending).then_some(direction);
        let rewritten = Query {
            top: self.take.map(Count::Number),
            select: Select::List(self.items(&score)),
            filter: if self.is_plain {
                self.query.filter.clone()
            } else {
                Some(with_placeholder(self.query))
            },
            order_by: vec![OrderKey { expr: score.clone(), direction: spelt }],
            rank: None,
            offset_limit: None,
            ..self.query.clone()
        };
        let keys: &[Expr] = if self.is_plain { &[] } else { std::slice::from_ref(&score) };
        Ok(QueryInfo {
            distinct_type: DistinctType::None,
            top: self.take.filter(|_| !self.is_plain),
            offset: None,
            limit: None,
            order_by: keys.iter().map(|_| direction_name(Some(direction))).collect(),
            order_by_expressions: keys.iter().map(expr_in_service_spelling).collect(),
            group_by_expressions: Vec::new(),
            group_by_aliases: Vec::new(),
            aggregates: Vec::new(),
            group_by_alias_to_aggregate_type: Map::new(),
            rewritten_query: text_of(&rewritten)?,
            has_select_value: false,
            d_count_info: None,
            has_non_streaming_order_by: !self.is_plain,
        })
    }

    /// The score, with the counts left to the client.
    fn score(&self, at: usize) -> Expr {
        let placeholder = |name: &str| {
            let text = format!("{PLACEHOLDER}{name}}}");
            Expr::new(Kind::Verbatim(text), Span::default())
        };
        let words = placeholder(&format!("totalwordcount-{at}"));
        let hits = placeholder(&format!("hitcountsarray-{at}"));
        self.ranking.components[at].score(placeholder("totaldocumentcount"), words, hits)
    }

    fn items(&self, score: &Expr) -> Vec<Item> {
        let rid = expr(Kind::Property(Box::new(name(root_of(self.query))), "_rid".to_owned()));
        let rid = Item { expr: rid, alias: None };
        let payload = payload_of(self.query);
        let components = 0..if self.is_lone { 0 } else { self.ranking.components.len() };
        let scores = expr(Kind::Array(components.map(|at| self.known_score(at)).collect()));
        if self.is_plain {
            return vec![rid, named(payload, "payload"), named(scores, "componentScores")];
        }
        let key = expr(Kind::Array(vec![object(vec![("item", score.clone())])]));
        let payload = object(vec![("payload", payload), ("componentScores", scores)]);
        vec![rid, named(key, "orderByItems"), named(payload, "payload")]
    }

    /// The score, or the worst there can be.
    fn known_score(&self, at: usize) -> Expr {
        let is_rising = self.ranking.direction(at) == Direction::Ascending;
        let worst = match (&self.ranking.components[at], is_rising) {
            (Component::Text { .. }, false) => "-1",
            (Component::Vector { .. }, false) => WORST,
            (_, true) => WORST_LOW,
        };
        let worst = expr(Kind::Verbatim(worst.to_owned()));
        let known = expr(Kind::Coalesce(Box::new([self.score(at), worst])));
        if is_rising && self.is_plain {
            let sign = expr(Kind::Verbatim("-1".to_owned()));
            return expr(Kind::Binary(BinaryOp::Multiply, Box::new(sign), Box::new(known)));
        }
        known
    }
}
