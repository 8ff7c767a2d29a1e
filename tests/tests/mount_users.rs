//! The view of the machine's users in a mount: what rules allow the principals that they are there.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use testkit::process::mount::{self, TestMount, moment, print_notice};
use testkit::process::wait_until;

/// A user that is `User:alice` there.
const ALICE: u32 = 12_345;
/// One that is nobody there.
const OTHER: u32 = 54_321;

/// The output of a shell command, or why it fails, run in the mount by this user.
fn as_user(mounted: &TestMount, user: u32, script: &str) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(mounted.path("")).env("LC_ALL", "C");
    let ended = command.uid(user).gid(user).output().expect("a shell runs");
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    if ended.status.success() { Ok(text(ended.stdout)) } else { Err(text(ended.stderr)) }
}

fn refused(mounted: &TestMount, user: u32, script: &str) {
    let why = as_user(mounted, user, script).expect_err("it is refused");
    assert!(why.contains("Permission denied"), "{script}: {why}");
}

#[test]
fn a_user_sees_what_rules_allow_and_not_what_others_have_looked_up() {
    if !rustix::process::geteuid().is_root() {
        print_notice("SKIPPED users of a mount: only root can become others");
        return;
    }
    let settings = [
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        // Clients are nobody here, and do everything.
        "super.users=User:ANONYMOUS;User:carol",
        "server.mount-users=12345=User:alice,54321=User:bob",
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let Some(mounted) = mount::start("users of a mount", &arguments) else { return };
    // Users other than root can reach the mount.
    for path in [mounted.outside_path(""), mounted.path("")] {
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    }
    let freezeframe = |words: &[&str], input: &str| {
        mounted.server().run_with_input(words, input);
    };
    for topic in ["open", "closed"] {
        freezeframe(&["topics", "create", topic], "");
        freezeframe(&["produce", topic, "--partition", "0"], "one\n");
    }
    let rule = ["--allow", "User:alice", "--operation", "read", "--topic", "open"];
    freezeframe(&[&["acls", "add"], &rule[..]].concat(), "");
    let then = moment();
    wait_until("the moment is final", || {
        as_user(&mounted, 0, &format!("cat .at/{then}/topics/open/0.values")).is_ok()
    });
    let closed = [
        "cat topics/closed/0.values".to_owned(),
        "cat topics/closed/0.jsonl".to_owned(),
        "ls topics/closed".to_owned(),
        format!("cat topics/closed/0.values@{then}"),
        format!("cat .at/{then}/topics/closed/0.values"),
        format!("stat .at/{then}/topics/closed"),
    ];
    // Root sees everything, and the kernel has looked it up by then.
    for script in &closed {
        as_user(&mounted, 0, script).expect("root sees it");
    }
    as_user(&mounted, 0, "echo mine > files/private && chmod 600 files/private")
        .expect("it is written");
    as_user(&mounted, 0, "echo ours > files/public && chmod 644 files/public")
        .expect("it is written");
    for script in &closed {
        refused(&mounted, ALICE, script);
        refused(&mounted, OTHER, script);
    }
    let open = [
        "cat topics/open/0.values".to_owned(),
        format!("cat topics/open/0.values@{then}"),
        format!("cat .at/{then}/topics/open/0.values"),
    ];
    for script in &open {
        assert_eq!(as_user(&mounted, ALICE, script).as_deref(), Ok("one\n"), "{script}");
        refused(&mounted, OTHER, script);
    }
    for directory in ["topics".to_owned(), format!(".at/{then}/topics")] {
        let names = |user| as_user(&mounted, user, &format!("ls {directory}"));
        assert_eq!(names(0).as_deref(), Ok("closed\nopen\n"));
        assert_eq!(names(ALICE).as_deref(), Ok("open\n"));
        refused(&mounted, OTHER, &format!("ls {directory}"));
    }
    // Of files, modes say it.
    assert_eq!(as_user(&mounted, ALICE, "cat files/public").as_deref(), Ok("ours\n"));
    refused(&mounted, ALICE, "cat files/private");
    // A reader with an open partition of the present hears no more once the rule is gone.
    let mut reader = Command::new("sh");
    let script = "exec 3<topics/open/0.values; cat <&3; echo opened; read line; cat <&3";
    reader.args(["-c", script]).current_dir(mounted.path("")).env("LC_ALL", "C");
    reader.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut reader = reader.uid(ALICE).gid(ALICE).spawn().expect("a shell runs");
    let mut printed = BufReader::new(reader.stdout.take().expect("it is piped")).lines();
    let mut next = || printed.next().expect("a line").expect("it is text");
    assert_eq!([next(), next()], ["one", "opened"]);
    freezeframe(&["produce", "open", "--partition", "0"], "two\n");
    freezeframe(&[&["acls", "remove"], &rule[..]].concat(), "");
    reader.stdin.take().expect("it is piped").write_all(b"\n").expect("it reads");
    let ended = reader.wait_with_output().expect("it ends");
    let why = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(why.contains("Permission denied"), "{why}");
    assert!(printed.next().is_none(), "it read what came later");
    for script in &open {
        refused(&mounted, ALICE, script);
    }
}
