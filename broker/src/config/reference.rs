//! The settings with a sentence about each: the commented file that `config example` prints, and the
//! page `docs/SETTINGS.md`.

use std::fmt::Write as _;

use super::lookup::ConfigSetting;
use super::{kafka, own};

/// A line for each setting: its name, a tab, and a sentence.
const ABOUT: &str = include_str!("about.tsv");
/// The widest line of the file.
const WIDTH: usize = 80;

/// The names of settings, each with its sentence, in the order of the tables.
fn sentences() -> impl Iterator<Item = (&'static str, &'static str)> {
    ABOUT.lines().map(|line| line.split_once('\t').expect("a name, a tab and a sentence"))
}

/// The sentence about a setting.
fn about(name: &str) -> &'static str {
    sentences().find(|(about, _)| *about == name).map_or("", |(_, sentence)| sentence)
}

/// A configuration file with every setting in a comment, with its default.
pub fn example() -> String {
    let mut text = String::from(
        "# The settings of a Freezeframe server. A line without a space behind its mark\n\
         # has the default: take the mark away to change it. A size has its unit (64MiB),\n\
         # and so has a time (5s), unless Kafka's or ZooKeeper's name says it.\n",
    );
    let mut section = "";
    for setting in own::SETTINGS {
        let (of, name) = setting.key.split_once('.').expect("a section and a name");
        if of != section {
            section = of;
            writeln!(text, "\n[{section}]").expect("memory takes it");
        }
        write_setting(&mut text, setting.key, name, Some(setting.default));
    }
    text.push_str("\n# Settings of Kafka's brokers, by their names.\n[kafka]\n");
    for setting in kafka::SETTINGS {
        write_setting(&mut text, setting.name, setting.name, setting.default);
    }
    text
}

fn write_setting(text: &mut String, setting: &str, name: &str, default: Option<&str>) {
    text.push('\n');
    let mut line = String::from("#");
    for word in about(setting).split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            writeln!(text, "{line}").expect("memory takes it");
            line = String::from("#");
        }
        write!(line, " {word}").expect("memory takes it");
    }
    let name = if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
    let value = default.unwrap_or_default();
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
         This page is made from the program: `freezeframe config example --format markdown`.\n\n\
         ## Ours\n\n| setting | default | is |\n| --- | --- | --- |\n",
    );
    let mut is_kafka = false;
    for setting in ConfigSetting::all() {
        let (name, default) = match setting {
            ConfigSetting::Own(_, own) => (own.key, Some(own.default)),
            ConfigSetting::Kafka(_, kafka) => (kafka.name, kafka.default),
        };
        if matches!(setting, ConfigSetting::Kafka(..)) && !is_kafka {
            is_kafka = true;
            text.push_str("\n## Kafka's\n\n| setting | default | is |\n| --- | --- | --- |\n");
        }
        let default = match default.unwrap_or_default() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        writeln!(text, "| `{name}` | {default} | {} |", about(name)).expect("memory takes it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigSources};
    use super::*;

    #[test]
    fn each_setting_has_a_sentence_in_the_order_of_the_tables() {
        let names: Vec<&str> = ConfigSetting::all().map(ConfigSetting::name).collect();
        let of_table: Vec<&str> = sentences().map(|(name, _)| name).collect();
        assert_eq!(of_table, names);
        for (name, sentence) in sentences() {
            assert!(sentence.ends_with('.') && sentence.len() > 10, "{name}: {sentence}");
        }
    }

    /// Each setting with a default.
    #[test]
    fn the_example_with_its_marks_taken_away_is_the_configuration_of_nothing() {
        let is_setting = |line: &str| line.starts_with('#') && !line.starts_with("# ");
        let example = example();
        let count = example.lines().filter(|line| is_setting(line)).count();
        assert_eq!(count, ConfigSetting::all().count());
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
