//! ORDER BY RANK where nobody merges partitions: what one partition key, or one partition, holds.
//!
//! The first pass counts over all documents what full text scores need, whatever the filter says; the second scores
//! what passes the filter.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use serde_json::Value;

use super::super::ast::Expr;
use super::super::bind::ROOT;
use super::super::eval::{Env, Scope, eval, is_true};
use super::super::rank::{Component, PLACE_CONSTANT, Ranking};
use super::super::source::{Access, Direction, Source};
use super::super::value::kept_bytes;
use super::Run;
use super::continuation::Place;
use super::join::each_tuple;
use super::project::project;
use super::window::Window;
use crate::Failure;

/// A row that passed the filter.
struct Scored {
    /// One for each component; none where the document has nothing to score.
    scores: Vec<Option<f64>>,
    row: Value,
}

impl Run<'_> {
    pub(super) fn rank(
        &mut self,
        source: &dyn Source,
        ranking: &Ranking,
        place: Option<&Place>,
    ) -> Result<Option<Place>, Failure> {
        let prepared = self.prepared;
        let query = &prepared.query;
        let scores = self.scores(source, ranking)?;
        let mut rows = source.open(&prepared.access, None)?;
        let mut scored = Vec::new();
        self.each_match(&mut *rows, &mut |env| {
            let Some(row) = project(query, env)? else { return Ok(ControlFlow::Continue(())) };
            let score = |score: &Expr| Ok(eval(score, env)?.and_then(|value| value.as_f64()));
            let scores = scores.iter().map(score).collect::<Result<Vec<_>, Failure>>()?;
            env.context.keep(kept_bytes(&row) + size_of::<Scored>() + size_of_val(scores.as_slice()))?;
            scored.push(Scored { scores, row });
            Ok(ControlFlow::Continue(()))
        })?;
        let order = order_of(&scored, ranking);
        let results = order.into_iter().map(|at| std::mem::take(&mut scored[at].row)).collect();
        let results = Window::of(query).cut(results, usize::MAX);
        Ok(self.hand_out(results, place))
    }

    /// The score of each component as an expression over one document.
    fn scores(&mut self, source: &dyn Source, ranking: &Ranking) -> Result<Vec<Expr>, Failure> {
        let counts = self.counts(source, ranking)?;
        let scored = ranking.components.iter().zip(counts.components).map(|(component, (words, hits))| {
            let hits = hits.into_iter().map(Value::from).collect::<Value>();
            component.score(Expr::literal(counts.documents), Expr::literal(words), Expr::literal(hits))
        });
        Ok(scored.collect())
    }

    fn counts(&mut self, source: &dyn Source, ranking: &Ranking) -> Result<Counts, Failure> {
        let asked: Vec<(Option<Expr>, Vec<Expr>)> =
            ranking.components.iter().map(|component| (component.words(), component.hits())).collect();
        let none = asked.iter().map(|(_, hits)| (0, vec![0; hits.len()])).collect();
        let mut counts = Counts { documents: 0, components: none };
        if !ranking.components.iter().any(|component| matches!(component, Component::Text { .. })) {
            return Ok(counts);
        }
        let from = &self.prepared.query.from;
        let mut rows = source.open(&Access::default(), None)?;
        while let Some(row) = rows.next()? {
            self.page.visited += 1;
            self.context.begin_row();
            self.context.toil(1)?;
            counts.documents += 1;
            let root = Scope { parent: None, name: ROOT, value: &row.document };
            // Paths are seen through the alias of the first input.
            let _ = each_tuple(&from[..1], Env::new(&self.context).within(&root), &mut |env| {
                for ((words, hits), (words_told, hits_told)) in asked.iter().zip(&mut counts.components) {
                    if let Some(words) = words {
                        *words_told += eval(words, env)?.and_then(|count| count.as_u64()).unwrap_or(0);
                    }
                    for (hit, told) in hits.iter().zip(hits_told) {
                        *told += u64::from(is_true(hit, env)?);
                    }
                }
                Ok(ControlFlow::Break(()))
            })?;
        }
        Ok(counts)
    }
}

/// What full text scores must know of all documents.
struct Counts {
    documents: u64,
    /// For each component its words, and the documents that hold each phrase.
    components: Vec<(u64, Vec<u64>)>,
}

/// The rows best first, by their numbers; equal ones as they came.
fn order_of(rows: &[Scored], ranking: &Ranking) -> Vec<usize> {
    let mut fused = vec![0.0; rows.len()];
    for component in 0..ranking.components.len() {
        let direction = ranking.direction(component);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|a, b| compare(rows[*a].scores[component], rows[*b].scores[component], direction));
        let mut place = 1;
        for (at, row) in order.iter().enumerate() {
            let is_same = |before: usize| {
                compare(rows[*row].scores[component], rows[before].scores[component], direction).is_eq()
            };
            if at > 0 && !is_same(order[at - 1]) {
                place += 1;
            }
            fused[*row] += ranking.weight(component).abs() / f64::from(PLACE_CONSTANT + place);
        }
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| fused[*b].total_cmp(&fused[*a]));
    order
}

/// Which score is the better one; none is the worst.
fn compare(left: Option<f64>, right: Option<f64>, direction: Direction) -> Ordering {
    match (left, right) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(left), Some(right)) => match direction {
            Direction::Ascending => left.total_cmp(&right),
            Direction::Descending => right.total_cmp(&left),
        },
    }
}
