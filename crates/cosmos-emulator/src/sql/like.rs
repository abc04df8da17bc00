//! LIKE patterns: `%`, `_`, `[a-z]`, `[^a-z]`, and an escape character.

use crate::Failure;

/// Most steps one match may take: pattern length times text length, where a hostile pair would otherwise run long.
const STEPS_MAX: usize = 50_000_000;

enum Part {
    Any,
    One,
    Char(char),
    Set { ranges: Vec<(char, char)>, negated: bool },
}

/// Whether the whole text matches the pattern. Greedy with one point of return, so never exponential.
pub(crate) fn is_match(text: &str, pattern: &str, escape: Option<char>) -> Result<bool, Failure> {
    let parts = compile(pattern, escape);
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut part) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    let mut steps = 0;
    while at < text.len() {
        steps += 1;
        if steps > STEPS_MAX {
            return Err(Failure::bad_request(
                "The LIKE pattern takes too many steps. Use a shorter pattern.",
            ));
        }
        match parts.get(part) {
            Some(Part::Any) => {
                retry = Some((part + 1, at));
                part += 1;
            }
            Some(one) if one.accepts(text[at]) => {
                part += 1;
                at += 1;
            }
            _ => match retry {
                Some((behind, from)) => {
                    retry = Some((behind, from + 1));
                    part = behind;
                    at = from + 1;
                }
                None => return Ok(false),
            },
        }
    }
    Ok(parts[part.min(parts.len())..].iter().all(|part| matches!(part, Part::Any)))
}

/// The one text that matches, where a pattern leaves no choice.
pub(crate) fn whole_text(pattern: &str, escape: Option<char>) -> Option<String> {
    let parts = compile(pattern, escape);
    parts.iter().map(|part| if let Part::Char(c) = part { Some(*c) } else { None }).collect()
}

/// The text every match begins with, for an index to use.
pub(crate) fn literal_prefix(pattern: &str, escape: Option<char>) -> String {
    compile(pattern, escape)
        .iter()
        .map_while(|part| if let Part::Char(c) = part { Some(*c) } else { None })
        .collect()
}

impl Part {
    fn accepts(&self, c: char) -> bool {
        match self {
            Part::Any => false,
            Part::One => true,
            Part::Char(expected) => *expected == c,
            Part::Set { ranges, negated } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

fn compile(pattern: &str, escape: Option<char>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut chars = pattern.chars().peekable();
    while let Some(next) = chars.next() {
        if Some(next) == escape {
            parts.extend(chars.next().map(Part::Char));
            continue;
        }
        match next {
            '%' if matches!(parts.last(), Some(Part::Any)) => {}
            '%' => parts.push(Part::Any),
            '_' => parts.push(Part::One),
            '[' => match set(&mut chars.clone()) {
                Some((part, length)) => {
                    parts.push(part);
                    for _ in 0..length {
                        chars.next();
                    }
                }
                None => parts.push(Part::Char('[')),
            },
            other => parts.push(Part::Char(other)),
        }
    }
    parts
}

/// A set behind its opening bracket, and how many characters it takes; nothing if it does not end.
fn set(chars: &mut dyn Iterator<Item = char>) -> Option<(Part, usize)> {
    /// Longer sets are no sets, so that unclosed brackets do not make compiling quadratic.
    const SET_CHARS_MAX: usize = 256;
    let inside: Vec<char> = chars.take(SET_CHARS_MAX).collect();
    let negated = inside.first() == Some(&'^');
    let start = usize::from(negated);
    let end = start + inside[start..].iter().position(|c| *c == ']')?;
    let members = &inside[start..end];
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < members.len() {
        if members.get(at + 1) == Some(&'-') && at + 2 < members.len() {
            ranges.push((members[at], members[at + 2]));
            at += 3;
        } else {
            ranges.push((members[at], members[at]));
            at += 1;
        }
    }
    Some((Part::Set { ranges, negated }, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        let cases = [
            ("abc", "abc", true),
            ("abc", "ab", false),
            ("abc", "a%", true),
            ("abc", "%c", true),
            ("abc", "%b%", true),
            ("abc", "a_c", true),
            ("abc", "a_", false),
            ("abc", "[a-b]%", true),
            ("abc", "[^a]%", false),
            ("", "%", true),
            ("", "", true),
            ("a[c", "a[c", true),
            ("aXbXc", "a%X%c", true),
            ("日本語", "日__", true),
        ];
        for (text, pattern, expected) in cases {
            assert_eq!(is_match(text, pattern, None).unwrap(), expected, "{text} LIKE {pattern}");
        }
        assert!(is_match("10%", "10!%", Some('!')).unwrap());
        assert!(!is_match("10x", "10!%", Some('!')).unwrap());
    }

    #[test]
    fn hostile_patterns_end() {
        let (text, pattern) = ("a".repeat(20_000), "%a".repeat(10_000) + "b");
        assert!(!is_match(&text, &pattern, None).unwrap());
    }

    #[test]
    fn prefixes_stop_at_the_first_wildcard() {
        assert_eq!(literal_prefix("ab%c", None), "ab");
        assert_eq!(literal_prefix("a!%_", Some('!')), "a%");
        assert_eq!(literal_prefix("%", None), "");
    }
}
