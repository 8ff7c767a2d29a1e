//! The commented file that `config example` prints, and the page `docs/SETTINGS.md`: every setting
//! with its default and the sentence about it.

use std::fmt::Write as _;

use super::setting::ServerSetting;

/// The widest line of the file.
const WIDTH: usize = 80;

/// A configuration file with every setting in a comment, with its default.
pub fn example() -> String {
    let mut text = String::from(
        "# The settings of a Freezeframe server. A line without a space behind its mark\n\
         # has the default: take the mark away to change it. A size has its unit (64MiB),\n\
         # and so has a time (5s), unless Kafka's or ZooKeeper's name says it.\n",
    );
    let mut section = "";
    for setting in ServerSetting::all() {
        let (of, name) = match setting.name.split_once('.') {
            Some(own) if !setting.is_kafka() => own,
            _ => ("kafka", setting.name),
        };
        if of != section {
            section = of;
            let about =
                if of == "kafka" { "# Settings of Kafka's brokers, by their names.\n" } else { "" };
            writeln!(text, "\n{about}[{section}]").expect("memory takes it");
        }
        write_setting(&mut text, setting, name);
    }
    text
}

fn write_setting(text: &mut String, setting: &ServerSetting, name: &str) {
    text.push('\n');
    let mut line = String::from("#");
    for word in setting.about.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            writeln!(text, "{line}").expect("memory takes it");
            line = String::from("#");
        }
        write!(line, " {word}").expect("memory takes it");
    }
    let name = if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
    let value = setting.default.unwrap_or_default();
    let is_bare = value == "true" || value == "false" || value.parse::<i64>().is_ok();
    let value = if is_bare { value.to_owned() } else { format!("\"{value}\"") };
    writeln!(text, "{line}\n#{name} = {value}").expect("memory takes it");
}

/// The page of all settings, in Markdown.
pub fn page() -> String {
    let mut text = String::from(
        "# Settings\n\n\
         Every setting with its default. [OPERATING](OPERATING.md#settings) says where they are given; \
         `freezeframe config show` what is in force, and `freezeframe config example` prints a file.\n\
         This page is made from the program: `freezeframe config example --format markdown`.\n",
    );
    let mut family = "";
    for setting in ServerSetting::all() {
        let of = if setting.is_kafka() { "Kafka's" } else { "Ours" };
        if of != family {
            family = of;
            let head = "| setting | default | is |\n| --- | --- | --- |";
            writeln!(text, "\n## {family}\n\n{head}").expect("memory takes it");
        }
        let default = match setting.default.unwrap_or_default() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let ServerSetting { name, about, .. } = setting;
        writeln!(text, "| `{name}` | {default} | {about} |").expect("memory takes it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigSources};
    use super::*;

    #[test]
    fn each_setting_has_one_row_and_a_sentence() {
        // DescribeConfigs sorts by name, so a sentence cannot refer to the row above it.
        let openings = ["The same", "As ", "Its", "How", "About", "What", "When"];
        for ServerSetting { name, about, .. } in ServerSetting::all() {
            assert!(about.ends_with('.') && about.len() > 10, "{name}: {about}");
            assert!(!openings.iter().any(|opening| about.starts_with(opening)), "{name}: {about}");
            let rows = ServerSetting::all().filter(|setting| setting.name == *name).count();
            assert_eq!(rows, 1, "{name}");
        }
    }

    /// Each setting with a default.
    #[test]
    fn the_example_with_its_marks_taken_away_is_the_configuration_of_nothing() {
        let is_setting = |line: &str| line.starts_with('#') && !line.starts_with("# ");
        let example = example();
        let count = example.lines().filter(|line| is_setting(line)).count();
        assert_eq!(count, ServerSetting::all().count());
        let unmarked: String =
            example
                .lines()
                // It is refused where nobody is asked what they may do.
                .filter(|line| !line.contains("\"allow.everyone.if.no.acl.found\""))
                .filter(|line| !line.ends_with("= \"\""))
                .map(|line| {
                    if is_setting(line) { format!("{}\n", &line[1..]) } else { format!("{line}\n") }
                })
                .collect();
        let path = std::env::temp_dir().join(format!("freezeframe-example-{}", std::process::id()));
        std::fs::write(&path, unmarked).expect("it is written");
        let loaded =
            Config::load(&ConfigSources { file: Some(path.clone()), ..ConfigSources::default() });
        std::fs::remove_file(&path).expect("it was written");
        let values = |config: &Config| -> Vec<(String, Option<String>)> {
            let settings = config.settings.iter();
            settings.map(|setting| (setting.name.clone(), setting.value.clone())).collect()
        };
        assert_eq!(values(&loaded.expect("it is valid")), values(&Config::default()));
        assert!(
            example.lines().filter(|line| line.starts_with("# ")).all(|line| line.len() <= WIDTH)
        );
    }

    #[test]
    fn the_page_of_settings_is_that_of_the_program() {
        let page_path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SETTINGS.md");
        let kept = std::fs::read_to_string(page_path).expect("the page is there");
        assert!(
            kept == page(),
            "make it again: freezeframe config example --format markdown > docs/SETTINGS.md"
        );
    }
}
