//! The results of experiments, as tables for people and as JSON for plots; and the goals.

use serde_json::{Map, Value, json};

use super::rounds::SideFigures;
use super::value_spread::ValueSpread;
use crate::report::{align_right, key, number, table};

/// One point of one series.
#[derive(Clone, Debug)]
pub(crate) struct SeriesPoint {
    /// The subject of the measurement: one line of a plot.
    pub(crate) series: String,
    /// The place on the plot's x axis.
    pub(crate) at: f64,
    /// `at` for people.
    pub(crate) label: String,
    pub(crate) figures: Vec<(&'static str, ValueSpread)>,
}

#[derive(Clone, Debug)]
pub(crate) struct PerformanceGoal {
    pub(crate) what: String,
    pub(crate) found: ValueSpread,
    pub(crate) bound: f64,
    /// True if `bound` is a minimum, false if it is a maximum.
    pub(crate) is_least: bool,
}

impl PerformanceGoal {
    pub(crate) fn at_least(bound: f64, what: String, found: ValueSpread) -> PerformanceGoal {
        PerformanceGoal { what, found, bound, is_least: true }
    }

    pub(crate) fn at_most(bound: f64, what: String, found: ValueSpread) -> PerformanceGoal {
        PerformanceGoal { what, found, bound, is_least: false }
    }

    /// By the median.
    pub(crate) fn is_reached(&self) -> bool {
        let found = self.found.median();
        if self.is_least { found >= self.bound } else { found <= self.bound }
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what, "found": self.found.json(), "bound": self.bound,
            "is_least": self.is_least, "is_reached": self.is_reached(),
        })
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ExperimentResults {
    pub(crate) points: Vec<SeriesPoint>,
    pub(crate) goals: Vec<PerformanceGoal>,
    /// Remarks that a reader of the numbers must know.
    pub(crate) notes: Vec<String>,
}

impl ExperimentResults {
    /// Adds the measurements at one place of the x axis, a series for each side.
    pub(crate) fn add(&mut self, at: f64, label: &str, measured: &[SideFigures]) {
        self.points.extend(measured.iter().map(|side| SeriesPoint {
            series: side.name.clone(),
            at,
            label: label.to_owned(),
            figures: side.figures.clone(),
        }));
    }

    pub(crate) fn json(&self) -> Value {
        let finding = |finding: &SeriesPoint| {
            let figures: Map<String, Value> =
                finding.figures.iter().map(|(name, spread)| (key(name), spread.json())).collect();
            json!({
                "series": finding.series, "at": finding.at, "label": finding.label,
                "figures": figures,
            })
        };
        json!({
            "findings": self.points.iter().map(finding).collect::<Vec<_>>(),
            "goals": self.goals.iter().map(PerformanceGoal::json).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// Medians, with the extremes where rounds differ by more than a tenth.
    pub(crate) fn show(&self, name: &str) {
        let mut columns: Vec<&str> = Vec::new();
        for (figure, _) in self.points.iter().flat_map(|finding| &finding.figures) {
            if !columns.contains(figure) {
                columns.push(figure);
            }
        }
        let header = [name, "at"].into_iter().chain(columns.iter().copied());
        let mut table = table(header.map(str::to_owned).collect());
        for finding in &self.points {
            let cell = |column: &&str| {
                let figure = finding.figures.iter().find(|(name, _)| name == column);
                figure.map_or_else(String::new, |(_, spread)| shown(spread))
            };
            let row = [finding.series.clone(), finding.label.clone()];
            table.add_row(row.into_iter().chain(columns.iter().map(cell)));
        }
        align_right(&mut table, 1..);
        println!("{table}");
        for goal in &self.goals {
            let verdict = if goal.is_reached() { "reached" } else { "MISSED" };
            let (side, bound) = (if goal.is_least { "≥" } else { "≤" }, number(goal.bound));
            println!("{verdict}: {}: {} (to reach: {side} {bound})", goal.what, shown(&goal.found));
        }
        self.notes.iter().for_each(|note| println!("note: {note}"));
        println!();
    }
}

fn shown(spread: &ValueSpread) -> String {
    let (low, high) = (spread.low(), spread.high());
    if high - low <= 0.1 * spread.median().abs() {
        return number(spread.median());
    }
    format!("{} [{}…{}]", number(spread.median()), number(low), number(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_reached_by_the_median_on_the_right_side_of_the_bound() {
        let spread = || ValueSpread::of(vec![0.1, 0.9, 2.0]).unwrap();
        assert!(PerformanceGoal::at_least(0.8, String::new(), spread()).is_reached());
        assert!(!PerformanceGoal::at_least(1.0, String::new(), spread()).is_reached());
        assert!(PerformanceGoal::at_most(1.0, String::new(), spread()).is_reached());
        assert!(!PerformanceGoal::at_most(0.8, String::new(), spread()).is_reached());
    }

    #[test]
    fn figures_are_found_in_json_by_their_keys() {
        let mut findings = ExperimentResults::default();
        let figures = vec![("CPU s/GB", ValueSpread::one(2.0))];
        findings.add(4.0, "4 B", &[SideFigures { name: "a".into(), figures }]);
        let json = findings.json();
        let point = &json["findings"][0];
        assert_eq!(point["figures"]["cpu_s_per_gb"]["median"], 2.0);
        assert_eq!((&point["at"], &point["label"]), (&json!(4.0), &json!("4 B")));
    }
}
