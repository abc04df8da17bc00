//! What ORDER BY RANK ranks by: one score, or several whose ranks are fused.
//!
//! `RRF(FullTextScore(c.text, 'run'), VectorDistance(c.v, [1, 2]), [2, -1])` has two components. Every row has a place
//! in the order of each, best first, or worst first where the weight is negative; equal scores share a place. The row's
//! rank is the sum of `|weight| / (60 + place)`.

use serde_json::Value;

use super::ast::{Callee, Expr, Kind, Query};
use super::function;
use super::lexer::Span;
use super::source::Direction;
use crate::Failure;

/// What is added to each place, so that the first few do not decide alone.
pub(crate) const PLACE_CONSTANT: u32 = 60;

/// The scores of ORDER BY RANK and what each weighs.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    pub(crate) components: Vec<Component>,
    /// One for each component; none where all weigh the same.
    pub(crate) weights: Vec<f64>,
}

/// One score.
#[derive(Debug, Clone)]
pub(crate) enum Component {
    /// How much the text at a path is about some phrases.
    Text {
        path: Box<Expr>,
        phrases: Vec<Expr>,
        /// What the container's policy has put behind the phrases.
        language: Option<Box<Expr>>,
    },
    /// How near a vector is, by the arguments of `VectorDistance`.
    Vector { arguments: Vec<Expr> },
}

impl Ranking {
    /// Of the expression behind ORDER BY RANK. Weights must have been put in where they are a parameter.
    pub(crate) fn of(rank: &Expr) -> Result<Self, Failure> {
        let Some(("RRF", arguments)) = called(rank) else {
            return Ok(Self { components: vec![component(rank)?], weights: Vec::new() });
        };
        let (components, weights) = match arguments.split_last() {
            Some((last, components)) if called(last).is_none() => (components, weights_of(last)?),
            _ => (arguments, Vec::new()),
        };
        let components: Vec<Component> = components.iter().map(component).collect::<Result<_, _>>()?;
        if components.len() < 2 {
            return Err(refused("The RRF function requires at least two scoring functions"));
        }
        if !weights.is_empty() && weights.len() != components.len() {
            return Err(refused("The RRF function requires as many weights as it has scoring functions"));
        }
        Ok(Self { components, weights })
    }

    /// Refuses what cannot be ranked.
    pub(crate) fn check(query: &Query) -> Result<(), Failure> {
        let is_reduced = !query.group_by.is_empty() || query.has_aggregate();
        if is_reduced || query.distinct.is_some() || query.from.is_empty() {
            return Err(refused(
                "ORDER BY RANK does not go with DISTINCT, GROUP BY or aggregates, nor without FROM",
            ));
        }
        Ok(())
    }

    pub(crate) fn weight(&self, component: usize) -> f64 {
        self.weights.get(component).copied().unwrap_or(1.0)
    }

    /// Which scores of a component are the first.
    pub(crate) fn direction(&self, component: usize) -> Direction {
        if self.weight(component) < 0.0 { Direction::Ascending } else { Direction::Descending }
    }
}

impl Component {
    /// The score as an expression over one document, with the counts over all of them.
    pub(crate) fn score(&self, documents: Expr, words: Expr, hits: Expr) -> Expr {
        match self {
            Self::Text { path, phrases, language } => {
                let phrases = expr(Kind::Array(phrases.clone()));
                let mut arguments = vec![(**path).clone(), phrases, documents, words, hits];
                arguments.extend(language.as_deref().cloned());
                call("_FullTextScore", arguments)
            }
            Self::Vector { arguments } => call("_VectorScore", arguments.clone()),
        }
    }

    /// How many words one document has at the path.
    pub(crate) fn words(&self) -> Option<Expr> {
        let Self::Text { path, language, .. } = self else { return None };
        let arguments = std::iter::once(&**path).chain(language.as_deref()).cloned();
        Some(call("_FullTextWordCount", arguments.collect()))
    }

    /// For each phrase whether one document holds it.
    pub(crate) fn hits(&self) -> Vec<Expr> {
        let Self::Text { path, phrases, language } = self else { return Vec::new() };
        let contains = |phrase: &Expr| {
            let arguments = [&**path, phrase].into_iter().chain(language.as_deref());
            call("FullTextContains", arguments.cloned().collect())
        };
        phrases.iter().map(contains).collect()
    }
}

fn component(score: &Expr) -> Result<Component, Failure> {
    match called(score) {
        Some(("FullTextScore", [path, phrases @ ..])) => {
            let (language, phrases) = match phrases.split_last() {
                Some((last, rest)) if is_language(last) => (Some(Box::new(last.clone())), rest),
                _ => (None, phrases),
            };
            let is_path = matches!(path.kind, Kind::Property(..) | Kind::Index(..) | Kind::Computed(..));
            let is_phrase = |phrase: &Expr| match &phrase.kind {
                Kind::Literal(value) => value.is_string() || value.is_object(),
                Kind::Parameter(_) | Kind::Object(_) => true,
                _ => false,
            };
            if !is_path || phrases.is_empty() || !phrases.iter().all(is_phrase) {
                return Err(refused(
                    "The FullTextScore function requires a property path and terms that are strings",
                ));
            }
            Ok(Component::Text { path: Box::new(path.clone()), phrases: phrases.to_vec(), language })
        }
        Some(("VectorDistance", arguments)) => Ok(Component::Vector { arguments: arguments.to_vec() }),
        _ => Err(refused(
            "ORDER BY RANK ranks by FullTextScore, or by RRF of FullTextScore and VectorDistance",
        )),
    }
}

/// Whether a container's policy has put this argument there.
fn is_language(argument: &Expr) -> bool {
    argument.as_literal().is_some_and(|value| value.get(function::LANGUAGE).is_some())
}

fn weights_of(last: &Expr) -> Result<Vec<f64>, Failure> {
    let wrong = || refused("The weights of the RRF function must be an array of numbers");
    let number = |value: &Value| value.as_f64().filter(|weight| weight.is_finite()).ok_or_else(wrong);
    match &last.kind {
        Kind::Literal(Value::Array(weights)) => weights.iter().map(number).collect(),
        Kind::Array(weights) => {
            weights.iter().map(|weight| number(weight.as_literal().ok_or_else(wrong)?)).collect()
        }
        _ => Err(wrong()),
    }
}

/// A built-in function and its arguments, if that is what an expression is.
fn called(expr: &Expr) -> Option<(&'static str, &[Expr])> {
    match &expr.kind {
        Kind::Call(Callee::Builtin(function), _, arguments) => Some((function.name, arguments)),
        _ => None,
    }
}

fn refused(why: &str) -> Failure {
    Failure::bad_request(format!("One of the input values is invalid. {why}."))
}

/// A call of a built-in function.
pub(crate) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let function = function::by_name(name).expect("the functions of ranking are in the table");
    expr(Kind::Call(Callee::Builtin(function), Span::default(), arguments))
}

fn expr(kind: Kind) -> Expr {
    Expr::new(kind, Span::default())
}
