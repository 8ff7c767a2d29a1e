//! Checks the references in `docs/PAPERS.md`, which names a place, a test and a measurement for
//! each row of the papers: each row occurs once, each path is in the repository, and each test is
//! in the file that is named for it.

use std::fs;
use std::path::{Path, PathBuf};

/// The rows: FFFS, replicated metadata, GDPFS, and the faults of the released code.
fn all_rows() -> Vec<String> {
    let numbered = [("F", 1..=46), ("M", 1..=15), ("G", 1..=24), ("B", 1..=16)];
    let rows = numbered
        .into_iter()
        .flat_map(|(letter, numbers)| numbers.map(move |number| format!("{letter}{number}")));
    rows.chain(["G-a".to_owned(), "G-b".to_owned()]).collect()
}

/// A row of the document: its id and its fields in order, each on one line.
struct PaperRow {
    id: String,
    fields: Vec<(String, String)>,
}

impl PaperRow {
    fn has(&self, key: &str) -> bool {
        self.fields.iter().any(|(name, text)| name == key && !text.is_empty())
    }

    /// The fields that name paths of the repository.
    fn references(&self) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.fields.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        fields.filter(|(key, _)| ["Here", "Test", "Bench"].contains(key))
    }
}

/// `### ID — title` begins a row, `- Key: text` a field of it, and an indented line continues the
/// field.
fn rows(document: &str) -> Vec<PaperRow> {
    let mut rows: Vec<PaperRow> = Vec::new();
    let mut is_in_row = false;
    for line in document.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            let id = heading.split(' ').next().expect("a split has a first part").to_owned();
            rows.push(PaperRow { id, fields: Vec::new() });
        }
        if line.starts_with('#') {
            is_in_row = line.starts_with("### ");
        }
        if !is_in_row {
            continue;
        }
        let Some(row) = rows.last_mut() else { continue };
        if let Some((key, text)) = line.strip_prefix("- ").and_then(|line| line.split_once(':')) {
            let key = key.split(" (").next().expect("a split has a first part");
            row.fields.push((key.to_owned(), text.trim().to_owned()));
        } else if let (Some(more), Some((_, text))) =
            (line.strip_prefix("  "), row.fields.last_mut())
        {
            text.push(' ');
            text.push_str(more.trim());
        }
    }
    rows
}

/// The texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A path of the repository has a slash, and neither blanks nor a slash at its beginning; or it is
/// one of the documents at the root.
fn is_path(token: &str) -> bool {
    !token.contains(char::is_whitespace)
        && !token.starts_with('/')
        && (token.contains('/') || token.ends_with(".md"))
}

fn is_name(token: &str) -> bool {
    !token.is_empty()
        && token.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// True if the file has a function of that name that is marked as a test.
fn has_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    source.match_indices(&function).any(|(at, _)| {
        let line_start = source[..at].rfind('\n').unwrap_or(0);
        let before = source[..line_start].lines().rev().map(str::trim_start);
        before
            .take_while(|line| line.starts_with('#') || line.starts_with("//"))
            .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

/// The simulation runs these files as rules; they have no test of their own.
const INVARIANTS: &str = "tests/simulation/src/invariants/";

/// The problems of a field `Test`: `path`: `name`, `name`; `path`: …, or none and why.
fn test_problems(root: &Path, text: &str) -> Vec<String> {
    if text.starts_with("none (") {
        return Vec::new();
    }
    let (mut problems, mut file, mut named) = (Vec::new(), None, 0);
    let nameless = |file: Option<&str>, named: usize| {
        let path = file.filter(|path| named == 0 && path.ends_with(".rs"))?;
        (!path.starts_with(INVARIANTS)).then(|| format!("{path} is named without a test"))
    };
    for token in quoted(text) {
        if is_path(token) {
            problems.extend(nameless(file, named));
            (file, named) = (Some(token), 0);
        } else if let (true, Some(path)) = (is_name(token), file) {
            named += 1;
            // A missing file is a problem of its own.
            if fs::read_to_string(root.join(path)).is_ok_and(|source| !has_test(&source, token)) {
                problems.push(format!("{path} has no test {token}"));
            }
        } else {
            problems.push(format!("{token} is neither a path nor a test of one"));
        }
    }
    problems.extend(nameless(file, named));
    if file.is_none() {
        problems.push("it names no file, and does not say `none (why)`".to_owned());
    }
    problems
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_row_of_the_papers_names_what_there_is() {
    let root = repository();
    let document = fs::read_to_string(root.join("docs/PAPERS.md")).expect("the document is there");
    let rows = rows(&document);
    let mut problems = Vec::new();
    let expected = all_rows();
    for id in &expected {
        let count = rows.iter().filter(|row| row.id == *id).count();
        if count != 1 {
            problems.push(format!("{id}: it is there {count} times"));
        }
    }
    for row in &rows {
        let mut report = |problem: String| problems.push(format!("{}: {problem}", row.id));
        if !expected.contains(&row.id) {
            report("no row has this number".to_owned());
        }
        if !row.has("Claim") || !(row.has("Here") || row.has("Missing")) {
            report("it needs a Claim, and Here or Missing".to_owned());
        }
        if row.has("Here") && !row.has("Test") {
            report("it says where it is, and needs a Test, or `none (why)`".to_owned());
        }
        for (key, _) in &row.fields {
            if !["Claim", "Here", "Test", "Bench", "Differs", "Missing"].contains(&key.as_str()) {
                report(format!("{key} is no field"));
            }
        }
        for (key, text) in row.references() {
            for path in quoted(text).filter(|token| is_path(token)) {
                if !root.join(path).exists() {
                    report(format!("{key}: there is no {path}"));
                }
            }
            if key == "Test" {
                test_problems(&root, text).into_iter().for_each(&mut report);
            }
        }
    }
    assert!(problems.is_empty(), "docs/PAPERS.md:\n{}", problems.join("\n"));
}

#[test]
fn what_is_wrong_with_a_row_is_found() {
    let text =
        "### F1 — one\n\n- Claim (post): a\n  b\n- Test: `x`\n\n## Next\n\n- Here: `no/row`\n";
    let [row] = &rows(text)[..] else { panic!("one row") };
    assert_eq!(row.fields[0], ("Claim".to_owned(), "a b".to_owned()));
    assert_eq!((row.id.as_str(), row.fields.len()), ("F1", 2));
    let here = "tests/tests/papers.rs";
    let wrong = |text: &str| test_problems(&repository(), text).len();
    assert_eq!(wrong(&format!("`{here}`: `what_is_wrong_with_a_row_is_found`")), 0);
    assert_eq!(wrong(&format!("`{here}`: `is_path`")), 1, "a function that is no test");
    assert_eq!(wrong(&format!("`{here}`: `nothing_of_that_name`")), 1);
    assert_eq!(wrong(&format!("`{here}`; `{here}`")), 2, "a file without a test");
    assert_eq!(wrong("`a_name_without_a_file`"), 2);
    assert_eq!((wrong(""), wrong("none"), wrong("none (it is advice)")), (1, 1, 0));
    assert!(is_path("docs/TIME.md") && is_path(".ci/run") && is_path("README.md"));
    assert!(!is_path("/.at/MOMENT/") && !is_path("storage f28") && !is_path("acks=all"));
}
