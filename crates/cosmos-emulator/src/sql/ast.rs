//! The syntax tree. It prints back to SQL in the service's own spelling (see [`print`](super::print)).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::exec::Resume;
use super::function::Function;
use super::lexer::Span;
use super::source::Direction;

/// One SELECT, at the top or inside another.
#[derive(Debug, Clone)]
pub struct Query {
    pub(crate) distinct: Option<Span>,
    pub(crate) top: Option<Count>,
    pub(crate) select: Select,
    /// The first input and its joins; empty without FROM.
    pub(crate) from: Vec<Input>,
    pub(crate) filter: Option<Expr>,
    pub(crate) group_by: Vec<Expr>,
    pub(crate) order_by: Vec<OrderKey>,
    /// What `ORDER BY RANK` ranks by.
    pub(crate) rank: Option<Expr>,
    pub(crate) offset_limit: Option<(Count, Count)>,
    /// Rows before this one were had by the client in another way than by a continuation.
    pub(crate) resume: Option<Resume>,
}

/// The count of TOP, OFFSET or LIMIT.
#[derive(Debug, Clone)]
pub(crate) enum Count {
    /// Written out.
    Number(u64),
    /// Given as a parameter.
    Parameter(String),
}

/// What a SELECT yields.
#[derive(Debug, Clone)]
pub(crate) enum Select {
    /// `*`.
    Star(Span),
    /// `VALUE expr`.
    Value(Expr),
    /// A list of properties.
    List(Vec<Item>),
}

/// One property of a SELECT list.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) expr: Expr,
    pub(crate) alias: Option<String>,
}

/// One input of FROM or JOIN.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) collection: Collection,
    pub(crate) alias: Option<String>,
    pub(crate) mode: InputMode,
    pub(crate) span: Span,
}

/// Whether an input binds its collection or the elements of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputMode {
    /// `FROM c.path AS x`.
    Whole,
    /// `x IN c.path`.
    Each,
}

/// Where an input comes from.
#[derive(Debug, Clone)]
pub(crate) enum Collection {
    /// A name and steps into it.
    Path(Expr),
    /// A query in parentheses.
    Subquery(Box<Query>),
}

/// One key of ORDER BY.
#[derive(Debug, Clone)]
pub(crate) struct OrderKey {
    pub(crate) expr: Expr,
    /// Absent when the text does not say.
    pub(crate) direction: Option<Direction>,
}

/// An expression and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
    /// Height of the tree below; the parser bounds it, so that walking it cannot exhaust the stack.
    pub(crate) depth: u16,
}

/// The forms of an expression.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Undefined,
    Literal(Value),
    Parameter(String),
    Name(String),
    /// `.name`.
    Property(Box<Expr>, String),
    /// `[expr]`.
    Index(Box<Expr>, Box<Expr>),
    Array(Vec<Expr>),
    Object(Vec<(String, Expr)>),
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Between(Polarity, Box<[Expr; 3]>),
    In(Polarity, Box<Expr>, Vec<Expr>, Option<Arc<BTreeSet<String>>>),
    Like(Polarity, Box<[Expr; 2]>, Option<char>),
    Conditional(Box<[Expr; 3]>),
    Coalesce(Box<[Expr; 2]>),
    Call(Callee, Span, Vec<Expr>),
    /// An aggregate with its number in the query, by which its result is found.
    Aggregate(Aggregate, u32, Box<Expr>),
    Subquery(SubqueryKind, Box<Query>),
    /// A property that the container computes, by its name, and how.
    Computed(String, Box<Expr>),
    /// The n-th expression of GROUP BY, whose value the group holds.
    Group(usize),
    /// Stands for the filter a client puts into a rewritten query.
    FilterPlaceholder,
    /// Printed as it is: a count that a client puts in, or a number that the service spells in its own way.
    Verbatim(String),
}

/// `IN` or `NOT IN`, and alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polarity {
    Plain,
    Negated,
}

/// Operators in front of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnaryOp {
    Not,
    Minus,
    Plus,
    BitNot,
}

/// Operators between two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    BitAnd,
    BitOr,
    BitXor,
    ShiftLeft,
    ShiftRight,
    ShiftRightZero,
    Concat,
}

/// What a call names.
#[derive(Debug, Clone)]
pub(crate) enum Callee {
    Builtin(&'static Function),
    Udf(String),
    Unknown(String),
}

/// Functions over many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aggregate {
    Count,
    CountIf,
    Sum,
    Avg,
    Min,
    Max,
    MakeList,
    MakeSet,
}

/// How a query inside an expression becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubqueryKind {
    /// `(SELECT ..)`: its one row.
    Scalar,
    /// `ARRAY(..)`.
    Array,
    /// `EXISTS(..)`.
    Exists,
    /// `ALL(..)`: whether every row is true.
    All,
    /// `FIRST(..)`.
    First,
    /// `LAST(..)`.
    Last,
}

impl Query {
    /// Calls `visit` with every expression that stands directly in this query, outermost first.
    pub(crate) fn each_expr<'q>(&'q self, visit: &mut dyn FnMut(&'q Expr)) {
        match &self.select {
            Select::Star(_) => {}
            Select::Value(expr) => visit(expr),
            Select::List(items) => items.iter().for_each(|item| visit(&item.expr)),
        }
        for input in &self.from {
            if let Collection::Path(expr) = &input.collection {
                visit(expr);
            }
        }
        self.filter.iter().for_each(&mut *visit);
        self.group_by.iter().for_each(&mut *visit);
        self.order_by.iter().for_each(|key| visit(&key.expr));
        self.rank.iter().for_each(visit);
    }

    /// [`Self::each_expr`] with the right to change them.
    pub(crate) fn each_expr_mut(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        match &mut self.select {
            Select::Star(_) => {}
            Select::Value(expr) => visit(expr),
            Select::List(items) => items.iter_mut().for_each(|item| visit(&mut item.expr)),
        }
        for input in &mut self.from {
            if let Collection::Path(expr) = &mut input.collection {
                visit(expr);
            }
        }
        self.filter.iter_mut().for_each(&mut *visit);
        self.group_by.iter_mut().for_each(&mut *visit);
        self.order_by.iter_mut().for_each(|key| visit(&mut key.expr));
        self.rank.iter_mut().for_each(visit);
    }

    /// The height of the tallest expression, subqueries of FROM included.
    pub(crate) fn depth(&self) -> u16 {
        let mut depth = 0;
        self.each_expr(&mut |expr| depth = depth.max(expr.depth));
        for input in &self.from {
            if let Collection::Subquery(query) = &input.collection {
                depth = depth.max(query.depth() + 1);
            }
        }
        depth
    }

    /// Whether the SELECT clause holds an aggregate of this query (not of a query inside it).
    pub(crate) fn has_aggregate(&self) -> bool {
        match &self.select {
            Select::Star(_) => false,
            Select::Value(expr) => expr.has_aggregate(),
            Select::List(items) => items.iter().any(|item| item.expr.has_aggregate()),
        }
    }
}

impl Input {
    /// The name by which expressions see this input: its alias, or the last step of its path.
    pub(crate) fn name(&self) -> Option<&str> {
        if let Some(alias) = &self.alias {
            return Some(alias);
        }
        match &self.collection {
            Collection::Path(expr) => expr.last_name(),
            Collection::Subquery(_) => None,
        }
    }
}

impl Expr {
    pub(crate) fn new(kind: Kind, span: Span) -> Self {
        let mut expr = Self { kind, span, depth: 0 };
        let mut depth = 0;
        expr.each_child(&mut |child| depth = depth.max(child.depth));
        if let Kind::Subquery(_, query) = &expr.kind {
            depth = query.depth();
        }
        expr.depth = depth.saturating_add(1);
        expr
    }

    pub(crate) fn literal(value: impl Into<Value>) -> Self {
        Self::new(Kind::Literal(value.into()), Span::default())
    }

    /// Calls `visit` with every direct operand; queries inside are not entered.
    pub(crate) fn each_child<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        match &self.kind {
            Kind::Undefined | Kind::Literal(_) | Kind::Parameter(_) | Kind::Name(_) => {}
            Kind::Subquery(..) | Kind::Group(_) => {}
            Kind::FilterPlaceholder | Kind::Verbatim(_) => {}
            Kind::Property(base, _) | Kind::Unary(_, base) | Kind::Aggregate(_, _, base) => visit(base),
            Kind::Computed(_, base) => visit(base),
            Kind::Index(left, right) | Kind::Binary(_, left, right) => {
                visit(left);
                visit(right);
            }
            Kind::Array(items) | Kind::And(items) | Kind::Or(items) | Kind::Call(_, _, items) => {
                items.iter().for_each(visit);
            }
            Kind::Object(entries) => entries.iter().for_each(|(_, item)| visit(item)),
            Kind::Between(_, three) | Kind::Conditional(three) => three.iter().for_each(visit),
            Kind::In(_, needle, items, _) => {
                visit(needle);
                items.iter().for_each(visit);
            }
            Kind::Like(_, two, _) | Kind::Coalesce(two) => two.iter().for_each(visit),
        }
    }

    /// [`Self::each_child`] with the right to change them.
    pub(crate) fn each_child_mut(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        match &mut self.kind {
            Kind::Undefined | Kind::Literal(_) | Kind::Parameter(_) | Kind::Name(_) => {}
            Kind::Subquery(..) | Kind::Group(_) => {}
            Kind::FilterPlaceholder | Kind::Verbatim(_) => {}
            Kind::Property(base, _) | Kind::Unary(_, base) | Kind::Aggregate(_, _, base) => visit(base),
            Kind::Computed(_, base) => visit(base),
            Kind::Index(left, right) | Kind::Binary(_, left, right) => {
                visit(left);
                visit(right);
            }
            Kind::Array(items) | Kind::And(items) | Kind::Or(items) | Kind::Call(_, _, items) => {
                items.iter_mut().for_each(visit);
            }
            Kind::Object(entries) => entries.iter_mut().for_each(|(_, item)| visit(item)),
            Kind::Between(_, three) | Kind::Conditional(three) => three.iter_mut().for_each(visit),
            Kind::In(_, needle, items, _) => {
                visit(needle);
                items.iter_mut().for_each(visit);
            }
            Kind::Like(_, two, _) | Kind::Coalesce(two) => two.iter_mut().for_each(visit),
        }
    }

    /// Whether an aggregate stands in here, queries inside left out.
    pub(crate) fn has_aggregate(&self) -> bool {
        if matches!(self.kind, Kind::Aggregate(..)) {
            return true;
        }
        let mut found = false;
        self.each_child(&mut |child| found |= child.has_aggregate());
        found
    }

    /// The name a SELECT list gives to this expression by itself: the last step of a path.
    pub(crate) fn last_name(&self) -> Option<&str> {
        match &self.kind {
            Kind::Name(name) | Kind::Property(_, name) => Some(name),
            Kind::Index(_, index) => match &index.kind {
                Kind::Literal(Value::String(name)) => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// The value, if it is written out.
    pub(crate) fn as_literal(&self) -> Option<&Value> {
        match &self.kind {
            Kind::Literal(value) => Some(value),
            _ => None,
        }
    }
}

impl Aggregate {
    /// By its name in a query text, whatever the case.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        const ALL: [Aggregate; 8] = [
            Aggregate::Count,
            Aggregate::CountIf,
            Aggregate::Sum,
            Aggregate::Avg,
            Aggregate::Min,
            Aggregate::Max,
            Aggregate::MakeList,
            Aggregate::MakeSet,
        ];
        ALL.into_iter().find(|aggregate| aggregate.name().eq_ignore_ascii_case(name))
    }

    /// Its name in a query text.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Aggregate::Count => "COUNT",
            Aggregate::CountIf => "COUNTIF",
            Aggregate::Sum => "SUM",
            Aggregate::Avg => "AVG",
            Aggregate::Min => "MIN",
            Aggregate::Max => "MAX",
            Aggregate::MakeList => "MAKELIST",
            Aggregate::MakeSet => "MAKESET",
        }
    }

    /// Its name in a query plan.
    pub(crate) fn plan_name(self) -> &'static str {
        match self {
            Aggregate::Count => "Count",
            Aggregate::CountIf => "CountIf",
            Aggregate::Sum => "Sum",
            Aggregate::Avg => "Average",
            Aggregate::Min => "Min",
            Aggregate::Max => "Max",
            Aggregate::MakeList => "MakeList",
            Aggregate::MakeSet => "MakeSet",
        }
    }
}

impl SubqueryKind {
    /// The keyword in front of the parentheses.
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            SubqueryKind::Scalar => "",
            SubqueryKind::Array => "ARRAY",
            SubqueryKind::Exists => "EXISTS",
            SubqueryKind::All => "ALL",
            SubqueryKind::First => "FIRST",
            SubqueryKind::Last => "LAST",
        }
    }
}

impl BinaryOp {
    /// Its sign.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            BinaryOp::Equal => "=",
            BinaryOp::NotEqual => "!=",
            BinaryOp::Less => "<",
            BinaryOp::LessOrEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterOrEqual => ">=",
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
            BinaryOp::Modulo => "%",
            BinaryOp::BitAnd => "&",
            BinaryOp::BitOr => "|",
            BinaryOp::BitXor => "^",
            BinaryOp::ShiftLeft => "<<",
            BinaryOp::ShiftRight => ">>",
            BinaryOp::ShiftRightZero => ">>>",
            BinaryOp::Concat => "||",
        }
    }
}
