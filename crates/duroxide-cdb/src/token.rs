//! Lock tokens that carry their address.
//!
//! A token says which partition and document it locks, so that ack, renew and abandon need no search, not even in
//! a process that never saw the fetch. The last part is random: it is what makes a token unguessable and unique.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// What a token locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// An instance, for one turn.
    Turn {
        /// The instance, which is also the partition.
        instance: String,
        /// The random part, stored in the head.
        secret: String,
    },
    /// A work item.
    Work {
        /// The partition that holds the item.
        partition: String,
        /// The item's document id.
        id: String,
        /// The random part, stored in the document.
        secret: String,
    },
}

impl Token {
    /// A fresh token for a turn of `instance`.
    pub(crate) fn turn(instance: &str) -> Self {
        Self::Turn { instance: instance.to_owned(), secret: fresh() }
    }

    /// A fresh token for a work item.
    pub(crate) fn work(partition: &str, id: &str) -> Self {
        Self::Work { partition: partition.to_owned(), id: id.to_owned(), secret: fresh() }
    }

    /// The random part.
    pub(crate) fn secret(&self) -> &str {
        match self {
            Self::Turn { secret, .. } | Self::Work { secret, .. } => secret,
        }
    }

    /// The partition a token is about, for logs; `None` for anything this crate did not make.
    pub(crate) fn partition_of(text: &str) -> Option<String> {
        Self::parse(text).map(|token| match token {
            Self::Turn { instance: partition, .. } | Self::Work { partition, .. } => partition,
        })
    }

    /// Reads a token back; `None` for anything this crate did not make.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('.').collect();
        match parts.as_slice() {
            [VERSION, "o", instance, secret] => {
                Some(Self::Turn { instance: decode(instance)?, secret: (*secret).to_owned() })
            }
            [VERSION, "w", partition, id, secret] => Some(Self::Work {
                partition: decode(partition)?,
                id: decode(id)?,
                secret: (*secret).to_owned(),
            }),
            _ => None,
        }
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Turn { instance, secret } => write!(f, "{VERSION}.o.{}.{secret}", encode(instance)),
            Self::Work { partition, id, secret } => {
                write!(f, "{VERSION}.w.{}.{}.{secret}", encode(partition), encode(id))
            }
        }
    }
}

fn fresh() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn decode(text: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

const VERSION: &str = "v1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_for_any_name() {
        for name in ["plain", "a.b/c\\d", "o'brien \"x\"", "emoji 🦀\n", ""] {
            let turn = Token::turn(name);
            assert_eq!(Token::parse(&turn.to_string()), Some(turn));
            let work = Token::work(name, "work:1:2");
            assert_eq!(Token::parse(&work.to_string()), Some(work));
        }
    }

    #[test]
    fn strangers_are_not_tokens() {
        for text in ["", "nonsense", "v1.o", "v2.o.YQ.x", "v1.w.YQ.x", "v1.o.%%.x"] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }

    #[test]
    fn two_fetches_never_share_a_token() {
        assert_ne!(Token::turn("a"), Token::turn("a"));
    }
}
