//! How much a text is about some phrases: Okapi BM25.

/// Counts over all documents that are searched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Corpus {
    pub(crate) documents: f64,
    /// Words of all documents at the path.
    pub(crate) words: f64,
    /// For each phrase the documents that hold it.
    pub(crate) hits: Vec<f64>,
}

/// How soon more of a phrase counts for no more.
const SATURATION: f64 = 1.2;
/// How much longer texts count for less.
const LENGTH_WEIGHT: f64 = 0.75;

/// The score of a text of so many words that holds each phrase so many times.
pub(crate) fn bm25(corpus: &Corpus, counts: &[usize], words: usize) -> f64 {
    let average = corpus.words / corpus.documents.max(1.0);
    let length = if average > 0.0 { words as f64 / average } else { 1.0 };
    let parts = counts.iter().zip(&corpus.hits).map(|(count, hits)| {
        let count = *count as f64;
        let rarity = (1.0 + (corpus.documents - hits + 0.5).max(0.0) / (hits + 0.5)).ln();
        let norm = SATURATION * (1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * length);
        rarity * count * (SATURATION + 1.0) / (count + norm)
    });
    parts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rarer_phrases_shorter_texts_and_more_hits_score_higher() {
        let corpus = Corpus { documents: 100.0, words: 10_000.0, hits: vec![1.0, 50.0] };
        let score = |counts: &[usize], words| bm25(&corpus, counts, words);
        assert!(score(&[1, 0], 100) > score(&[0, 1], 100));
        assert!(score(&[1, 0], 50) > score(&[1, 0], 100));
        assert!(score(&[2, 0], 100) > score(&[1, 0], 100));
        assert_eq!(score(&[0, 0], 100), 0.0);
        // ln(1 + 99.5 / 1.5) * 2.2 / 2.2
        assert!((score(&[1, 0], 100) - 4.209_655).abs() < 1e-5);
    }

    #[test]
    fn counts_that_contradict_each_other_give_a_number() {
        let corpus = Corpus { documents: 0.0, words: 0.0, hits: vec![5.0] };
        assert!(bm25(&corpus, &[1], 3).is_finite());
    }
}
