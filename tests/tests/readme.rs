//! The README, the page on the first hour and the recipes of the cookbook can be pasted, and print
//! what they say.
//! `tests/cookbook/run.sh` runs the recipes with a line that begins with `Needs:`, which need other
//! software.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::directory::TestDirectory;
use testkit::process::{TestServer, freezeframe};

fn page(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// The blocks of a kind, one behind the other.
fn blocks(text: &str, kind: &str) -> String {
    let begins = format!("```{kind}\n");
    let rest = text.split(&begins).skip(1);
    rest.map(|block| block.split("```").next().expect("a block has an end")).collect()
}

/// Runs the blocks for a shell in one shell, beside a server of its own, and compares what they
/// print. The addresses that a page says are those of the server.
fn check(name: &str, text: &str) {
    let (data, work) = (TestDirectory::new(), TestDirectory::new());
    let server =
        TestServer::start(data.path(), &["--zookeeper", "127.0.0.1:0"]).expect("it starts");
    let zookeeper = server.zookeeper.expect("it has a port for ZooKeeper").to_string();
    let script = blocks(text, "sh").replace("127.0.0.1:8080", &server.http.to_string());
    let programs = freezeframe().parent().expect("a directory").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let ended = Command::new("bash")
        .args(["-e", "-c", &script])
        .env("PATH", format!("{programs}:{path}"))
        .env("FREEZEFRAME_BOOTSTRAP", server.kafka.to_string())
        .env("FREEZEFRAME_ZOOKEEPER", zookeeper)
        .current_dir(work.path())
        .output()
        .expect("a shell");
    assert!(ended.status.success(), "{name}: {}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(String::from_utf8_lossy(&ended.stdout), blocks(text, "text"), "{name}");
}

#[test]
fn the_sixty_seconds_print_what_the_page_says() {
    let text = std::fs::read_to_string(page("README.md")).expect("a page");
    let (_, section) = text.split_once("\n## Sixty seconds\n").expect("the section");
    let section = section.split("\n## ").next().expect("its end");
    assert!(!blocks(section, "text").is_empty());
    check("README.md", section);
}

#[test]
fn the_first_hour_prints_what_the_page_says() {
    let text = std::fs::read_to_string(page("docs/START.md")).expect("a page");
    assert!(!blocks(&text, "text").is_empty());
    check("START.md", &text);
}

#[test]
fn every_recipe_prints_what_it_says() {
    let mut count = 0;
    for entry in std::fs::read_dir(page("docs/cookbook")).expect("a directory") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a page");
        let needs_software = text.lines().any(|line| line.starts_with("Needs:"));
        if path.file_name().is_some_and(|name| name != "README.md") && !needs_software {
            check(&path.display().to_string(), &text);
            count += 1;
        }
    }
    assert!(count >= 4, "{count} recipes");
}
