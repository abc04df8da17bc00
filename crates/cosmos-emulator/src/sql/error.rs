//! Refusals of a query text, in the JSON the service writes.

use serde_json::json;

use super::lexer::Span;
use crate::Failure;

/// What is wrong, by the service's own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// SC1001: the grammar does not allow this here.
    Syntax,
    /// SC1002: there is no query.
    Empty,
    /// SC1010: this is no token.
    BadToken,
    /// SC2001: a name nobody declared.
    UnknownName,
    /// SC2005: no such built-in function.
    UnknownFunction,
    /// SC2022: two inputs or two properties of one name.
    DuplicateAlias,
    /// SC2040: `SELECT *` over several inputs.
    StarOverJoin,
    /// SC2041: `SELECT *` with GROUP BY.
    StarWithGroupBy,
    /// SC2042: `SELECT *` without FROM.
    StarWithoutFrom,
    /// SC2050: the wrong number of arguments.
    ArgumentCount,
    /// SC2060: TOP count out of range.
    TopCount,
    /// SC2061: LIMIT count out of range.
    LimitCount,
    /// SC2062: OFFSET count out of range.
    OffsetCount,
    /// SC2101: an aggregate inside an aggregate.
    NestedAggregate,
    /// SC2102: a property that is neither grouped nor aggregated.
    NotGrouped,
    /// SC2104: an aggregate where rows are filtered or grouped.
    MisplacedAggregate,
    /// SC2105: a score where rows are not ranked (the number is ours).
    MisplacedRank,
    /// SC2106: ASC or DESC behind ORDER BY RANK (the number is ours).
    RankDirection,
    /// SC3030: nested too deep.
    TooDeep,
    /// SC3031: too many joins.
    TooManyJoins,
}

impl Code {
    fn text(self) -> &'static str {
        match self {
            Code::Syntax => "SC1001",
            Code::Empty => "SC1002",
            Code::BadToken => "SC1010",
            Code::UnknownName => "SC2001",
            Code::UnknownFunction => "SC2005",
            Code::DuplicateAlias => "SC2022",
            Code::StarOverJoin => "SC2040",
            Code::StarWithGroupBy => "SC2041",
            Code::StarWithoutFrom => "SC2042",
            Code::ArgumentCount => "SC2050",
            Code::TopCount => "SC2060",
            Code::LimitCount => "SC2061",
            Code::OffsetCount => "SC2062",
            Code::NestedAggregate => "SC2101",
            Code::NotGrouped => "SC2102",
            Code::MisplacedAggregate => "SC2104",
            Code::MisplacedRank => "SC2105",
            Code::RankDirection => "SC2106",
            Code::TooDeep => "SC3030",
            Code::TooManyJoins => "SC3031",
        }
    }
}

/// One complaint about a query text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SyntaxError {
    /// What is wrong.
    pub(crate) code: Code,
    /// Where, in bytes of the text.
    pub(crate) span: Span,
    /// In words.
    pub(crate) message: String,
}

impl SyntaxError {
    pub(crate) fn new(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { code, span, message: message.into() }
    }
}

/// The 400 that carries all complaints about `text`. Places are counted in UTF-16 units, as the service does.
pub(crate) fn refusal(text: &str, errors: &[SyntaxError]) -> Failure {
    let place = |at: usize| {
        let mut at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text[..at].encode_utf16().count()
    };
    let errors: Vec<_> = errors
        .iter()
        .take(ERRORS_MAX)
        .map(|error| {
            json!({
                "severity": "Error",
                "location": {"start": place(error.span.start), "end": place(error.span.end)},
                "code": error.code.text(),
                "message": error.message,
            })
        })
        .collect();
    Failure::bad_request(json!({"errors": errors}).to_string())
}

/// More complaints than this help nobody.
const ERRORS_MAX: usize = 20;
