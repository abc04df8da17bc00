//! Text to tokens with their places.

use serde_json::{Number, Value};

use super::error::{Code, SyntaxError};

/// Where something stands in the query text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    /// First byte.
    pub(crate) start: usize,
    /// Behind the last byte.
    pub(crate) end: usize,
}

impl Span {
    /// From the start of this to the end of `other`.
    pub(crate) fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }
}

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    /// A name or a keyword; keywords are told apart by the parser, whatever their case.
    Word(String),
    /// `@name`, with the sign.
    Parameter(String),
    /// A number literal.
    Number(Number),
    /// A string literal, unescaped.
    Text(String),
    /// An operator or a bracket.
    Symbol(&'static str),
    /// Behind the last token.
    End,
}

/// Operators and brackets, longest first so that the first match is the right one.
const SYMBOLS: [&str; 34] = [
    ">>>", "<<", ">>", "<=", ">=", "!=", "<>", "||", "??", "(", ")", "[", "]", "{", "}", ",", ".", ":", "?",
    "+", "-", "*", "/", "%", "=", "<", ">", "&", "|", "^", "~", "!", ";", "$",
];

/// Cuts the text into tokens.
pub(crate) fn tokenize(text: &str) -> Result<Vec<(Token, Span)>, SyntaxError> {
    let mut lexer = Lexer { text, at: 0 };
    let mut tokens = Vec::with_capacity(text.len() / 4);
    loop {
        let (token, span) = lexer.next()?;
        let is_end = token == Token::End;
        tokens.push((token, span));
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<(Token, Span), SyntaxError> {
        self.skip_blanks();
        let start = self.at;
        let Some(first) = self.peek() else {
            return Ok((Token::End, Span { start, end: start }));
        };
        let token = if first.is_alphabetic() || first == '_' {
            Token::Word(self.take_word())
        } else if first == '@' {
            self.at += 1;
            let name = self.take_word();
            if name.is_empty() {
                return Err(self.bad_token(start));
            }
            Token::Parameter(format!("@{name}"))
        } else if first.is_ascii_digit() || (first == '.' && self.byte(1).is_some_and(|b| b.is_ascii_digit()))
        {
            self.number()?
        } else if first == '"' || first == '\'' {
            Token::Text(self.string(first)?)
        } else {
            let rest = &self.text[self.at..];
            match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(symbol) if !matches!(*symbol, ";" | "$" | "!") => {
                    self.at += symbol.len();
                    Token::Symbol(symbol)
                }
                _ => {
                    self.at += first.len_utf8();
                    return Err(self.bad_token(start));
                }
            }
        };
        Ok((token, Span { start, end: self.at }))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(next) = self.peek() {
            if next.is_whitespace() || next == '\u{feff}' {
                self.at += next.len_utf8();
            } else if self.text[self.at..].starts_with("--") {
                let line = self.text[self.at..].find('\n').unwrap_or(self.text.len() - self.at);
                self.at += line;
            } else {
                return;
            }
        }
    }

    fn take_word(&mut self) -> String {
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        self.at += length;
        rest[..length].to_owned()
    }

    fn number(&mut self) -> Result<Token, SyntaxError> {
        let start = self.at;
        if self.byte(0) == Some(b'0') && matches!(self.byte(1), Some(b'x' | b'X')) {
            self.at += 2;
            let digits = self.take_word();
            return match i64::from_str_radix(&digits, 16) {
                Ok(number) => Ok(Token::Number(number.into())),
                Err(_) => Err(self.bad_token(start)),
            };
        }
        let is_digit = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_digit());
        while is_digit(self.byte(0)) {
            self.at += 1;
        }
        if self.byte(0) == Some(b'.') {
            self.at += 1;
            while is_digit(self.byte(0)) {
                self.at += 1;
            }
        }
        if matches!(self.byte(0), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(self.byte(1), Some(b'+' | b'-')));
            if is_digit(self.byte(1 + sign)) {
                self.at += 1 + sign;
                while is_digit(self.byte(0)) {
                    self.at += 1;
                }
            }
        }
        if self.peek().is_some_and(|c| c.is_alphabetic() || c == '_') {
            self.take_word();
            return Err(self.bad_token(start));
        }
        let text = &self.text[start..self.at];
        if let Ok(integer) = text.parse::<i64>() {
            return Ok(Token::Number(integer.into()));
        }
        let double = text.parse::<f64>().ok().and_then(super::value::number);
        match double {
            Some(Value::Number(number)) => Ok(Token::Number(number)),
            _ => Err(self.bad_token(start)),
        }
    }

    fn string(&mut self, quote: char) -> Result<String, SyntaxError> {
        let start = self.at;
        self.at += 1;
        let mut units: Vec<u16> = Vec::new();
        let mut text = String::new();
        while let Some(next) = self.peek() {
            self.at += next.len_utf8();
            if next == '\\' && self.byte(0) == Some(b'u') {
                let digits = self
                    .text
                    .get(self.at + 1..self.at + 5)
                    .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
                let Some(unit) = digits.and_then(|d| u16::from_str_radix(d, 16).ok()) else {
                    return Err(self.bad_token(start));
                };
                self.at += 5;
                units.push(unit);
                continue;
            }
            flush_units(&mut units, &mut text);
            if next == quote {
                return Ok(text);
            }
            if next != '\\' {
                text.push(next);
                continue;
            }
            let Some(escaped) = self.peek() else { break };
            self.at += escaped.len_utf8();
            text.push(match escaped {
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                '"' | '\'' | '\\' | '/' => escaped,
                _ => return Err(self.bad_token(start)),
            });
        }
        Err(self.bad_token(start))
    }

    fn bad_token(&self, start: usize) -> SyntaxError {
        let near = self.text[start..self.at].chars().take(64).collect::<String>();
        SyntaxError::new(
            Code::BadToken,
            Span { start, end: self.at },
            format!("Syntax error, invalid token '{near}'."),
        )
    }
}

/// `\uD83D\uDE00` is one character; a lone half becomes the replacement character, as in stored documents.
fn flush_units(units: &mut Vec<u16>, text: &mut String) {
    if !units.is_empty() {
        text.push_str(&String::from_utf16_lossy(units));
        units.clear();
    }
}
