//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

/// A page that is being written: samples of one metric stand together, after what the metric is.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

impl Page {
    /// Begins a metric.
    pub(super) fn metric(&mut self, name: &str, kind: MetricType, help: &str) {
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a text never fails.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One number.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        if !labels.is_empty() {
            let labels: Vec<String> = labels
                .iter()
                .map(|(label, value)| format!("{}=\"{}\"", name_of(label), escaped(value)))
                .collect();
            let _ = write!(self.text, "{{{}}}", labels.join(","));
        }
        let _ = if value.is_nan() {
            writeln!(self.text, " NaN")
        } else if value.is_infinite() {
            writeln!(self.text, " {}Inf", if value > 0.0 { '+' } else { '-' })
        } else {
            writeln!(self.text, " {value}")
        };
    }

    /// A metric that is one number.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.metric(name, MetricType::Gauge, help);
        self.sample(name, &[], value);
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A name as Prometheus allows it.
pub(super) fn name_of(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let name: String = name.chars().map(allowed).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_cannot_break_a_page() {
        let mut page = Page::default();
        page.metric("a", MetricType::Counter, "first\nsecond");
        page.sample("a", &[("activity", "say \"x\"\\\n} 7"), ("2 b", "")], 1.5);
        page.sample("a", &[], f64::INFINITY);
        let expected = "# HELP a first\\nsecond\n# TYPE a counter\n\
            a{activity=\"say \\\"x\\\"\\\\\\n} 7\",_2_b=\"\"} 1.5\na +Inf\n";
        assert_eq!(page.finish(), expected);
    }
}
