//! Stems of English words by the rules of Porter (1980): `relational` and `relate` both become `relat`.

/// The stem of a word in lower case. Words with other letters than a to z stay as they are.
pub(crate) fn stem(word: &str) -> String {
    if word.len() <= 2 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return word.to_owned();
    }
    let mut word = Word(word.as_bytes().to_vec());
    word.plurals();
    word.past();
    word.final_y();
    word.suffixes(&STEP_2, 0);
    word.suffixes(&STEP_3, 0);
    word.residues();
    word.final_e();
    word.double_l();
    String::from_utf8_lossy(&word.0).into_owned()
}

const STEP_2: [(&str, &str); 20] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("abli", "able"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
];

const STEP_3: [(&str, &str); 7] = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
];

/// Longer ones before those they end with.
const STEP_4: [&str; 19] = [
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize",
    "ion", "al", "er", "ic", "ou",
];

struct Word(Vec<u8>);

impl Word {
    fn is_consonant(&self, at: usize) -> bool {
        match self.0[at] {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => at == 0 || !self.is_consonant(at - 1),
            _ => true,
        }
    }

    /// How often a vowel is followed by a consonant in the first `length` letters.
    fn measure(&self, length: usize) -> usize {
        (1..length).filter(|at| self.is_consonant(*at) && !self.is_consonant(at - 1)).count()
    }

    fn has_vowel(&self, length: usize) -> bool {
        (0..length).any(|at| !self.is_consonant(at))
    }

    fn ends_in_double(&self) -> bool {
        let length = self.0.len();
        length >= 2 && self.0[length - 1] == self.0[length - 2] && self.is_consonant(length - 1)
    }

    /// Consonant, vowel, consonant other than w, x and y, at the end of the first `length` letters.
    fn ends_short(&self, length: usize) -> bool {
        length >= 3
            && self.is_consonant(length - 3)
            && !self.is_consonant(length - 2)
            && self.is_consonant(length - 1)
            && !matches!(self.0[length - 1], b'w' | b'x' | b'y')
    }

    /// The letters before a suffix, if it ends the word.
    fn before(&self, suffix: &str) -> Option<usize> {
        self.0.ends_with(suffix.as_bytes()).then(|| self.0.len() - suffix.len())
    }

    fn replace(&mut self, length: usize, end: &str) {
        self.0.truncate(length);
        self.0.extend_from_slice(end.as_bytes());
    }

    fn plurals(&mut self) {
        if let Some(stem) = self.before("sses").or_else(|| self.before("ies")) {
            self.replace(stem, if self.0.ends_with(b"ies") { "i" } else { "ss" });
        } else if self.before("ss").is_none() && self.before("s").is_some() {
            self.0.pop();
        }
    }

    fn past(&mut self) {
        if let Some(stem) = self.before("eed") {
            if self.measure(stem) > 0 {
                self.0.pop();
            }
            return;
        }
        let Some(stem) =
            self.before("ed").or_else(|| self.before("ing")).filter(|stem| self.has_vowel(*stem))
        else {
            return;
        };
        self.0.truncate(stem);
        if ["at", "bl", "iz"].iter().any(|end| self.before(end).is_some()) {
            self.0.push(b'e');
        } else if self.ends_in_double() && !matches!(self.0.last(), Some(b'l' | b's' | b'z')) {
            self.0.pop();
        } else if self.measure(self.0.len()) == 1 && self.ends_short(self.0.len()) {
            self.0.push(b'e');
        }
    }

    fn final_y(&mut self) {
        if let Some(stem) = self.before("y").filter(|stem| self.has_vowel(*stem)) {
            self.replace(stem, "i");
        }
    }

    /// Replaces the longest suffix that ends the word, if more than `measure_min` stands before it.
    fn suffixes(&mut self, table: &[(&str, &str)], measure_min: usize) {
        let fitting = table.iter().filter(|(suffix, _)| self.before(suffix).is_some());
        let Some((suffix, end)) = fitting.max_by_key(|(suffix, _)| suffix.len()) else { return };
        let stem = self.0.len() - suffix.len();
        if self.measure(stem) > measure_min {
            self.replace(stem, end);
        }
    }

    fn residues(&mut self) {
        let Some((suffix, stem)) = STEP_4.iter().find_map(|suffix| Some((*suffix, self.before(suffix)?)))
        else {
            return;
        };
        let is_fit = suffix != "ion" || (stem > 0 && matches!(self.0[stem - 1], b's' | b't'));
        if is_fit && self.measure(stem) > 1 {
            self.0.truncate(stem);
        }
    }

    fn final_e(&mut self) {
        let Some(stem) = self.before("e") else { return };
        let measure = self.measure(stem);
        if measure > 1 || (measure == 1 && !self.ends_short(stem)) {
            self.0.pop();
        }
    }

    fn double_l(&mut self) {
        if self.0.last() == Some(&b'l') && self.ends_in_double() && self.measure(self.0.len()) > 1 {
            self.0.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn words_become_the_stems_of_the_published_examples() {
        let examples = "caresses caress ponies poni ties ti cats cat feed feed agreed agre plastered plaster bled bled \
             motoring motor sing sing conflated conflat troubled troubl sized size hopping hop tanned tan falling fall \
             hissing hiss fizzed fizz failing fail filing file happy happi sky sky relational relat conditional condit \
             rational ration valenci valenc digitizer digit conformabli conform radicalli radic differentli differ \
             vileli vile analogousli analog vietnamization vietnam predication predic operator oper feudalism feudal \
             decisiveness decis hopefulness hope callousness callous formaliti formal sensitiviti sensit triplicate \
             triplic formative form formalize formal electriciti electr electrical electr hopeful hope goodness good \
             revival reviv allowance allow inference infer airliner airlin adjustable adjust defensible defens \
             irritant irrit replacement replac adjustment adjust dependent depend adoption adopt homologou homolog \
             communism commun activate activ angulariti angular homologous homolog effective effect bowdlerize \
             bowdler probate probat rate rate cease ceas controll control roll roll running run runs run";
        let words: Vec<&str> = examples.split_whitespace().collect();
        for pair in words.chunks(2) {
            assert_eq!(stem(pair[0]), pair[1], "{}", pair[0]);
        }
    }

    #[test]
    fn words_of_other_letters_stay_whole() {
        for word in ["à", "cafés", "r2d2", "is", "s", ""] {
            assert_eq!(stem(word), word);
        }
    }
}
