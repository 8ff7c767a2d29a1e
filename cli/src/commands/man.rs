//! `freezeframe man DIR`: writes the manual pages that packages carry. Each command has a page in
//! section 1, made from the same text as its `--help`. The settings are in section 5, and the pages
//! of `freezeframe help` in section 7.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::help;
use crate::args;
use crate::help::{CONNECTION, HelpDetail};
use crate::output::{StandardOutput, counted};
use crate::profile::Profile;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each command has a page in section 1, with the text of its --help. Packages
install the pages.

Examples:
  freezeframe man ./man
  man ./man/freezeframe-topics-create.1")]
pub(crate) struct ManArgs {
    /// The directory for the pages. It is created if it does not exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// The sections of freezeframe(1) that no command or option says.
const PROGRAM_SECTIONS: &str = include_str!("man/freezeframe.roff");
/// The name of the manual, and of the program with its version, at the foot of a page.
const MANUAL: &str = "Freezeframe Manual";
const SOURCE: &str = concat!("freezeframe ", env!("CARGO_PKG_VERSION"));

/// A page in roff.
struct ManualPage {
    /// The file: `freezeframe-topics-create.1`.
    file: String,
    text: String,
}

/// Writes the pages.
pub(crate) fn run(args: &ManArgs) -> anyhow::Result<()> {
    let directory = args.directory.display();
    fs::create_dir_all(&args.directory)
        .with_context(|| format!("create the directory {directory}"))?;
    let pages = pages();
    for page in &pages {
        let path = args.directory.join(&page.file);
        fs::write(&path, &page.text).with_context(|| format!("write {}", path.display()))?;
    }
    let mut output = StandardOutput::lock();
    output.bytes(format!("{} in {directory}\n", counted(pages.len(), "page")).as_bytes())?;
    Ok(output.flush()?)
}

fn pages() -> Vec<ManualPage> {
    let mut root = args::command(HelpDetail::Full, &Profile::new());
    root.build();
    let mut pages = vec![
        settings_page(),
        help_page("moments", "every way to name a moment", help::MOMENTS),
        help_page("connection", "options that select a server and a user", help::CONNECTION),
    ];
    add_command_pages(&root, &[], &mut pages);
    pages
}

/// Adds the page of a command, and those of its subcommands. `parents` are the names of the pages
/// above it.
fn add_command_pages(command: &Command, parents: &[String], pages: &mut Vec<ManualPage>) {
    pages.push(command_page(command, parents));
    let parents = [parents, &[page_name(command)]].concat();
    for subcommand in command.get_subcommands() {
        add_command_pages(subcommand, &parents, pages);
    }
}

/// `freezeframe-topics-create`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// The page of a command in section 1.
fn command_page(command: &Command, parents: &[String]) -> ManualPage {
    let name = page_name(command);
    let is_connection = |arg: &Arg| arg.get_help_heading() == Some(CONNECTION);
    let connects = command.get_arguments().any(|arg| is_connection(arg) && !arg.is_hide_set());
    // A page of their own describes the options of connections.
    let hide_connection = |arg: Arg| if is_connection(&arg) { arg.hide(true) } else { arg };
    let described = command.clone().mut_args(hide_connection);
    let has_subcommands = described.get_subcommands().any(|command| !command.is_hide_set());
    let usage = described.clone().render_usage().to_string();
    let man = Man::new(described);

    let mut page = RoffPage::new(&name, '1');
    page.add(|text| man.render_name_section(text));
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(usage.trim_start_matches("Usage: "))]);
    page.add_roff(&roff);
    page.add(|text| man.render_description_section(text));
    let before = command.get_before_help().map(ToString::to_string).unwrap_or_default();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    // Before the options of the program, help lists its commands: they have a section here.
    let (details, examples) =
        if parents.is_empty() { (String::new(), after) } else { (after, before) };
    let mut roff = Roff::new();
    if !details.is_empty() {
        roff.control("PP", []);
        add_prose(&mut roff, &details);
    }
    page.add_roff(&roff);
    page.add(|text| man.render_options_section(text));
    let mut roff = Roff::new();
    if connects {
        roff.control("PP", []);
        roff.text([
            roman("Options that select a server and a user: "),
            bold("freezeframe-connection"),
            roman("(7)."),
        ]);
    }
    page.add_roff(&roff);
    if has_subcommands {
        page.add(|text| man.render_subcommands_section(text));
    }
    if parents.is_empty() {
        page.text.push_str(PROGRAM_SECTIONS);
    }
    let mut roff = Roff::new();
    add_examples(&mut roff, &examples);
    let mut related: Vec<(&str, &str)> = parents.iter().map(|page| (page.as_str(), "1")).collect();
    if connects {
        related.push(("freezeframe-moments", "7"));
    }
    if parents.is_empty() {
        related.push(("systemctl", "1"));
    }
    add_related(&mut roff, &related);
    page.add_roff(&roff);
    ManualPage { file: format!("{name}.1"), text: page.text }
}

/// A page of `freezeframe help` in section 7. The first line of its text is a heading.
fn help_page(subject: &str, about: &str, text: &str) -> ManualPage {
    let name = format!("freezeframe-{subject}");
    let (_, text) = text.split_once("\n\n").expect("a heading and a text");
    let (prose, examples) = text.split_at(text.find("Examples:").expect("each page has examples"));
    let mut roff = Roff::new();
    add_head(&mut roff, &name, about);
    add_prose(&mut roff, prose);
    add_examples(&mut roff, examples);
    add_related(&mut roff, &[("freezeframe", "1")]);
    let mut page = RoffPage::new(&name, '7');
    page.add_roff(&roff);
    ManualPage { file: format!("{name}.7"), text: page.text }
}

/// The page of the configuration file in section 5.
fn settings_page() -> ManualPage {
    const NAME: &str = "freezeframe.toml";
    let mut roff = Roff::new();
    add_head(&mut roff, NAME, "the settings of a Freezeframe server");
    add_prose(
        &mut roff,
        "The file is TOML. freezeframe serve --config names it, and with --check says what is wrong \
         with it. freezeframe config show prints the settings in force, and where each comes from.",
    );
    roff.control("SH", ["SETTINGS"]);
    add_lines(&mut roff, &broker::example_config());
    add_related(&mut roff, &[("freezeframe-serve", "1"), ("freezeframe-config", "1")]);
    let mut page = RoffPage::new(NAME, '5');
    page.add_roff(&roff);
    ManualPage { file: format!("{NAME}.5"), text: page.text }
}

/// Adds the name, and the heading of the description.
fn add_head(roff: &mut Roff, name: &str, about: &str) {
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {about}"))]);
    roff.control("SH", ["DESCRIPTION"]);
}

/// A page under construction.
struct RoffPage {
    text: String,
}

impl RoffPage {
    /// A page with its title. It has no date, so that the same program writes the same page.
    fn new(name: &str, section: char) -> RoffPage {
        let title = name.to_uppercase().replace('-', "\\-");
        let definition = Roff::new().render();
        RoffPage {
            text: format!("{definition}.TH {title} {section} \"\" \"{SOURCE}\" \"{MANUAL}\"\n"),
        }
    }

    /// Adds a section.
    fn add(&mut self, render: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) {
        let mut text = Vec::new();
        render(&mut text).expect("memory takes it");
        self.add_text(std::str::from_utf8(&text).expect("it is rendered from text"));
    }

    fn add_roff(&mut self, roff: &Roff) {
        self.add_text(&roff.render());
    }

    /// Each rendered text begins with the definition of an apostrophe. The page keeps one.
    fn add_text(&mut self, text: &str) {
        let definition = Roff::new().render();
        self.text.push_str(text.strip_prefix(&definition).unwrap_or(text));
    }
}

/// Adds paragraphs. A paragraph with indented lines keeps its lines.
fn add_prose(roff: &mut Roff, text: &str) {
    let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty());
    for (index, paragraph) in paragraphs.enumerate() {
        if index > 0 {
            roff.control("PP", []);
        }
        let keeps_lines = paragraph.lines().any(|line| line.starts_with(' '));
        if keeps_lines {
            add_lines(roff, paragraph.trim_end());
        } else {
            roff.text([roman(paragraph.trim_end())]);
        }
    }
}

/// Adds the section with examples. Their lines are indented by two columns under a heading.
fn add_examples(roff: &mut Roff, text: &str) {
    let Some((_, examples)) = text.split_once("Examples:\n") else { return };
    roff.control("SH", ["EXAMPLES"]);
    let lines = examples.trim_end().lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
    add_lines(roff, &lines.collect::<Vec<_>>().join("\n"));
}

fn add_lines(roff: &mut Roff, text: &str) {
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

/// Adds references to other pages, each with its section.
fn add_related(roff: &mut Roff, pages: &[(&str, &str)]) {
    roff.control("SH", ["SEE ALSO"]);
    for (index, (name, section)) in pages.iter().enumerate() {
        let comma = if index + 1 < pages.len() { "," } else { "" };
        roff.text([bold(*name), roman(format!("({section}){comma}"))]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let pages = pages();
        let files: BTreeSet<&str> = pages.iter().map(|page| page.file.as_str()).collect();
        assert_eq!(files.len(), pages.len(), "two commands have one page");
        for file in ["freezeframe.1", "freezeframe-restore.1", "freezeframe-topics-create.1"] {
            assert!(files.contains(file), "{file} is not among {files:?}");
        }
        for page in &pages {
            // The definition has a line for groff and one for others.
            assert_eq!(page.text.matches(".ds Aq").count(), 2, "{}", page.file);
            // A subcommand may leave them to the command above it.
            let is_command = page.file.ends_with(".1") && page.file.matches('-').count() < 2;
            let has_examples = page.text.contains("\n.SH EXAMPLES\n.nf\n");
            assert!(has_examples || !is_command, "{} has no examples", page.file);
        }
    }

    #[test]
    fn references_lead_to_pages() {
        let pages = pages();
        let is_page = |name: &str, section: &str| {
            pages.iter().any(|page| page.file == format!("{name}.{section}"))
        };
        for page in &pages {
            let text = page.text.replace("\\-", "-");
            for (at, _) in text.match_indices("freezeframe") {
                let rest = &text[at..];
                let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-' && c != '.');
                let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
                let rest = rest.trim_start_matches("\\fR").trim_start_matches(' ');
                let section = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
                if let Some((section, _)) = section.filter(|(section, _)| section.len() == 1) {
                    assert!(is_page(name, section), "{} refers to {name}({section})", page.file);
                }
            }
        }
    }
}
