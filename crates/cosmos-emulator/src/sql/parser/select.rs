//! The clauses of a SELECT.

use super::super::ast::{Collection, Count, Expr, Input, InputMode, Item, Kind, OrderKey, Query, Select};
use super::super::error::{Code, SyntaxError};
use super::super::lexer::{Span, Token};
use super::super::source::Direction;
use super::Parser;

/// Most inputs a query may join.
const JOINS_MAX: usize = 10;
/// Largest count the service takes for TOP, OFFSET and LIMIT.
const COUNT_MAX: u64 = i32::MAX as u64;

impl Parser<'_> {
    pub(super) fn query(&mut self) -> Result<Query, SyntaxError> {
        self.nested(Self::select_query)
    }

    fn select_query(&mut self) -> Result<Query, SyntaxError> {
        self.expect_word("SELECT")?;
        let distinct = if self.is_word("DISTINCT") { Some(self.advance()) } else { None };
        let top = if self.take_word("TOP") {
            let message = "The count value provided for a TOP clause must be an integer.";
            Some(self.count(Code::TopCount, message)?)
        } else {
            None
        };
        let select = self.select_clause()?;
        let from = if self.take_word("FROM") { self.inputs()? } else { Vec::new() };
        let filter = if self.take_word("WHERE") { Some(self.expr()?) } else { None };
        let mut group_by = Vec::new();
        if self.take_word("GROUP") {
            self.expect_word("BY")?;
            group_by = self.expr_list()?;
        }
        let (mut order_by, mut rank) = (Vec::new(), None);
        if self.take_word("ORDER") {
            self.expect_word("BY")?;
            if self.is_word("RANK") && !matches!(self.peek_behind(1), Token::Symbol("." | "[") | Token::End) {
                self.advance();
                rank = Some(self.expr()?);
                if self.is_word("ASC") || self.is_word("DESC") {
                    let message =
                        "Specifying a sort order (ASC or DESC) in the ORDER BY RANK clause is not allowed.";
                    return Err(SyntaxError::new(Code::RankDirection, self.span(), message));
                }
            } else {
                order_by = self.order_keys()?;
            }
        }
        let offset_limit = if self.take_word("OFFSET") {
            let offset =
                self.count(Code::OffsetCount, "The OFFSET count value exceeds the maximum allowed value.")?;
            self.expect_word("LIMIT")?;
            let limit =
                self.count(Code::LimitCount, "The LIMIT count value exceeds the maximum allowed value.")?;
            Some((offset, limit))
        } else {
            None
        };
        Ok(Query {
            distinct,
            top,
            select,
            from,
            filter,
            group_by,
            order_by,
            rank,
            offset_limit,
            resume: None,
        })
    }

    fn select_clause(&mut self) -> Result<Select, SyntaxError> {
        if self.is_symbol("*") {
            return Ok(Select::Star(self.advance()));
        }
        if self.take_word("VALUE") {
            return Ok(Select::Value(self.expr()?));
        }
        let mut items = Vec::new();
        loop {
            let expr = self.expr()?;
            let named =
                self.take_word("AS") || matches!(self.peek(), Token::Word(word) if !super::is_reserved(word));
            let alias = if named { Some(self.name()?) } else { None };
            items.push(Item { expr, alias });
            if !self.take_symbol(",") {
                return Ok(Select::List(items));
            }
        }
    }

    fn count(&mut self, code: Code, message: &str) -> Result<Count, SyntaxError> {
        let span = self.span();
        match self.peek() {
            Token::Parameter(name) => {
                let name = name.clone();
                self.advance();
                Ok(Count::Parameter(name))
            }
            Token::Number(number) => {
                let count = number.as_u64().filter(|count| *count <= COUNT_MAX);
                self.advance();
                count.map(Count::Number).ok_or_else(|| SyntaxError::new(code, span, message))
            }
            _ => Err(self.unexpected()),
        }
    }

    fn inputs(&mut self) -> Result<Vec<Input>, SyntaxError> {
        let mut inputs = vec![self.input()?];
        while self.is_word("JOIN") {
            let span = self.advance();
            if inputs.len() > JOINS_MAX {
                let message = format!("The query exceeds the maximum of {JOINS_MAX} joins.");
                return Err(SyntaxError::new(Code::TooManyJoins, span, message));
            }
            inputs.push(self.input()?);
        }
        Ok(inputs)
    }

    fn input(&mut self) -> Result<Input, SyntaxError> {
        let start = self.span();
        let is_each = matches!(self.peek(), Token::Word(word) if !super::is_reserved(word))
            && matches!(self.peek_behind(1), Token::Word(word) if word.eq_ignore_ascii_case("IN"));
        if is_each {
            let alias = self.name()?;
            self.expect_word("IN")?;
            let collection = self.collection()?;
            let span = start.to(self.last_span());
            return Ok(Input { collection, alias: Some(alias), mode: InputMode::Each, span });
        }
        let collection = self.collection()?;
        let named =
            self.take_word("AS") || matches!(self.peek(), Token::Word(word) if !super::is_reserved(word));
        let alias = if named { Some(self.name()?) } else { None };
        Ok(Input { collection, alias, mode: InputMode::Whole, span: start.to(self.last_span()) })
    }

    fn collection(&mut self) -> Result<Collection, SyntaxError> {
        if self.take_symbol("(") {
            let query = self.query()?;
            self.expect_symbol(")")?;
            return Ok(Collection::Subquery(Box::new(query)));
        }
        let span = self.span();
        let root = self.name()?;
        let mut path = self.node(Kind::Name(root), span)?;
        loop {
            if self.take_symbol(".") {
                let name = self.name()?;
                path = self.node(Kind::Property(Box::new(path), name), span.to(self.last_span()))?;
            } else if self.take_symbol("[") {
                let index = self.index_literal()?;
                self.expect_symbol("]")?;
                path = self.node(Kind::Index(Box::new(path), Box::new(index)), span.to(self.last_span()))?;
            } else {
                return Ok(Collection::Path(path));
            }
        }
    }

    fn index_literal(&mut self) -> Result<Expr, SyntaxError> {
        let span: Span = self.span();
        let value = match self.peek() {
            Token::Text(text) => text.clone().into(),
            Token::Number(number) if number.is_u64() => number.clone().into(),
            _ => return Err(self.unexpected()),
        };
        self.advance();
        self.node(Kind::Literal(value), span)
    }

    fn order_keys(&mut self) -> Result<Vec<OrderKey>, SyntaxError> {
        let mut keys = Vec::new();
        loop {
            let expr = self.expr()?;
            let direction = if self.take_word("ASC") {
                Some(Direction::Ascending)
            } else if self.take_word("DESC") {
                Some(Direction::Descending)
            } else {
                None
            };
            keys.push(OrderKey { expr, direction });
            if !self.take_symbol(",") {
                return Ok(keys);
            }
        }
    }
}
