//! History as spans of time: what was begun, when it ended and how.

use duroxide::{Event, EventKind};

use crate::output::{Line, Style, clip, line, span, width};

/// Something a workflow began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    /// Id of the event that began it.
    pub(crate) id: u64,
    /// What sort of thing.
    pub(crate) kind: SpanKind,
    /// Its name, or for a timer how long it runs.
    pub(crate) name: String,
    /// Milliseconds since 1970.
    pub(crate) began_ms: u64,
    /// Milliseconds since 1970; none while it goes on.
    pub(crate) ended_ms: Option<u64>,
    /// How it ended.
    pub(crate) end: End,
    /// When a timer is due.
    pub(crate) due_ms: Option<u64>,
}

/// What sort of thing a workflow waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    Activity,
    Timer,
    Event,
    Queue,
    Child,
}

impl SpanKind {
    /// The word for people.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Activity => "activity",
            Self::Timer => "timer",
            Self::Event => "event",
            Self::Queue => "queue",
            Self::Child => "child",
        }
    }
}

/// How a span ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It has not.
    Open,
    /// With a result.
    Done(String),
    /// With an error.
    Failed(String),
    /// Nobody wants it any more.
    Cancelled,
    /// The workflow ended first.
    Left,
}

/// The spans of one execution, in the order in which they began.
pub(crate) fn spans(instance: &str, events: &[Event]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for event in events {
        if let Some(span) = begun(instance, event) {
            spans.push(span);
        } else if let Some(end) = ending(event)
            && let Some(open) = spans.iter_mut().find(|span| is_ended_by(span, event))
        {
            open.ended_ms = Some(event.timestamp_ms);
            open.end = end;
        }
    }
    spans
}

/// The same with many of one name that all ended well as one: three hundred lines that say the same hide the one that does
/// not. What failed, or goes on, has a line of its own.
pub(crate) fn grouped(spans: &[Span]) -> Vec<Span> {
    let is_like = |one: &Span, other: &Span| {
        let is_done = |span: &Span| matches!(span.end, End::Done(_));
        is_done(one) && is_done(other) && (one.kind, &one.name) == (other.kind, &other.name)
    };
    let mut grouped = Vec::new();
    for run in spans.chunk_by(is_like) {
        let [first, .., last] = run else {
            grouped.extend_from_slice(run);
            continue;
        };
        if run.len() < GROUP_MIN {
            grouped.extend_from_slice(run);
            continue;
        }
        let count = run.len();
        grouped.push(Span {
            name: format!("{} ×{count}", first.name),
            ended_ms: run.iter().filter_map(|span| span.ended_ms).max(),
            end: End::Done(format!("#{} to #{}, all done; --full shows each", first.id, last.id)),
            ..first.clone()
        });
    }
    grouped
}

/// So many of one name are shown one by one.
const GROUP_MIN: usize = 12;

/// What is still open when the execution has not ended.
pub(crate) fn open(instance: &str, events: &[Event]) -> Vec<Span> {
    let mut spans = spans(instance, events);
    spans.retain(|span| span.end == End::Open);
    spans
}

fn begun(instance: &str, event: &Event) -> Option<Span> {
    let (kind, name, due_ms) = match &event.kind {
        EventKind::ActivityScheduled { name, .. } => (SpanKind::Activity, name.clone(), None),
        EventKind::TimerCreated { fire_at_ms } => {
            (SpanKind::Timer, span(fire_at_ms.saturating_sub(event.timestamp_ms)), Some(*fire_at_ms))
        }
        EventKind::ExternalSubscribed { name } => (SpanKind::Event, name.clone(), None),
        EventKind::QueueSubscribed { name } => (SpanKind::Queue, name.clone(), None),
        EventKind::SubOrchestrationScheduled { instance: child, .. } => {
            (SpanKind::Child, duroxide::build_child_instance_id(instance, child), None)
        }
        _ => return None,
    };
    Some(Span {
        id: event.event_id,
        kind,
        name,
        began_ms: event.timestamp_ms,
        ended_ms: None,
        end: End::Open,
        due_ms,
    })
}

fn ending(event: &Event) -> Option<End> {
    match &event.kind {
        EventKind::ActivityCompleted { result } | EventKind::SubOrchestrationCompleted { result } => {
            Some(End::Done(result.clone()))
        }
        EventKind::ActivityFailed { details } | EventKind::SubOrchestrationFailed { details } => {
            Some(End::Failed(details.display_message()))
        }
        EventKind::TimerFired { .. } => Some(End::Done(String::new())),
        EventKind::ExternalEvent { data, .. } | EventKind::QueueEventDelivered { data, .. } => {
            Some(End::Done(data.clone()))
        }
        EventKind::ActivityCancelRequested { .. }
        | EventKind::SubOrchestrationCancelRequested { .. }
        | EventKind::ExternalSubscribedCancelled { .. }
        | EventKind::QueueSubscriptionCancelled { .. } => Some(End::Cancelled),
        _ => None,
    }
}

/// Completions name what they complete; events from outside go to the oldest that waits for their name.
fn is_ended_by(span: &Span, event: &Event) -> bool {
    if span.end != End::Open {
        return false;
    }
    match (&event.kind, event.source_event_id) {
        (_, Some(source)) => span.id == source,
        (EventKind::ExternalEvent { name, .. }, None) => span.kind == SpanKind::Event && span.name == *name,
        (EventKind::QueueEventDelivered { name, .. }, None) => {
            span.kind == SpanKind::Queue && span.name == *name
        }
        _ => false,
    }
}

/// Spans as lines of bars between `from_ms` and `to_ms`, `columns` wide.
pub(crate) fn draw(spans: &[Span], from_ms: u64, to_ms: u64, columns: usize, style: Style) -> Vec<Line> {
    let label = |span: &Span| format!("{:>4} {:<8} {}", span.id, span.kind.word(), span.name);
    let label_room = spans.iter().map(|span| width(&label(span))).max().unwrap_or(0).min(columns / 3).max(20);
    let bar_room = columns.saturating_sub(label_room + TIME_ROOM + 4 + NOTE_ROOM).clamp(10, 60);
    let note_room = columns.saturating_sub(label_room + bar_room + TIME_ROOM + 4);
    let total = to_ms.saturating_sub(from_ms).max(1);
    let column = |ms: u64| {
        let offset = u128::from(ms.saturating_sub(from_ms)) * bar_room as u128 / u128::from(total);
        usize::try_from(offset).unwrap_or(bar_room).min(bar_room - 1)
    };
    spans
        .iter()
        .map(|row| {
            let end_ms = row.ended_ms.unwrap_or(to_ms);
            let first = column(row.began_ms);
            // Machines disagree about the time: an end may be stamped before its beginning.
            let last = column(end_ms).max(first);
            let bar = "━".repeat(last - first + 1);
            let (bar, note) = match &row.end {
                End::Open => (style.busy(&bar), style.busy("goes on")),
                End::Done(result) => (style.good(&bar), clip(result, note_room).into()),
                End::Failed(error) => (style.bad(&bar), style.bad(&clip(&format!("✘ {error}"), note_room))),
                End::Cancelled => (style.dim(&bar), style.dim("cancelled")),
                End::Left => (style.dim(&bar), style.dim("not waited for any more")),
            };
            let name = clip(&label(row), label_room);
            let pad = " ".repeat(label_room - width(&name));
            let before = style.dim(&"·".repeat(first));
            let after = style.dim(&"·".repeat(bar_room - last - 1));
            let took = span(end_ms.saturating_sub(row.began_ms));
            line![name, pad, " ", before, bar, after, format!(" {took:>TIME_ROOM$}  "), note].trim_end()
        })
        .collect()
}

const TIME_ROOM: usize = 9;
/// Least room for what came of it.
const NOTE_ROOM: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_command_the_terminal() {
        let kind = EventKind::ActivityScheduled {
            name: "a\u{1b}[2Jb".into(),
            input: String::new(),
            session_id: None,
            tag: None,
        };
        let lines = draw(&spans("a", &[event(1, None, 0, kind)]), 0, 10, 80, Style::new(false));
        assert!(lines.iter().all(|line| !line.text().contains(char::is_control)), "{lines:?}");
    }

    #[test]
    fn many_that_ended_well_are_one_line_and_what_failed_among_them_is_not() {
        let one = |id: u64, end: End| Span {
            id,
            kind: SpanKind::Activity,
            name: "Bake".to_owned(),
            began_ms: id,
            ended_ms: Some(id + 10),
            end,
            due_ms: None,
        };
        let mut spans: Vec<Span> = (1..=40).map(|id| one(id, End::Done(String::new()))).collect();
        spans.push(one(41, End::Failed("burnt".to_owned())));
        spans.extend((42..=44).map(|id| one(id, End::Done(String::new()))));
        let grouped = grouped(&spans);
        let names: Vec<&str> = grouped.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["Bake ×40", "Bake", "Bake", "Bake", "Bake"], "three are too few for a group");
        assert_eq!((grouped[0].began_ms, grouped[0].ended_ms), (1, Some(50)));
        assert_eq!(grouped[1].end, End::Failed("burnt".to_owned()));
    }

    fn event(id: u64, source: Option<u64>, at: u64, kind: EventKind) -> Event {
        let mut event = Event::with_event_id(id, "a", 1, source, kind);
        event.timestamp_ms = at;
        event
    }

    fn history() -> Vec<Event> {
        let activity = |name: &str| EventKind::ActivityScheduled {
            name: name.to_owned(),
            input: String::new(),
            session_id: None,
            tag: None,
        };
        vec![
            event(2, None, 1000, activity("Bake")),
            event(3, None, 1000, EventKind::TimerCreated { fire_at_ms: 61_000 }),
            event(4, None, 1000, EventKind::ExternalSubscribed { name: "yes".into() }),
            event(
                5,
                None,
                1000,
                EventKind::SubOrchestrationScheduled {
                    name: "r".into(),
                    instance: "sub::5".into(),
                    input: "".into(),
                },
            ),
            event(6, Some(2), 1500, EventKind::ActivityCompleted { result: "loaf".into() }),
            event(7, None, 2000, EventKind::ExternalEvent { name: "yes".into(), data: "Anna".into() }),
            event(8, None, 2100, EventKind::ExternalEvent { name: "no".into(), data: String::new() }),
        ]
    }

    #[test]
    fn an_end_stamped_before_its_beginning_is_drawn() {
        let mut events = history();
        events[4].timestamp_ms = 200;
        let spans = spans("a", &events);
        let lines = draw(&spans, 0, 2000, 100, Style::new(false));
        assert_eq!(lines[0].text().matches('━').count(), 1, "{lines:?}");
    }

    #[test]
    fn ends_find_what_they_end() {
        let spans = spans("a", &history());
        let ends: Vec<(u64, Option<u64>)> = spans.iter().map(|span| (span.id, span.ended_ms)).collect();
        assert_eq!(ends, [(2, Some(1500)), (3, None), (4, Some(2000)), (5, None)]);
        assert_eq!(spans[1].name, "1 m 00 s");
        assert_eq!(spans[2].end, End::Done("Anna".to_owned()));
        assert_eq!(
            open("a", &history()).iter().map(|span| span.name.as_str()).next_back(),
            Some("a::sub::5")
        );
    }

    #[test]
    fn bars_stay_within_the_terminal_and_in_proportion() {
        let lines = draw(&spans("a", &history()), 1000, 3000, 80, Style::new(false));
        assert!(lines.iter().all(|line| width(line.text()) <= 80), "{lines:#?}");
        let bars: Vec<usize> = lines.iter().map(|line| line.text().matches('━').count()).collect();
        assert!(bars[0] < bars[2] && bars[2] < bars[1], "{lines:#?}");
        assert!(lines[1].text().ends_with("goes on"));
    }
}
