//! Text to tree by recursive descent. The parser bounds both its own recursion and the height of the tree it
//! builds, so that no text, however hostile, exhausts the stack here or later.

mod expr;
mod select;

pub(crate) use self::expr::{AND, COALESCE, CONDITIONAL, EQUALITY, NOT, OR, RELATION, UNARY, strength_of};

use serde_json::Value;

use super::ast::{Expr, Kind, Query};
use super::error::{Code, SyntaxError};
use super::lexer::{Span, Token, tokenize};

/// Longest query text, as the account document advertises it.
pub(crate) const TEXT_BYTES_MAX: usize = 524_288;
/// Deepest nesting of parentheses and sub-queries.
const NESTING_MAX: usize = 100;
/// Tallest expression tree: a chain like `1+1+1+..` grows one level per operator.
const HEIGHT_MAX: u16 = 200;

/// Words that cannot be names.
const RESERVED: [&str; 29] = [
    "AND",
    "ARRAY",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "DESC",
    "DISTINCT",
    "ESCAPE",
    "EXISTS",
    "FALSE",
    "FROM",
    "GROUP",
    "IN",
    "JOIN",
    "LIKE",
    "LIMIT",
    "NOT",
    "NULL",
    "OFFSET",
    "OR",
    "ORDER",
    "SELECT",
    "TOP",
    "TRUE",
    "UDF",
    "UNDEFINED",
    "VALUE",
    "WHERE",
];

/// Parses a whole query.
pub(crate) fn parse_query(text: &str) -> Result<Query, SyntaxError> {
    let mut parser = Parser::new(text)?;
    if parser.peek() == &Token::End {
        return Err(SyntaxError::new(Code::Empty, parser.span(), "Syntax error, the query text is empty."));
    }
    let query = parser.query()?;
    parser.finish()?;
    Ok(query)
}

/// Parses the condition of a patch: `from c where ..`; returns the alias and the condition.
pub(crate) fn parse_condition(text: &str) -> Result<(String, Expr), SyntaxError> {
    let mut parser = Parser::new(text)?;
    parser.expect_word("FROM")?;
    let alias = parser.name()?;
    let alias = if parser.take_word("AS") || !parser.is_word("WHERE") { parser.name()? } else { alias };
    parser.expect_word("WHERE")?;
    let condition = parser.expr()?;
    parser.finish()?;
    Ok((alias, condition))
}

struct Parser<'t> {
    text: &'t str,
    tokens: Vec<(Token, Span)>,
    at: usize,
    nesting: usize,
    aggregates: u32,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Result<Self, SyntaxError> {
        if text.len() > TEXT_BYTES_MAX {
            let span = Span { start: 0, end: text.len() };
            let message = format!(
                "The SQL query text exceeded the maximum limit of {TEXT_BYTES_MAX} characters. Shorten the query or \
                 pass long lists as an array parameter with ARRAY_CONTAINS."
            );
            return Err(SyntaxError::new(Code::TooDeep, span, message));
        }
        Ok(Self { text, tokens: tokenize(text)?, at: 0, nesting: 0, aggregates: 0 })
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn peek_behind(&self, ahead: usize) -> &Token {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].0
    }

    fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    fn last_span(&self) -> Span {
        self.tokens[self.at.saturating_sub(1)].1
    }

    fn advance(&mut self) -> Span {
        let span = self.span();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        span
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(found) if found.eq_ignore_ascii_case(word))
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.advance();
        }
        found
    }

    fn expect_word(&mut self, word: &str) -> Result<Span, SyntaxError> {
        if self.is_word(word) { Ok(self.advance()) } else { Err(self.unexpected()) }
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(found) if *found == symbol)
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        if found {
            self.advance();
        }
        found
    }

    fn expect_symbol(&mut self, symbol: &str) -> Result<Span, SyntaxError> {
        if self.is_symbol(symbol) { Ok(self.advance()) } else { Err(self.unexpected()) }
    }

    /// A name that is no keyword.
    fn name(&mut self) -> Result<String, SyntaxError> {
        match self.peek() {
            Token::Word(word) if !is_reserved(word) => {
                let name = word.clone();
                self.advance();
                Ok(name)
            }
            _ => Err(self.unexpected()),
        }
    }

    fn finish(&mut self) -> Result<(), SyntaxError> {
        if self.peek() == &Token::End { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<T, SyntaxError> {
        if self.nesting >= NESTING_MAX {
            return Err(self.too_deep());
        }
        self.nesting += 1;
        let result = parse(self);
        self.nesting -= 1;
        result
    }

    fn node(&self, kind: Kind, span: Span) -> Result<Expr, SyntaxError> {
        let expr = Expr::new(kind, span);
        if expr.depth > HEIGHT_MAX { Err(self.too_deep()) } else { Ok(expr) }
    }

    fn too_deep(&self) -> SyntaxError {
        SyntaxError::new(
            Code::TooDeep,
            self.span(),
            "The query is nested too deep. Split it into simpler expressions.",
        )
    }

    fn unexpected(&self) -> SyntaxError {
        let span = self.span();
        let near = self.text[span.start..span.end].chars().take(64).collect::<String>();
        SyntaxError::new(Code::Syntax, span, format!("Syntax error, incorrect syntax near '{near}'."))
    }
}

fn is_reserved(word: &str) -> bool {
    RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(word))
}

/// Folds a literal behind a minus sign.
fn negated(value: &Value) -> Option<Value> {
    let Value::Number(number) = value else { return None };
    match number.as_i64() {
        Some(integer) => integer.checked_neg().map(Value::from),
        None => super::value::number(-super::value::to_double(number)),
    }
}
