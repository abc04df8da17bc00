//! Expressions by precedence.

use serde_json::Value;

use super::super::ast::{Aggregate, BinaryOp, Callee, Expr, Kind, Polarity, SubqueryKind, UnaryOp};
use super::super::error::{Code, SyntaxError};
use super::super::function;
use super::super::lexer::{Span, Token};
use super::{Parser, negated};

/// How strongly operators bind, weakest first.
pub(crate) const CONDITIONAL: u8 = 1;
pub(crate) const COALESCE: u8 = 2;
pub(crate) const OR: u8 = 3;
pub(crate) const AND: u8 = 4;
pub(crate) const NOT: u8 = 5;
pub(crate) const EQUALITY: u8 = 9;
pub(crate) const RELATION: u8 = 10;
pub(crate) const UNARY: u8 = 14;

impl Parser<'_> {
    pub(super) fn expr(&mut self) -> Result<Expr, SyntaxError> {
        self.binding(CONDITIONAL)
    }

    pub(super) fn expr_list(&mut self) -> Result<Vec<Expr>, SyntaxError> {
        let mut items = vec![self.expr()?];
        while self.take_symbol(",") {
            items.push(self.expr()?);
        }
        Ok(items)
    }

    /// An expression of operators that bind at least as strongly as `floor`.
    fn binding(&mut self, floor: u8) -> Result<Expr, SyntaxError> {
        self.nested(|parser| {
            let mut left = parser.prefix()?;
            while let Some(infix) = parser.infix(floor) {
                left = parser.apply(left, infix)?;
            }
            Ok(left)
        })
    }

    /// The next infix operator, if it binds at least as strongly as `floor`.
    fn infix(&self, floor: u8) -> Option<Infix> {
        let infix = match self.peek() {
            Token::Symbol(sign) => symbol_infix(sign)?,
            Token::Word(word) => {
                let not = word.eq_ignore_ascii_case("NOT");
                let (polarity, word) = match self.peek_behind(1) {
                    Token::Word(next) if not => (Polarity::Negated, next),
                    _ => (Polarity::Plain, word),
                };
                word_infix(word, polarity)?
            }
            _ => return None,
        };
        (infix.strength() >= floor).then_some(infix)
    }

    fn apply(&mut self, left: Expr, infix: Infix) -> Result<Expr, SyntaxError> {
        let start = left.span;
        self.advance();
        let kind = match infix {
            Infix::Binary(op) => {
                let right = self.binding(strength_of(op) + 1)?;
                Kind::Binary(op, Box::new(left), Box::new(right))
            }
            Infix::And => Kind::And(self.chain(left, "AND", AND)?),
            Infix::Or => Kind::Or(self.chain(left, "OR", OR)?),
            Infix::Coalesce => Kind::Coalesce(Box::new([left, self.binding(COALESCE + 1)?])),
            Infix::Conditional => {
                let then = self.binding(CONDITIONAL)?;
                self.expect_symbol(":")?;
                Kind::Conditional(Box::new([left, then, self.binding(CONDITIONAL)?]))
            }
            Infix::Between(polarity) => {
                self.skip_not(polarity);
                let low = self.binding(RELATION)?;
                self.expect_word("AND")?;
                Kind::Between(polarity, Box::new([left, low, self.binding(RELATION)?]))
            }
            Infix::In(polarity) => {
                self.skip_not(polarity);
                self.expect_symbol("(")?;
                let items = self.expr_list()?;
                self.expect_symbol(")")?;
                Kind::In(polarity, Box::new(left), items, None)
            }
            Infix::Like(polarity) => {
                self.skip_not(polarity);
                let pattern = self.binding(RELATION)?;
                let escape = if self.take_word("ESCAPE") { Some(self.escape()?) } else { None };
                Kind::Like(polarity, Box::new([left, pattern]), escape)
            }
        };
        self.node(kind, start.to(self.last_span()))
    }

    /// `a AND b AND c` as one list: long filters stay flat.
    fn chain(&mut self, first: Expr, word: &str, strength: u8) -> Result<Vec<Expr>, SyntaxError> {
        let mut operands = vec![first];
        loop {
            operands.push(self.binding(strength + 1)?);
            if !self.take_word(word) {
                return Ok(operands);
            }
        }
    }

    /// `NOT IN` is two words; the first is gone already.
    fn skip_not(&mut self, polarity: Polarity) {
        if polarity == Polarity::Negated {
            self.advance();
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        let Token::Text(text) = self.peek() else { return Err(self.unexpected()) };
        let mut chars = text.chars();
        let (Some(escape), None) = (chars.next(), chars.next()) else { return Err(self.unexpected()) };
        self.advance();
        Ok(escape)
    }

    fn prefix(&mut self) -> Result<Expr, SyntaxError> {
        let start = self.span();
        if self.is_word("NOT") {
            self.advance();
            let operand = self.binding(NOT + 1)?;
            return self.node(Kind::Unary(UnaryOp::Not, Box::new(operand)), start.to(self.last_span()));
        }
        let op = match self.peek() {
            Token::Symbol("-") => UnaryOp::Minus,
            Token::Symbol("+") => UnaryOp::Plus,
            Token::Symbol("~") => UnaryOp::BitNot,
            _ => {
                let primary = self.primary()?;
                return self.steps(primary);
            }
        };
        self.advance();
        let operand = self.binding(UNARY)?;
        let span = start.to(self.last_span());
        if let (UnaryOp::Minus, Kind::Literal(value)) = (op, &operand.kind)
            && let Some(value) = negated(value)
        {
            return self.node(Kind::Literal(value), span);
        }
        self.node(Kind::Unary(op, Box::new(operand)), span)
    }

    /// `.name` and `[index]` behind an expression.
    fn steps(&mut self, mut base: Expr) -> Result<Expr, SyntaxError> {
        loop {
            let start = base.span;
            if self.take_symbol(".") {
                let name = self.name()?;
                base = self.node(Kind::Property(Box::new(base), name), start.to(self.last_span()))?;
            } else if self.take_symbol("[") {
                let index = self.expr()?;
                self.expect_symbol("]")?;
                base = self.node(Kind::Index(Box::new(base), Box::new(index)), start.to(self.last_span()))?;
            } else {
                return Ok(base);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, SyntaxError> {
        let span = self.span();
        let kind = match self.peek().clone() {
            Token::Number(number) => Kind::Literal(Value::Number(number)),
            Token::Text(text) => Kind::Literal(Value::String(text)),
            Token::Parameter(name) => Kind::Parameter(name),
            Token::Symbol("(") => return self.parenthesis(span),
            Token::Symbol("[") => return self.array(span),
            Token::Symbol("{") => return self.object(span),
            Token::Word(word) => return self.word(&word, span),
            Token::Symbol(_) | Token::End => return Err(self.unexpected()),
        };
        self.advance();
        self.node(kind, span)
    }

    fn parenthesis(&mut self, start: Span) -> Result<Expr, SyntaxError> {
        self.advance();
        if self.is_word("SELECT") {
            let query = self.query()?;
            let end = self.expect_symbol(")")?;
            return self.node(Kind::Subquery(SubqueryKind::Scalar, Box::new(query)), start.to(end));
        }
        let mut inner = self.expr()?;
        inner.span = start.to(self.expect_symbol(")")?);
        Ok(inner)
    }

    fn array(&mut self, start: Span) -> Result<Expr, SyntaxError> {
        self.advance();
        let items = if self.is_symbol("]") { Vec::new() } else { self.expr_list()? };
        let end = self.expect_symbol("]")?;
        self.node(Kind::Array(items), start.to(end))
    }

    fn object(&mut self, start: Span) -> Result<Expr, SyntaxError> {
        self.advance();
        let mut entries = Vec::new();
        while !self.is_symbol("}") {
            let name = match self.peek().clone() {
                Token::Text(text) => {
                    self.advance();
                    text
                }
                _ => self.name()?,
            };
            self.expect_symbol(":")?;
            entries.push((name, self.expr()?));
            if !self.take_symbol(",") {
                break;
            }
        }
        let end = self.expect_symbol("}")?;
        self.node(Kind::Object(entries), start.to(end))
    }

    fn word(&mut self, word: &str, span: Span) -> Result<Expr, SyntaxError> {
        let is_call = matches!(self.peek_behind(1), Token::Symbol("("));
        let subquery = match word.to_ascii_uppercase().as_str() {
            "TRUE" => return self.constant(Kind::Literal(true.into())),
            "FALSE" => return self.constant(Kind::Literal(false.into())),
            "NULL" => return self.constant(Kind::Literal(Value::Null)),
            "UNDEFINED" => return self.constant(Kind::Undefined),
            "UDF" => return self.udf(span),
            "ARRAY" => Some(SubqueryKind::Array),
            "EXISTS" => Some(SubqueryKind::Exists),
            "ALL" => Some(SubqueryKind::All),
            "FIRST" => Some(SubqueryKind::First),
            "LAST" => Some(SubqueryKind::Last),
            _ => None,
        };
        let is_select =
            matches!(self.peek_behind(2), Token::Word(next) if next.eq_ignore_ascii_case("SELECT"));
        if let (Some(kind), true, true) = (subquery, is_call, is_select) {
            self.advance();
            self.advance();
            let query = self.query()?;
            let end = self.expect_symbol(")")?;
            return self.node(Kind::Subquery(kind, Box::new(query)), span.to(end));
        }
        let name = self.name()?;
        if is_call { self.call(name, span) } else { self.node(Kind::Name(name), span) }
    }

    fn constant(&mut self, kind: Kind) -> Result<Expr, SyntaxError> {
        let span = self.advance();
        self.node(kind, span)
    }

    fn udf(&mut self, span: Span) -> Result<Expr, SyntaxError> {
        self.advance();
        self.expect_symbol(".")?;
        let name = self.name()?;
        let name_span = span.to(self.last_span());
        let arguments = self.arguments()?;
        self.node(Kind::Call(Callee::Udf(name), name_span, arguments), span.to(self.last_span()))
    }

    fn arguments(&mut self) -> Result<Vec<Expr>, SyntaxError> {
        self.expect_symbol("(")?;
        let arguments = if self.is_symbol(")") { Vec::new() } else { self.expr_list()? };
        self.expect_symbol(")")?;
        Ok(arguments)
    }

    fn call(&mut self, name: String, name_span: Span) -> Result<Expr, SyntaxError> {
        let mut arguments = self.arguments()?;
        let span = name_span.to(self.last_span());
        if let Some(aggregate) = Aggregate::by_name(&name) {
            let argument = arguments.pop().filter(|_| arguments.is_empty()).ok_or_else(|| {
                let message = format!("The {} function requires 1 argument(s).", aggregate.name());
                SyntaxError::new(Code::ArgumentCount, span, message)
            })?;
            self.aggregates += 1;
            return self.node(Kind::Aggregate(aggregate, self.aggregates, Box::new(argument)), span);
        }
        let callee = match function::by_name(&name) {
            Some(function) => Callee::Builtin(function),
            None => Callee::Unknown(name),
        };
        self.node(Kind::Call(callee, name_span, arguments), span)
    }
}

#[derive(Clone, Copy)]
enum Infix {
    Binary(BinaryOp),
    And,
    Or,
    Coalesce,
    Conditional,
    Between(Polarity),
    In(Polarity),
    Like(Polarity),
}

impl Infix {
    fn strength(self) -> u8 {
        match self {
            Infix::Binary(op) => strength_of(op),
            Infix::And => AND,
            Infix::Or => OR,
            Infix::Coalesce => COALESCE,
            Infix::Conditional => CONDITIONAL,
            Infix::Between(_) | Infix::In(_) | Infix::Like(_) => EQUALITY,
        }
    }
}

/// How strongly an operator between two operands binds.
pub(crate) fn strength_of(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::BitOr => 6,
        BinaryOp::BitXor => 7,
        BinaryOp::BitAnd => 8,
        BinaryOp::Equal | BinaryOp::NotEqual => EQUALITY,
        BinaryOp::Less | BinaryOp::LessOrEqual | BinaryOp::Greater | BinaryOp::GreaterOrEqual => RELATION,
        BinaryOp::ShiftLeft | BinaryOp::ShiftRight | BinaryOp::ShiftRightZero => 11,
        BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Concat => 12,
        BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Modulo => 13,
    }
}

fn symbol_infix(sign: &str) -> Option<Infix> {
    let op = match sign {
        "?" => return Some(Infix::Conditional),
        "??" => return Some(Infix::Coalesce),
        "|" => BinaryOp::BitOr,
        "^" => BinaryOp::BitXor,
        "&" => BinaryOp::BitAnd,
        "=" => BinaryOp::Equal,
        "!=" | "<>" => BinaryOp::NotEqual,
        "<" => BinaryOp::Less,
        "<=" => BinaryOp::LessOrEqual,
        ">" => BinaryOp::Greater,
        ">=" => BinaryOp::GreaterOrEqual,
        "<<" => BinaryOp::ShiftLeft,
        ">>" => BinaryOp::ShiftRight,
        ">>>" => BinaryOp::ShiftRightZero,
        "+" => BinaryOp::Add,
        "-" => BinaryOp::Subtract,
        "||" => BinaryOp::Concat,
        "*" => BinaryOp::Multiply,
        "/" => BinaryOp::Divide,
        "%" => BinaryOp::Modulo,
        _ => return None,
    };
    Some(Infix::Binary(op))
}

fn word_infix(word: &str, polarity: Polarity) -> Option<Infix> {
    match (word.to_ascii_uppercase().as_str(), polarity) {
        ("AND", Polarity::Plain) => Some(Infix::And),
        ("OR", Polarity::Plain) => Some(Infix::Or),
        ("BETWEEN", _) => Some(Infix::Between(polarity)),
        ("IN", _) => Some(Infix::In(polarity)),
        ("LIKE", _) => Some(Infix::Like(polarity)),
        _ => None,
    }
}
