//! Texts to words, and phrases in them.

use super::stem::stem;

/// How a text is cut into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// Stems, without the commonest words.
    English,
    /// Words as they stand, in lower case.
    Other,
}

/// Words that are in nearly every English text and say nothing about it.
const COMMON: [&str; 33] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no",
    "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to",
    "was", "will", "with",
];

impl Language {
    /// By its tag in a policy.
    pub(crate) fn by_tag(tag: &str) -> Self {
        match tag.get(..2) {
            Some(language) if language.eq_ignore_ascii_case("en") => Self::English,
            _ => Self::Other,
        }
    }
}

/// The words of a text that count, in order.
pub(crate) fn words(text: &str, language: Language) -> Vec<String> {
    let text = text.to_lowercase().replace('\u{2019}', "'");
    let is_part = |c: char| c.is_alphanumeric() || (c == '\'' && language == Language::English);
    let words = text.split(|c: char| !is_part(c));
    match language {
        Language::Other => words.filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        Language::English => words.filter_map(english).collect(),
    }
}

/// An English word as it is compared; nothing for those that do not count.
fn english(word: &str) -> Option<String> {
    let word = word.trim_matches('\'');
    let word = word.strip_suffix("'s").unwrap_or(word).replace('\'', "");
    (!word.is_empty() && !COMMON.contains(&word.as_str())).then(|| stem(&word))
}

/// Words to be found one behind the other, each within a number of edits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Phrase {
    words: Vec<String>,
    edits_max: usize,
}

impl Phrase {
    /// Of a text, as exact as the language has it.
    pub(crate) fn new(text: &str, language: Language) -> Self {
        Self { words: words(text, language), edits_max: 0 }
    }

    /// The same within a number of edits for each word.
    pub(crate) fn within_edits(self, edits_max: usize) -> Self {
        Self { edits_max, ..self }
    }

    /// How often it stands in a text. A phrase without a word that counts stands nowhere.
    pub(crate) fn count_in(&self, text: &[String]) -> usize {
        if self.words.is_empty() {
            return 0;
        }
        let is_here = |window: &[String]| window.iter().zip(&self.words).all(|(a, b)| self.is_like(a, b));
        text.windows(self.words.len()).filter(|window| is_here(window)).count()
    }

    fn is_like(&self, a: &str, b: &str) -> bool {
        a == b || (self.edits_max > 0 && is_within_edits(a, b, self.edits_max))
    }
}

/// Whether one word becomes the other by at most so many insertions, deletions and replacements.
fn is_within_edits(a: &str, b: &str, edits_max: usize) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > edits_max {
        return false;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
        if row.iter().min() > Some(&edits_max) {
            return false;
        }
    }
    row[b.len()] <= edits_max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn english_words_are_stems_in_lower_case_without_the_commonest() {
        let told = |text: &str| words(text, Language::English).join(" ");
        for (text, expected) in [
            ("She ran; the RUNNING-shoes broke", "she ran run shoe broke"),
            ("John's mother's cars aren\u{2019}t", "john mother car arent"),
            ("the of and", ""),
            ("", ""),
            ("2nd  Émile", "2nd émile"),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
    }

    #[test]
    fn words_of_other_languages_stay_whole() {
        let words = words("Die Häuser d'été", Language::Other);
        assert_eq!(words, ["die", "häuser", "d", "été"]);
    }

    #[test]
    fn a_phrase_is_found_where_its_words_follow_each_other() {
        let count = |phrase: &str, text: &str| {
            Phrase::new(phrase, Language::English).count_in(&words(text, Language::English))
        };
        assert_eq!(count("United States", "the united states; United the States. states united"), 2);
        assert_eq!(count("the", "the end"), 0);
        assert_eq!(count("bicycles", "a bicycle"), 1);
        assert_eq!(count("long phrase here", "phrase"), 0);
    }

    #[test]
    fn a_word_may_be_misspelt_by_as_many_edits_as_are_allowed() {
        for (a, b, edits) in
            [("bicycle", "bicycle", 0), ("bicycle", "bycicle", 2), ("red", "read", 1), ("", "ab", 2)]
        {
            assert!(is_within_edits(a, b, edits), "{a} {b}");
            assert!(edits == 0 || !is_within_edits(a, b, edits - 1), "{a} {b}");
        }
    }
}
