//! Operations with the binary: the clock, the doctor, quotas, and profiles of servers.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{OwnServer, run};

fn json(text: &str) -> Value {
    assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn the_clock_is_looked_at_and_confirmed_without_http() {
    let shell = OwnServer::start(&[]);
    let data_dir = shell.data.path().to_str().expect("a path that is text");
    let clock = |command, more: &[&str]| {
        run(&[&["clock", command, "--data-dir", data_dir], more].concat(), "")
    };
    let status = clock("status", &[]);
    assert!(status.stdout().starts_with("the time is confirmed, and writes are taken\n"));
    let confirmed = json(clock("confirm", &["--json"]).stdout());
    assert_eq!((&confirmed["fenced"], &confirmed["unconfirmed"]), (&Value::Null, &Value::Null));
    assert!(confirmed["clock_error_ms"].as_u64() <= confirmed["skew_ms"].as_u64(), "{confirmed}");
    let nowhere = run(&["clock", "status", "--data-dir", "/no/such/directory"], "");
    nowhere.assert_failed(1, &["--data-dir"]);
}

/// The findings of `doctor --json` by what was looked at.
fn findings(lines: &str) -> BTreeMap<String, Value> {
    let parse = |line| -> Value { serde_json::from_str(line).expect("JSON") };
    let by_name = |found: Value| (found["what"].as_str().expect("a name").to_owned(), found);
    lines.lines().map(parse).map(by_name).collect()
}

#[test]
fn doctor_says_what_is_well_and_what_is_not_and_what_to_do() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    shell.run_with_input(&["produce", "t"], "a\n");
    shell.stdout_of(&["pins", "set", "audit", "--for", "9d"]);
    let found = findings(&shell.stdout_of(&["doctor", "--json"]));
    for what in ["connection", "version", "server", "open files", "listeners", "budgets"] {
        assert_eq!(found[what]["level"], "ok", "{found:?}");
        assert_eq!(found[what]["help"], Value::Null, "{found:?}");
    }
    let pins = found["pins"]["found"].as_str().expect("a text");
    assert!(pins.starts_with("1: audit holds") && pins.ends_with("for 8 days more"), "{pins}");
    let writes = found["durable writes"]["found"].as_str().expect("a text");
    assert!(writes.contains(" ms on average"), "{writes}");
    let of_directory = |found: &BTreeMap<String, Value>| found["data directory"]["level"].clone();
    assert_eq!(of_directory(&found), "warning", "a test's directory is open to all");
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(shell.data.path(), closed).expect("it is ours");
    assert_eq!(of_directory(&findings(&shell.stdout_of(&["doctor", "--json"]))), "ok");
    // A server whose rules do not apply to everybody.
    let authorizer =
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let rules = ["--set", authorizer, "--set", "super.users=User:ANONYMOUS"];
    let arguments = [&rules[..], &["--zookeeper", "127.0.0.1:0"]].concat();
    let open = OwnServer::start(&arguments);
    let looked = open.run(&["doctor", "--json"], "");
    let found = findings(looked.stdout());
    assert_eq!((looked.code, &found["listener"]["level"]), (Some(0), &"warning".into()));
    assert!(found["listener"]["help"].as_str().expect("a text").contains("docs/SECURITY.md"));
    // A data directory, with a server and without.
    let OwnServer { server, data } = shell;
    let directory = data.path().to_str().expect("a text").to_owned();
    let look = || run(&["doctor", "--data-dir", &directory], "");
    assert!(look().stdout().starts_with("look\tdata directory\ta server runs on it"));
    server.stop().expect("it ends");
    let stopped = look();
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    assert!(stopped.stdout().contains("ok\tjournal\tthe last server was shut down"));
    std::fs::write(data.path().join("FREEZEFRAME"), "format 1\n").expect("it is written");
    let corrupt = look();
    assert_eq!(corrupt.code, Some(1), "{}", corrupt.stdout());
    assert!(corrupt.stdout().starts_with("bad\tdata directory\t"), "{}", corrupt.stdout());
    let nowhere = run(&["doctor", "--data-dir", "/nowhere"], "");
    assert_eq!(nowhere.code, Some(1));
    let alone = run(&["--bootstrap", "127.0.0.1:1", "doctor"], "");
    assert_eq!(alone.code, Some(1));
    assert!(alone.stdout().starts_with("bad\tconnection\t"), "{}", alone.stdout());
    assert!(alone.stdout().lines().any(|line| line.contains("\tRDMA")), "{}", alone.stdout());
}

#[test]
fn commands_take_or_refuse_a_link_as_doctor_says() {
    let shell = OwnServer::start(&[]);
    let found = findings(&shell.stdout_of(&["doctor", "--json"]));
    let has_link = found.get("RDMA link").is_some_and(|link| link["level"] == "ok");
    shell.stdout_of(&["topics", "create", "t"]);
    for way in ["auto", "tcp"] {
        shell.run_with_input(&["produce", "t", "--link", way], "a\n");
        shell.run_with_input(&["cat", "t", "--link", way], "a\n");
    }
    let demanded = ["cat", "t", "--link", "rdma"];
    if has_link {
        assert_eq!(shell.stdout_of(&demanded), "a\na\n");
    } else {
        shell.assert_fails(&demanded, 1, &["RDMA", "--link"]);
    }
    shell.assert_fails(&["cat", "t", "--link", "carrier-pigeon"], 2, &["auto", "tcp", "rdma"]);
}

#[test]
fn quotas_are_set_listed_removed_and_remembered() {
    let shell = OwnServer::start(&[]);
    assert_eq!(shell.stdout_of(&["quotas"]), "");
    let set = shell.run(&["quotas", "set", "--user", "alice", "producer_byte_rate=10MiB"], "");
    assert_eq!(set.stderr, "set producer_byte_rate of user alice to 10485760\n");
    shell.stdout_of(&["quotas", "set", "--user", "<default>", "request_percentage=50"]);
    let both = "user <default>\trequest_percentage\t50\nuser alice\tproducer_byte_rate\t10485760\n";
    assert_eq!(shell.stdout_of(&["quotas"]), both);
    let then = shell.now();
    shell.stdout_of(&["quotas", "rm", "--user", "alice"]);
    assert_eq!(shell.stdout_of(&["quotas", "ls"]), "user <default>\trequest_percentage\t50\n");
    assert_eq!(shell.stdout_of(&["quotas", "--at", &then]), both);
    let line = shell.stdout_of(&["quotas", "--json"]);
    assert_eq!(json(&line)["entity"]["user"], Value::Null);
    shell.assert_fails(&["quotas", "rm", "--user", "alice"], 1, &["user alice has no quotas"]);
    shell.assert_fails(&["quotas", "set", "--user", "a", "speed=1"], 1, &["speed"]);
}

#[test]
fn a_profile_is_used_where_the_command_line_says_nothing_else() {
    let shell = OwnServer::start(&["--zookeeper", "127.0.0.1:0"]);
    shell.stdout_of(&["topics", "create", "orders"]);
    let home = TestDirectory::new();
    let run = |variables: &[(&str, &str)], arguments: &[&str]| {
        let ended = Command::new(testkit::process::freezeframe())
            .env("XDG_CONFIG_HOME", home.path())
            .env_remove("FREEZEFRAME_BOOTSTRAP")
            .env_remove("FREEZEFRAME_ZOOKEEPER")
            .envs(variables.iter().copied())
            .args(arguments)
            .output()
            .expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
    };
    let bootstrap = shell.bootstrap();
    let set = ["profile", "set", "here", "--bootstrap", &bootstrap];
    assert_eq!(run(&[], &set).0, Some(0));
    assert_eq!(run(&[], &["profile", "set", "nowhere", "--bootstrap", "127.0.0.1:1"]).0, Some(0));
    assert_eq!(run(&[], &["--profile", "here", "topics"]).1, "orders\t1\n");
    assert_eq!(run(&[("FREEZEFRAME_PROFILE", "here")], &["topics"]).1, "orders\t1\n");
    assert_eq!(run(&[], &["profile", "use", "here"]).0, Some(0));
    assert_eq!(run(&[], &["topics"]).1, "orders\t1\n");
    assert_eq!(run(&[], &["--profile", "nowhere", "topics"]).0, Some(1));
    // The profile's server knows the names of moments, also for znodes.
    shell.stdout_of(&["pins", "set", "audit"]);
    let zookeeper = shell.zookeeper.expect("an address").to_string();
    let past = ["zk", "--zookeeper", &zookeeper, "stat", "/", "--at", "pin:audit"];
    assert_eq!(run(&[], &[&["--profile", "here"], &past[..]].concat()).0, Some(0));
    let (code, _, error) = run(&[], &[&["--profile", "nowhere"], &past[..]].concat());
    assert!(code == Some(1) && error.contains("127.0.0.1:1"), "{error}");
    // Without an address of ZooKeeper in it, `zk` does not take another server's.
    let (code, _, error) = run(&[], &["--profile", "here", "zk", "create", "/a", "x"]);
    assert!(code == Some(2) && error.contains("has no ZooKeeper address"), "{error}");
    let set = ["profile", "set", "both", "--bootstrap", &bootstrap, "--zookeeper", &zookeeper];
    assert_eq!(run(&[], &set).0, Some(0));
    assert_eq!(run(&[], &["--profile", "both", "zk", "create", "/a", "x"]).0, Some(0));
    let read = ["zk", "--zookeeper", &zookeeper, "get", "/a"];
    assert_eq!(run(&[], &read).1, "x");
    let line = ["--profile", "nowhere", "topics", "--bootstrap", &bootstrap];
    assert_eq!(run(&[], &line).1, "orders\t1\n");
    let variable = [("FREEZEFRAME_BOOTSTRAP", bootstrap.as_str())];
    assert_eq!(run(&variable, &["--profile", "nowhere", "topics"]).1, "orders\t1\n");
    // A password goes with the user of its own source.
    let alice = ["--sasl-user", "alice", "--sasl-password-file", "/none/alice.password"];
    let set = [&["profile", "set", "alice", "--bootstrap", &bootstrap], &alice[..]].concat();
    assert_eq!(run(&[], &set).0, Some(0));
    let (_, _, error) = run(&[], &["--profile", "alice", "topics"]);
    assert!(error.contains("alice.password"), "{error}");
    for (variables, words) in [
        (&[][..], &["--profile", "alice", "topics", "--sasl-user", "bob"][..]),
        (&[("FREEZEFRAME_SASL_USER", "bob")][..], &["--profile", "alice", "topics"]),
        (&[("FREEZEFRAME_SASL_PASSWORD", "secret")][..], &["--profile", "alice", "topics"]),
    ] {
        let (_, _, error) = run(variables, words);
        assert!(!error.contains("alice.password"), "{variables:?} {words:?}: {error}");
    }
    for command in [&["topics"][..], &["zk", "ls", "/"]] {
        let (code, _, error) = run(&[], &[&["--profile", "typo"], command].concat());
        assert!(
            code == Some(2) && error.contains("there is: alice, both, here, nowhere"),
            "{error}"
        );
    }
    assert_eq!(run(&[], &["profile", "rm", "here"]).0, Some(1), "it is in use");
    std::fs::write(home.path().join("freezeframe/profiles.toml"), "[profiles.a]\nx = 1")
        .expect("a file");
    let (code, _, error) = run(&[], &["topics"]);
    assert!(code == Some(2) && error.contains("profiles.toml"), "{error}");
    assert_eq!(run(&[], &["help", "moments"]).0, Some(0), "it needs no profile");
    let set = ["profile", "set", "more", "--bootstrap", "h:1"];
    assert_eq!(run(&[], &set).0, Some(1), "what cannot be read is not replaced");
    let nowhere = home.path().join("freezeframe/profiles.toml");
    let nowhere = [("XDG_CONFIG_HOME", nowhere.to_str().expect("text"))];
    assert_eq!(run(&nowhere, &["topics", "--bootstrap", &bootstrap]).1, "orders\t1\n");
    let (code, _, error) = run(&nowhere, &["--profile", "here", "topics"]);
    assert!(code == Some(2) && error.contains("profiles.toml"), "{error}");
}
