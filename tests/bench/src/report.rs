//! The results of a run: a list of named figures, as a table for people or a line of JSON for
//! scripts.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::{histogram::Histogram, meter::RunUsage};

/// The direction in which a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FigureDirection {
    Higher,
    Lower,
    /// It describes the run, and neither direction is better.
    Neither,
}

#[derive(Clone, Debug)]
pub(crate) struct ReportFigure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) better: FigureDirection,
}

/// The figures of one run, or the medians of several.
#[derive(Clone, Debug)]
pub(crate) struct BenchReport {
    /// `produce`, `consume`, `latency` or `startup`: reports of a kind share a table.
    pub(crate) kind: &'static str,
    pub(crate) workload: String,
    pub(crate) target: String,
    pub(crate) figures: Vec<ReportFigure>,
}

/// A table for a person, or JSON lines for a script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportFormat {
    Table,
    JsonLines,
}

impl BenchReport {
    pub(crate) fn new(kind: &'static str, workload: String, target: &str) -> BenchReport {
        BenchReport { kind, workload, target: target.to_owned(), figures: Vec::new() }
    }

    pub(crate) fn add(&mut self, better: FigureDirection, name: &str, value: f64) {
        self.figures.push(ReportFigure { name: name.to_owned(), value, better });
    }

    /// The value of one figure, if this report has it.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    pub(crate) fn add_latencies(&mut self, of: &str, histogram: &Histogram) {
        for (name, percent) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
            let value = millis(histogram.percentile(percent));
            self.add(FigureDirection::Lower, &format!("{of} {name} ms"), value);
        }
        self.add(FigureDirection::Lower, &format!("{of} max ms"), millis(histogram.max()));
    }

    /// Throughput and costs of moving `payload_bytes` in `requests`.
    pub(crate) fn add_transfer(&mut self, usage: &RunUsage, payload_bytes: u64, requests: u64) {
        let seconds = usage.wall.as_secs_f64();
        let gigabytes = payload_bytes as f64 / 1e9;
        self.add(FigureDirection::Higher, "MB/s", payload_bytes as f64 / 1e6 / seconds);
        self.add(FigureDirection::Higher, "requests/s", requests as f64 / seconds);
        if let Some(broker) = &usage.broker {
            let per_gigabyte = |time: Duration| time.as_secs_f64() / gigabytes;
            self.add(FigureDirection::Lower, "broker CPU s/GB", per_gigabyte(broker.cpu.total()));
            self.add(FigureDirection::Lower, "broker user s/GB", per_gigabyte(broker.cpu.user));
            self.add(FigureDirection::Lower, "broker system s/GB", per_gigabyte(broker.cpu.system));
            self.add(
                FigureDirection::Lower,
                "settled CPU s/GB",
                per_gigabyte(broker.settled.total()),
            );
            if let Some(written) = broker.written_bytes {
                self.add(
                    FigureDirection::Lower,
                    "written GB/GB",
                    written as f64 / payload_bytes as f64,
                );
            }
            if let Some(read) = broker.read_bytes {
                self.add(FigureDirection::Lower, "read GB/GB", read as f64 / payload_bytes as f64);
            }
        }
        let client = usage.client.total().as_secs_f64();
        self.add(FigureDirection::Neither, "client CPU s/GB", client / gigabytes);
        self.add_memory(usage);
        self.add(FigureDirection::Neither, "seconds", seconds);
    }

    pub(crate) fn add_memory(&mut self, usage: &RunUsage) {
        if let Some(broker) = &usage.broker {
            self.add(FigureDirection::Lower, "peak RSS MiB", mebibytes(broker.resident_peak_bytes));
            self.add(
                FigureDirection::Lower,
                "RSS after MiB",
                mebibytes(broker.resident_after_bytes),
            );
        }
    }

    pub(crate) fn json(&self) -> Value {
        let figures: Map<String, Value> =
            self.figures.iter().map(|figure| (key(&figure.name), json!(figure.value))).collect();
        json!({
            "kind": self.kind,
            "workload": self.workload,
            "target": self.target,
            "figures": figures,
        })
    }
}

/// A figure's name for scripts: `broker CPU s/GB` is `broker_cpu_s_per_gb`.
pub(crate) fn key(name: &str) -> String {
    name.to_lowercase().replace('/', "_per_").replace('%', "percent").replace([' ', '.', '-'], "_")
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

/// Shows one report: a line of JSON, or one figure a row.
pub(crate) fn show(report: &BenchReport, format: ReportFormat) {
    if format == ReportFormat::JsonLines {
        return println!("{}", report.json());
    }
    let mut table = table(vec![report.kind.to_owned(), report.workload.clone()]);
    for figure in &report.figures {
        table.add_row([figure.name.clone(), number(figure.value)]);
    }
    align_right(&mut table, 1..);
    println!("{}\n{table}", report.target);
}

/// The columns of a table with one report a row; JSON has all.
const COLUMNS: [&str; 9] = [
    "MB/s",
    "requests/s",
    "broker CPU s/GB",
    "broker system s/GB",
    "settled CPU s/GB",
    "client CPU s/GB",
    "peak RSS MiB",
    "request p50 ms",
    "request p99 ms",
];

/// Shows many reports: a line of JSON each, or one table a kind with one report a row.
pub(crate) fn show_all(reports: &[BenchReport], format: ReportFormat) {
    if format == ReportFormat::JsonLines {
        return reports.iter().for_each(|report| println!("{}", report.json()));
    }
    for kind in ["produce", "consume"] {
        let of_kind: Vec<&BenchReport> =
            reports.iter().filter(|report| report.kind == kind).collect();
        let Some(first) = of_kind.first() else { continue };
        let columns = COLUMNS.iter().filter(|name| first.figure(name).is_some());
        let columns: Vec<String> = columns.map(|name| name.to_string()).collect();
        let mut table = table([vec![kind.to_owned()], columns.clone()].concat());
        for report in of_kind {
            let values =
                columns.iter().map(|name| report.figure(name).map_or_else(String::new, number));
            table.add_row([report.workload.clone()].into_iter().chain(values));
        }
        align_right(&mut table, 1..);
        println!("{table}");
    }
}

pub(crate) fn table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header);
    table
}

pub(crate) fn align_right(table: &mut Table, columns: std::ops::RangeFrom<usize>) {
    for index in columns.take_while(|index| *index < 32) {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Three significant figures: `1234`, `12.3`, `0.0123`.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// One report of the medians, for those figures that every report has.
pub(crate) fn median_of(reports: &[BenchReport]) -> Option<BenchReport> {
    let first = reports.first()?;
    let mut median = BenchReport::new(first.kind, first.workload.clone(), &first.target);
    for figure in &first.figures {
        let values: Option<Vec<f64>> =
            reports.iter().map(|report| report.figure(&figure.name)).collect();
        if let Some(value) = values.and_then(middle) {
            median.add(figure.better, &figure.name, value);
        }
    }
    Some(median)
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(values: &[(&str, f64)]) -> BenchReport {
        let mut report = BenchReport::new("produce", "w".into(), "t");
        values.iter().for_each(|(name, value)| report.add(FigureDirection::Higher, name, *value));
        report
    }

    #[test]
    fn a_median_is_taken_figure_by_figure_of_those_that_all_have() {
        let runs = [
            report(&[("a", 1.0), ("b", 30.0), ("only here", 1.0)]),
            report(&[("a", 9.0), ("b", 10.0)]),
            report(&[("a", 2.0), ("b", 20.0)]),
        ];
        let median = median_of(&runs).unwrap();
        let values: Vec<(&str, f64)> =
            median.figures.iter().map(|figure| (figure.name.as_str(), figure.value)).collect();
        assert_eq!(values, [("a", 2.0), ("b", 20.0)]);
        assert_eq!(middle(vec![1.0, 4.0]), Some(2.5));
        assert!(median_of(&[]).is_none());
    }

    #[test]
    fn names_become_keys_and_numbers_keep_three_figures() {
        assert_eq!(key("broker CPU s/GB"), "broker_cpu_s_per_gb");
        assert_eq!(key("ack p99.9 ms"), "ack_p99_9_ms");
        assert_eq!(key("broker CPU %"), "broker_cpu_percent");
        let shown = [1234.4, 12.34, 1.234, 0.1234, 0.01234, 0.0].map(number);
        assert_eq!(shown, ["1234", "12.3", "1.23", "0.123", "0.0123", "0"]);
    }
}
