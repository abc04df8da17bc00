//! GROUP BY and aggregates.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::ast::{Aggregate, Expr, Kind, Query, Select};
use super::super::eval::{Context, Env, eval};
use super::super::value::{
    ENTRY_BYTES, compare, json_bytes, kept_bytes, key_of, number, to_double, write_key,
};
use super::order::{compare_keys, keys_of};
use super::project::project;
use crate::Failure;

/// The groups of a query in the order in which they first came. Without GROUP BY there is exactly one, also over no
/// rows.
pub(crate) struct Groups<'q> {
    query: &'q Query,
    aggregates: Vec<(Aggregate, u32, &'q Expr)>,
    groups: Vec<Group>,
    index: BTreeMap<String, usize>,
}

struct Group {
    keys: Vec<Option<Value>>,
    accumulators: Vec<Accumulator>,
}

impl<'q> Groups<'q> {
    pub(crate) fn new(query: &'q Query) -> Self {
        let mut aggregates = Vec::new();
        match &query.select {
            Select::Star(_) => {}
            Select::Value(expr) => collect(expr, &mut aggregates),
            Select::List(items) => items.iter().for_each(|item| collect(&item.expr, &mut aggregates)),
        }
        query.order_by.iter().for_each(|key| collect(&key.expr, &mut aggregates));
        let mut groups = Self { query, aggregates, groups: Vec::new(), index: BTreeMap::new() };
        if query.group_by.is_empty() {
            groups.open(Vec::new());
        }
        groups
    }

    /// Goes on where [`Self::states`] was taken; only without GROUP BY. Nothing if they do not belong together.
    pub(crate) fn resume(query: &'q Query, states: Vec<Accumulator>) -> Option<Self> {
        let mut groups = Self::new(query);
        let fresh = &groups.groups.first()?.accumulators;
        let fits = fresh.len() == states.len()
            && fresh.iter().zip(&states).all(|(a, b)| std::mem::discriminant(a) == std::mem::discriminant(b));
        groups.groups[0].accumulators = fits.then_some(states)?;
        Some(groups)
    }

    /// The state of the only group, if it is small enough to travel.
    pub(crate) fn states(&self) -> Option<&[Accumulator]> {
        let states = &self.groups.first()?.accumulators;
        (self.query.group_by.is_empty() && !states.iter().any(Accumulator::keeps_all)).then_some(states)
    }

    fn open(&mut self, keys: Vec<Option<Value>>) -> usize {
        let accumulators =
            self.aggregates.iter().map(|(aggregate, ..)| Accumulator::new(*aggregate)).collect();
        self.groups.push(Group { keys, accumulators });
        self.groups.len() - 1
    }

    /// Takes what is bound into its group.
    pub(crate) fn add(&mut self, env: Env<'_>) -> Result<(), Failure> {
        let mut at = 0;
        if !self.query.group_by.is_empty() {
            let (mut key, mut keys) = (String::new(), Vec::with_capacity(self.query.group_by.len()));
            for expr in &self.query.group_by {
                let value = eval(expr, env)?.map(Cow::into_owned);
                write_key(value.as_ref(), &mut key);
                keys.push(value);
            }
            at = match self.index.get(&key) {
                Some(at) => *at,
                None => {
                    let values = keys.iter().flatten().map(kept_bytes).sum::<usize>();
                    let own = ENTRY_BYTES + self.aggregates.len() * size_of::<Accumulator>();
                    env.context.keep(own + key.len() + values)?;
                    let at = self.open(keys);
                    self.index.insert(key, at);
                    at
                }
            };
        }
        for (accumulator, (_, _, argument)) in self.groups[at].accumulators.iter_mut().zip(&self.aggregates) {
            if let Some(value) = eval(argument, env)? {
                if accumulator.keeps_all() {
                    env.context.grow(json_bytes(&value))?;
                }
                let (kept, let_go) = accumulator.add(&value);
                env.context.release(let_go);
                env.context.keep(kept)?;
            }
        }
        Ok(())
    }

    /// One row per group, in the order of the query where it has one. `outer` is what a query inside another still
    /// sees.
    pub(crate) fn into_rows(self, outer: Env<'_>) -> Result<Vec<Value>, Failure> {
        Ok(self.rows(outer)?.into_iter().map(|(_, row)| row).collect())
    }

    /// [`Self::into_rows`] at the top, each with the key of its group.
    pub(crate) fn into_keyed_rows(self, context: &Context) -> Result<Vec<(String, Value)>, Failure> {
        let rows = self.rows(Env::new(context))?;
        let mut keys = vec![String::new(); self.groups.len()];
        for (key, at) in self.index {
            keys[at] = key;
        }
        Ok(rows.into_iter().map(|(at, row)| (std::mem::take(&mut keys[at]), row)).collect())
    }

    /// Each row with the number of its group.
    fn rows(&self, outer: Env<'_>) -> Result<Vec<(usize, Value)>, Failure> {
        let mut rows = Vec::with_capacity(self.groups.len());
        for (at, group) in self.groups.iter().enumerate() {
            let results: Vec<(u32, Option<Value>)> = group
                .accumulators
                .iter()
                .zip(&self.aggregates)
                .map(|(accumulator, (_, id, _))| (*id, accumulator.result()))
                .collect();
            let env = Env { aggregates: &results, groups: &group.keys, ..outer };
            if let Some(row) = project(self.query, env)? {
                rows.push((keys_of(&self.query.order_by, env)?, at, row));
            }
        }
        if !self.query.order_by.is_empty() {
            rows.sort_by(|(a, ..), (b, ..)| compare_keys(a, b));
        }
        Ok(rows.into_iter().map(|(_, at, row)| (at, row)).collect())
    }
}

fn collect<'q>(expr: &'q Expr, aggregates: &mut Vec<(Aggregate, u32, &'q Expr)>) {
    if let Kind::Aggregate(aggregate, id, argument) = &expr.kind {
        aggregates.push((*aggregate, *id, argument));
        return;
    }
    expr.each_child(&mut |child| collect(child, aggregates));
}

/// What an aggregate knows so far. Undefined values never reach it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Accumulator {
    /// Defined values.
    Count(u64),
    /// Values that are true.
    CountIf(u64),
    /// The sum; nothing once something other than a number came.
    Sum(Option<Total>),
    /// The sum and the number of summands.
    Avg(Option<Total>, u64),
    /// The least so far, none before the first, and whether something without an order came. A list tells null from
    /// nothing in a continuation.
    Min(Vec<Value>, bool),
    /// The greatest so far, none before the first, and whether something without an order came.
    Max(Vec<Value>, bool),
    /// All of them.
    List(Vec<Value>),
    /// All different ones, and their keys.
    Set(Vec<Value>, BTreeSet<String>),
}

/// A sum: exact as long as integers are enough.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Total {
    /// Integers only, so far.
    Exact(i64),
    /// Doubles.
    Double(f64),
}

impl Total {
    fn add(self, value: &serde_json::Number) -> Self {
        if let (Total::Exact(total), Some(value)) = (self, value.as_i64())
            && let Some(sum) = total.checked_add(value)
        {
            return Total::Exact(sum);
        }
        Total::Double(self.double() + to_double(value))
    }

    fn double(self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "the service's doubles lose it too")]
            Total::Exact(total) => total as f64,
            Total::Double(total) => total,
        }
    }

    fn value(self) -> Option<Value> {
        match self {
            Total::Exact(total) => Some(total.into()),
            Total::Double(total) => number(total),
        }
    }
}

impl Accumulator {
    fn new(aggregate: Aggregate) -> Self {
        match aggregate {
            Aggregate::Count => Accumulator::Count(0),
            Aggregate::CountIf => Accumulator::CountIf(0),
            Aggregate::Sum => Accumulator::Sum(Some(Total::Exact(0))),
            Aggregate::Avg => Accumulator::Avg(Some(Total::Exact(0)), 0),
            Aggregate::Min => Accumulator::Min(Vec::new(), false),
            Aggregate::Max => Accumulator::Max(Vec::new(), false),
            Aggregate::MakeList => Accumulator::List(Vec::new()),
            Aggregate::MakeSet => Accumulator::Set(Vec::new(), BTreeSet::new()),
        }
    }

    fn keeps_all(&self) -> bool {
        matches!(self, Accumulator::List(_) | Accumulator::Set(..))
    }

    /// Takes a value in; says how many bytes it keeps of it, and how many it lets go for it.
    fn add(&mut self, value: &Value) -> (usize, usize) {
        match self {
            Accumulator::Count(count) => *count += 1,
            Accumulator::CountIf(count) => *count += u64::from(value == &Value::Bool(true)),
            Accumulator::Sum(total) => *total = plus(*total, value),
            Accumulator::Avg(total, count) => {
                *total = plus(*total, value);
                *count += 1;
            }
            Accumulator::Min(best, mixed) => return keep(best, mixed, value, Ordering::Less),
            Accumulator::Max(best, mixed) => return keep(best, mixed, value, Ordering::Greater),
            Accumulator::List(values) => {
                values.push(value.clone());
                return (kept_bytes(value), 0);
            }
            Accumulator::Set(values, keys) => {
                let key = key_of(Some(value));
                let bytes = ENTRY_BYTES + key.len() + kept_bytes(value);
                if keys.insert(key) {
                    values.push(value.clone());
                    return (bytes, 0);
                }
            }
        }
        (0, 0)
    }

    fn result(&self) -> Option<Value> {
        match self {
            Accumulator::Count(count) | Accumulator::CountIf(count) => Some((*count).into()),
            Accumulator::Sum(total) => (*total)?.value(),
            #[expect(clippy::cast_precision_loss, reason = "nobody counts beyond 2^53")]
            Accumulator::Avg(total, count) => number((*total)?.double() / *count as f64),
            Accumulator::Min(best, mixed) | Accumulator::Max(best, mixed) => {
                best.first().cloned().filter(|_| !mixed)
            }
            Accumulator::List(values) | Accumulator::Set(values, _) => Some(values.clone().into()),
        }
    }
}

fn plus(total: Option<Total>, value: &Value) -> Option<Total> {
    match value {
        Value::Number(number) => Some(total?.add(number)),
        _ => None,
    }
}

/// Keeps the better of two values; says how many bytes it keeps and lets go.
fn keep(best: &mut Vec<Value>, mixed: &mut bool, value: &Value, wanted: Ordering) -> (usize, usize) {
    *mixed |= value.is_array() || value.is_object();
    let is_better = best.first().is_none_or(|best| compare(Some(value), Some(best)) == wanted);
    if !is_better || *mixed {
        return (0, 0);
    }
    let let_go = best.first().map_or(0, kept_bytes);
    *best = vec![value.clone()];
    (kept_bytes(value), let_go)
}
