//! What a run brought and what it cost.

use serde_json::json;

use super::board::{Origin, Phase, Row};
use super::costs::{Cost, Costs};
use crate::output::{Column, Paint, Style, Table, plural, span};

/// The summary for people.
pub(crate) fn table(rows: &[Row], costs: &Costs, took_ms: u64) -> Table {
    let mut table = Table::new(vec![
        Column::new("WORKFLOW"),
        Column::flexible("SHOWS", 8),
        Column::flexible("RESULT", 12),
        Column::number("STEPS"),
        Column::number("TIME"),
        Column::number("REQUESTS"),
        Column::number("RU"),
    ]);
    let cells = |cost: Cost| (cost.requests.to_string(), format!("{:.1}", cost.request_units));
    for row in rows {
        let (requests, units) = cells(costs.of(&row.instance));
        let (result, paint): (&str, Paint) = match &row.phase {
            Phase::Completed(result) => (result, Style::good),
            Phase::Failed(result) => (result, Style::bad),
            Phase::Waiting | Phase::Running | Phase::Returned => ("not done", Style::warn),
        };
        let time = u64::try_from(row.elapsed().as_millis()).unwrap_or(u64::MAX);
        let origin = match row.origin {
            Origin::Started => String::new(),
            Origin::Continued => " (continued)".to_owned(),
            Origin::Earlier => " (earlier)".to_owned(),
        };
        table.painted_row(
            [
                format!("{}{origin}", row.scenario.name),
                row.scenario.shows.to_owned(),
                result.to_owned(),
                row.scenario.steps.to_string(),
                span(time),
                requests,
                units,
            ],
            0,
            paint,
        );
    }
    let (requests, units) = cells(costs.shared());
    let blank = String::new;
    table.row([
        "(shared)".into(),
        "finding work, sessions".into(),
        blank(),
        blank(),
        blank(),
        requests,
        units,
    ]);
    table.rule();
    let (requests, units) = cells(costs.total());
    let steps: usize = rows.iter().map(|row| row.scenario.steps).sum();
    table.row(["total".into(), blank(), blank(), steps.to_string(), span(took_ms), requests, units]);
    table
}

/// The summary for programs.
pub(crate) fn to_json(number: u32, rows: &[Row], costs: &Costs, took_ms: u64) -> serde_json::Value {
    let cost = |cost: Cost| json!({"requests": cost.requests, "requestUnits": (cost.request_units * 100.0).round() / 100.0});
    let workflows: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            let (status, result) = match &row.phase {
                Phase::Completed(result) => ("Completed", Some(result)),
                Phase::Failed(result) => ("Failed", Some(result)),
                Phase::Waiting | Phase::Running | Phase::Returned => ("Running", None),
            };
            json!({
                "instance": row.instance,
                "shows": row.scenario.shows,
                "status": status,
                "result": result,
                "origin": match row.origin {
                    Origin::Started => "started",
                    Origin::Continued => "continued",
                    Origin::Earlier => "earlier",
                },
                "steps": row.scenario.steps,
                "stepsBefore": row.steps_before,
                "stepsNow": row.steps_now,
                "ms": u64::try_from(row.elapsed().as_millis()).unwrap_or(u64::MAX),
                "cost": cost(costs.of(&row.instance)),
            })
        })
        .collect();
    json!({
        "run": number,
        "ms": took_ms,
        "workflows": workflows,
        "shared": cost(costs.shared()),
        "total": cost(costs.total()),
    })
}

/// What an earlier process did of the workflows and this one did not do again.
pub(crate) fn continuations(rows: &[Row]) -> Vec<String> {
    let continued: Vec<&Row> = rows.iter().filter(|row| row.origin == Origin::Continued).collect();
    let mut lines: Vec<String> =
        continued.iter().filter(|row| row.steps_before > 0).map(|row| continuation(row)).collect();
    let fresh: Vec<&str> =
        continued.iter().filter(|row| row.steps_before == 0).map(|row| row.scenario.name).collect();
    if !fresh.is_empty() {
        lines.push(format!("Continued with no step done before: {}.", fresh.join(", ")));
    }
    lines
}

fn continuation(row: &Row) -> String {
    let steps = row.scenario.steps;
    let repeated = (row.steps_before + row.steps_now).saturating_sub(steps);
    let kept = format!(
        "{} was continued: {} of {steps} done before",
        row.scenario.name,
        plural(row.steps_before, "step")
    );
    match repeated {
        0 => format!("{kept}, none of them repeated."),
        _ => format!("{kept}, {repeated} repeated because the process ended in the middle of it."),
    }
}
