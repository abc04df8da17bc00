//! A condition on one document: `from c where c.x = 1`, as patches carry it.

use std::time::SystemTime;

use serde_json::Value;

use super::ast::{Collection, Expr, Input, InputMode, Kind, Query, Select};
use super::bind::{bind, check};
use super::error::refusal;
use super::eval::{Context, Env, Scope, is_true};
use super::lexer::Span;
use super::parser::parse_condition;
use crate::Failure;

/// A parsed condition.
#[derive(Debug, Clone)]
pub struct Filter {
    alias: String,
    condition: Expr,
}

impl Filter {
    /// Parses `from <alias> where <condition>`.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let (alias, condition) = parse_condition(text).map_err(|error| refusal(text, &[error]))?;
        let root = Expr::new(Kind::Name(alias.clone()), Span::default());
        let input = Input {
            collection: Collection::Path(root),
            alias: None,
            mode: InputMode::Whole,
            span: Span::default(),
        };
        let query = Query {
            distinct: None,
            top: None,
            select: Select::Value(Expr::literal(1)),
            from: vec![input],
            filter: Some(condition),
            group_by: Vec::new(),
            order_by: Vec::new(),
            rank: None,
            resume: None,
            offset_limit: None,
        };
        let errors = check(&query);
        if !errors.is_empty() {
            return Err(refusal(text, &errors));
        }
        let condition = bind(&query, &[])?.filter.unwrap_or_else(|| Expr::literal(true));
        Ok(Self { alias, condition })
    }

    /// Whether the document meets the condition.
    pub fn matches(&self, document: &Value, now: SystemTime) -> Result<bool, Failure> {
        let context = Context::new(now);
        let root = Scope { parent: None, name: &self.alias, value: document };
        is_true(&self.condition, Env::new(&context).within(&root))
    }
}
