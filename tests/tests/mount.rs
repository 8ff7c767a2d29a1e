//! The mount, used by programs that know nothing of it (`F20`, `F27`, `F43`, `F44`, `G14`).

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags, fallocate, getxattr, listxattr, removexattr, renameat_with, seek, setxattr,
    statvfs, utimensat,
};
use rustix::io::Errno;
use testkit::process::mount::{self, TestMount, is_installed, moment, print_notice, shell};
use testkit::process::wait_until;

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    let error = result.expect_err("it is refused");
    Errno::from_raw_os_error(error.raw_os_error().expect("the kernel says why"))
}

fn produce(mounted: &TestMount, topic: &str, lines: &str) {
    mounted.server().run_with_input(&["produce", topic, "--partition", "0"], lines);
}

fn create_topic(mounted: &TestMount, topic: &str) {
    mounted.server().stdout_of(&["topics", "create", topic]);
}

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|nth| format!("{{\"n\":{nth}}}\n")).collect()
}

// ---- Programs ----

const C_PROJECT: &str = r#"
mkdir -p project/src project/lib && cd project
for n in 1 2 3 4 5; do
    echo "int f$n(int x) { return x + $n; }" > lib/f$n.c
    echo "int f$n(int x);" >> lib/all.h
done
printf '#include <stdio.h>\n#include "../lib/all.h"\nint main(void) { printf("%%d\\n", f5(f4(f3(f2(f1(0)))))); }\n' > src/main.c
printf 'CC=gcc\nOBJECTS=$(patsubst %%.c,%%.o,$(wildcard lib/*.c))\nprogram: src/main.o liball.a\n\tgcc -o $@ $^\nliball.a: $(OBJECTS)\n\tar rcs $@ $^\nsrc/main.o: lib/all.h\nclean:\n\trm -f program liball.a src/*.o lib/*.o\n' > Makefile
"#;

#[test]
fn a_git_checkout_and_a_c_build_work_in_it() {
    let Some(mounted) = mount::start("git and make", &[]) else { return };
    let files = mounted.path("files");
    shell(&files, C_PROJECT);
    let script = r#"
        cd project
        git init -q . && git add . && git commit -qm first
        make -s -j3 && ./program
        touch lib/f3.c && make | grep -c gcc
        make -s clean && git status --short | wc -l
        echo '*.o' > .gitignore && git add . && git commit -qm second
        git checkout -q HEAD~1 && ls -a | grep -c gitignore || true
        git checkout -q - && git log --oneline | wc -l
        git clone -q . ../clone && cd ../clone && git fsck --no-progress && make -s && ./program"#;
    if !["git", "gcc", "make", "ar"].into_iter().all(is_installed) {
        print_notice("SKIPPED git and make: git, gcc, make and ar are not all installed");
        return;
    }
    let said = shell(&files, script);
    // The object, and the program: `ar` is no compiler.
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["15", "2", "0", "0", "2", "15"]);
}

const LISTING: &str = "find . -mindepth 1 -printf '%P %y %m %U %G %n %l %T@' \
    \\( -type f -printf ' %s\\n' -o -printf '\\n' \\) | sort";

#[test]
fn copies_hold_all_that_the_originals_do() {
    let Some(mounted) = mount::start("cp, tar and rsync", &[]) else { return };
    let (files, beside) = (mounted.path("files"), mounted.outside_path("tree"));
    fs::create_dir(&beside).unwrap();
    shell(
        &beside,
        r#"mkdir -p a/b/c 'with space' && head -c 300000 /dev/urandom > a/b/random
        echo text > a/text && chmod 640 a/text && ln a/text a/b/hard && ln -s ../text a/b/soft
        ln -s /nowhere dangling && chmod 1777 a/b/c && touch -d '2001-02-03 04:05:06.789' a/text a/b
        mkfifo pipe && : > 'with space/é"\' && truncate -s 1M sparse && echo end >> sparse
        [ "$(id -u)" != 0 ] || chown 12:34 a/b/random"#,
    );
    let original = shell(&beside, LISTING);
    let tools: [(&str, &str); 3] = [
        ("cp", "cp -a \"$2\" \"$1\""),
        ("tar", "mkdir \"$1\" && tar -C \"$2\" --format=posix -cf - . | tar -C \"$1\" -xpf -"),
        // It takes times within one second for the same, unless told otherwise.
        ("rsync", "rsync -aH --modify-window=-1 \"$2/\" \"$1/\""),
    ];
    for (tool, command) in tools {
        if !is_installed(tool) {
            print_notice(&format!("SKIPPED copies by {tool}: it is not installed"));
            continue;
        }
        let copy = files.join(tool);
        let (to, from) = (copy.to_str().unwrap(), beside.to_str().unwrap());
        shell(&files, &format!("set -- {to} {from}; {command}"));
        assert_eq!(shell(&copy, LISTING), original, "{tool}");
        shell(&files, &format!("diff -r --no-dereference --exclude=pipe {to} {from}"));
    }
    let before = moment();
    shell(&files, "rm -r cp && mkdir cp && echo new > cp/a");
    let past = mounted.path(&format!(".at/{before}/files/cp"));
    let (then, from) = (past.to_str().unwrap(), beside.to_str().unwrap());
    shell(&files, &format!("diff -r --no-dereference --exclude=pipe {then} {from}"));
}

#[test]
fn a_database_is_written_in_it_and_read_as_it_was() {
    let Some(mounted) = mount::start("sqlite3", &[]) else { return };
    if !is_installed("sqlite3") {
        return print_notice("SKIPPED sqlite3: it is not installed");
    }
    let files = mounted.path("files");
    let sql = |what: &str| shell(&files, &format!("sqlite3 db \"{what}\"")).trim().to_owned();
    sql("create table t(n integer primary key, v text); pragma journal_mode=wal;");
    for mode in ["wal", "delete"] {
        sql(&format!("pragma journal_mode={mode};"));
        sql("with recursive c(n) as (select 1 union all select n+1 from c where n<2000) \
             insert into t(v) select 'value ' || n from c;");
    }
    let before = moment();
    sql("delete from t where n % 2 = 0; vacuum;");
    assert_eq!(sql("select count(*) from t; pragma integrity_check;"), "2000\nok");
    let past = mounted.path(&format!(".at/{before}/files/db"));
    let count = format!("sqlite3 'file:{}?immutable=1' 'select count(*) from t'", past.display());
    assert_eq!(shell(&files, &count).trim(), "4000");
}

// ---- Rules ----

#[test]
fn names_follow_the_rules_of_posix() {
    let Some(mounted) = mount::start("rules of names", &[]) else { return };
    let at = |name: &str| mounted.path("files").join(name);
    fs::write(at("a"), "a").unwrap();
    fs::create_dir_all(at("d/e")).unwrap();
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(at("a"))), Errno::EXIST);
    assert_eq!(errno(fs::create_dir(at("a"))), Errno::EXIST);
    assert_eq!(errno(fs::remove_dir(at("d"))), Errno::NOTEMPTY);
    assert_eq!(errno(fs::remove_file(at("d"))), Errno::ISDIR);
    assert_eq!(errno(fs::rename(at("d"), at("d/e/f"))), Errno::INVAL);
    assert_eq!(errno(fs::rename(at("a"), at("d"))), Errno::ISDIR);
    assert_eq!(errno(fs::write(at(&"n".repeat(256)), "")), Errno::NAMETOOLONG);
    fs::write(at(&"n".repeat(255)), "").unwrap();
    assert_eq!(errno(fs::symlink_metadata(at(&"x".repeat(1000)))), Errno::NAMETOOLONG);
    for name in [&b"\x01\xff\n%@"[..], b"a@b", b"..."] {
        let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name);
        fs::write(mounted.path("files").join(name), "odd").unwrap();
        assert!(fs::read_dir(at("")).unwrap().any(|entry| entry.unwrap().file_name() == name));
        assert_eq!(fs::read(mounted.path("files").join(name)).unwrap(), b"odd");
    }
    fs::hard_link(at("a"), at("d/a")).unwrap();
    assert_eq!(
        (fs::metadata(at("a")).unwrap().nlink(), fs::metadata(at("d")).unwrap().nlink()),
        (2, 3)
    );
    let no_replace = renameat_with(CWD, at("a"), CWD, at("d/e"), RenameFlags::NOREPLACE);
    assert_eq!(no_replace, Err(Errno::EXIST));
    renameat_with(CWD, at("a"), CWD, at("d/e"), RenameFlags::EXCHANGE).unwrap();
    assert!(at("a").is_dir() && at("d/e").is_file());
    assert_eq!(fs::metadata(at("d")).unwrap().nlink(), 2);
    symlink("d/e", at("link")).unwrap();
    assert_eq!(fs::read(at("link")).unwrap(), b"a");
    // As deep as a path name can be, and from there on step by step.
    let deep = (0..1000).map(|_| "x").collect::<Vec<_>>().join("/");
    fs::create_dir_all(at(&deep)).unwrap();
    assert!(at(&deep).is_dir());
}

#[test]
fn what_is_open_stays_though_its_name_goes() {
    let Some(mounted) = mount::start("open files", &[]) else { return };
    let at = |name: &str| mounted.path("files").join(name);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).open(at("a")).unwrap();
    file.write_at(b"before", 0).unwrap();
    fs::remove_file(at("a")).unwrap();
    fs::write(at("a"), "another").unwrap();
    file.write_at(b" after", 6).unwrap();
    let mut bytes = [0; 12];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((&bytes, file.metadata().unwrap().nlink()), (b"before after", 0));
    fs::rename(at("a"), at("b")).unwrap();
    assert_eq!(fs::read(at("b")).unwrap(), b"another");
}

#[test]
fn bytes_follow_the_rules_of_posix() {
    let Some(mounted) = mount::start("rules of bytes", &[]) else { return };
    let at = |name: &str| mounted.path("files").join(name);
    // Concurrent appends do not tear each other.
    let appenders: Vec<_> = (0..4)
        .map(|who| {
            let mut file = OpenOptions::new().append(true).create(true).open(at("log")).unwrap();
            std::thread::spawn(move || {
                for nth in 0..100 {
                    file.write_all(format!("{who} {nth} {}\n", "x".repeat(nth)).as_bytes())
                        .unwrap();
                }
            })
        })
        .collect();
    appenders.into_iter().for_each(|appender| appender.join().unwrap());
    let text = fs::read_to_string(at("log")).unwrap();
    assert_eq!(text.lines().count(), 400);
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[2].len(), words[1].parse::<usize>().unwrap(), "{line}");
    }

    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(at("a")).unwrap();
    // A sparse file: holes are zero, and can be found.
    file.write_at(b"end", 1 << 40).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 40) + 3);
    let found = seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert_eq!((found, seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap()), (1 << 40, 0));
    assert_eq!(seek(&file, rustix::fs::SeekFrom::Data((1 << 40) + 3)), Err(Errno::NXIO));
    let mut bytes = [1; 5];
    assert_eq!(file.read_at(&mut bytes, 12345).unwrap(), 5);
    assert_eq!((bytes, file.read_at(&mut bytes, u64::MAX >> 2).unwrap()), ([0; 5], 0));
    assert_eq!(errno(file.write_at(b"x", (1 << 62) + 1)), Errno::FBIG);
    assert_eq!(errno(file.set_len((1 << 62) + 1)), Errno::FBIG);
    file.set_len(3).unwrap();
    file.set_len(10).unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), [0; 10]);
    let insert = FallocateFlags::INSERT_RANGE;
    assert_eq!(fallocate(&file, insert, 0, 4096), Err(Errno::OPNOTSUPP));
    fallocate(&file, FallocateFlags::empty(), 0, 5000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5000);
    assert!(statvfs(at("a")).unwrap().f_bavail > 0);
}

#[test]
fn attributes_follow_the_rules_of_posix() {
    let Some(mounted) = mount::start("rules of attributes", &[]) else { return };
    let at = |name: &str| mounted.path("files").join(name);
    fs::write(at("old"), "x").unwrap();
    fs::write(at("a"), "x").unwrap();
    fs::set_permissions(at("a"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(fs::metadata(at("a")).unwrap().mode() & 0o7777, 0o4755);
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let set = |name, last_access, last_modification| {
        let times = Timestamps { last_access, last_modification };
        utimensat(CWD, at(name), &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(at(name)).unwrap();
        ((metadata.atime(), metadata.atime_nsec()), (metadata.mtime(), metadata.mtime_nsec()))
    };
    assert_eq!(set("a", time(5, 6), time(-7, 8)), ((5, 6), (-7, 8)));
    let first = time(i64::MIN, 0);
    assert_eq!(set("a", first, first), ((i64::MIN, 0), (i64::MIN, 0)));
    assert_eq!(set("a", time(5, 6), time(i64::MAX, 0)), ((5, 6), (i64::MAX, 0)));
    assert_eq!(set("a", time(0, UTIME_OMIT as _), time(9, 1)), ((5, 6), (9, 1)));
    let (accessed, modified) = set("a", time(0, UTIME_OMIT as _), time(0, UTIME_NOW as _));
    let old = fs::metadata(at("old")).unwrap();
    assert_eq!(accessed, (5, 6));
    assert!(modified > (old.mtime(), old.mtime_nsec()), "{modified:?}");

    setxattr(at("a"), "user.x", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(at("a"), "user.x", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(at("a"), "user.y", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    setxattr(at("a"), "user.a/b", &[7; 60_000], XattrFlags::empty()).unwrap();
    let mut value = vec![0; 65536];
    assert_eq!(getxattr(at("a"), "user.a/b", &mut value[..]), Ok(60_000));
    assert_eq!(getxattr(at("a"), "user.a/b", &mut value[..10]), Err(Errno::RANGE));
    assert_eq!(listxattr(at("a"), &mut value[..]), Ok("user.a/b\0user.x\0".len()));
    removexattr(at("a"), "user.x").unwrap();
    assert_eq!(removexattr(at("a"), "user.x"), Err(Errno::NODATA));
    assert_eq!(setxattr(at("a"), "user.big", &[0; 65537], XattrFlags::empty()), Err(Errno::TOOBIG));
}

#[test]
fn permissions_are_those_of_the_modes() {
    let Some(mounted) = mount::start("permissions", &[]) else { return };
    if !rustix::process::geteuid().is_root() {
        return print_notice("SKIPPED permissions: only root can act as others");
    }
    const NOBODY: u32 = 65534;
    let at = |name: &str| mounted.path("files").join(name);
    // Users other than root can reach the mount.
    for path in [mounted.outside_path(""), mounted.path("")] {
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    }
    let nobody = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(at("")).uid(NOBODY).gid(NOBODY);
        command.stderr(Stdio::null()).status().unwrap().success()
    };
    fs::write(at("secret"), "x").unwrap();
    fs::set_permissions(at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(at("shared")).unwrap();
    fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(!nobody("cat secret") && !nobody("echo x > new"));
    assert!(nobody("echo x > shared/mine") && nobody("chmod 777 shared/mine"));
    assert_eq!(fs::metadata(at("shared/mine")).unwrap().uid(), NOBODY);
    fs::write(at("shared/roots"), "x").unwrap();
    assert!(!nobody("rm -f shared/roots"), "the sticky bit");
    assert!(!nobody("chown 0 shared/mine") && nobody("rm shared/mine"));
    // A program that another user writes to loses its setuid bit.
    fs::write(at("program"), "x").unwrap();
    fs::set_permissions(at("program"), fs::Permissions::from_mode(0o6777)).unwrap();
    assert!(nobody("echo y >> program"));
    assert_eq!(fs::metadata(at("program")).unwrap().mode() & 0o7777, 0o777);
    // New entries of a directory inherit its group.
    fs::create_dir(at("group")).unwrap();
    chown(at("group"), None, Some(77)).unwrap();
    fs::set_permissions(at("group"), fs::Permissions::from_mode(0o2777)).unwrap();
    assert!(nobody("mkdir group/d && echo x > group/f"));
    let (inner, file) =
        (fs::metadata(at("group/d")).unwrap(), fs::metadata(at("group/f")).unwrap());
    assert_eq!((inner.gid(), inner.mode() & 0o2000, file.gid()), (77, 0o2000, 77));
}

#[test]
fn a_large_directory_is_listed_whole_while_it_changes() {
    let Some(mounted) = mount::start("large directories", &[]) else { return };
    const COUNT: usize = 3000;
    let directory = mounted.path("files/large");
    fs::create_dir(&directory).unwrap();
    for nth in 0..COUNT {
        File::create(directory.join(format!("stays-{nth:05}"))).unwrap();
    }
    for nth in 0..200 {
        File::create(directory.join(format!("goes-{nth}"))).unwrap();
    }
    let mut seen = Vec::new();
    for (nth, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        if nth < 200 {
            fs::remove_file(directory.join(format!("goes-{nth}"))).unwrap();
            File::create(directory.join(format!("comes-{nth}"))).unwrap();
        }
        seen.push(entry.unwrap().file_name().into_string().unwrap());
    }
    let stays: Vec<&String> = seen.iter().filter(|name| name.starts_with("stays")).collect();
    assert_eq!(stays.len(), COUNT);
    let mut once = seen.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), seen.len(), "no name is listed twice");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_was_synced_survives_a_kill() {
    let Some(mut mounted) = mount::start("durability", &[]) else { return };
    let at = |mounted: &TestMount, name: &str| mounted.path("files").join(name);
    fs::write(at(&mounted, "a"), "old").unwrap();
    // As careful programs do it.
    let mut file = File::create(at(&mounted, "a.new")).unwrap();
    file.write_all(b"new").unwrap();
    file.sync_all().unwrap();
    drop(file);
    fs::rename(at(&mounted, "a.new"), at(&mounted, "a")).unwrap();
    File::open(at(&mounted, "")).unwrap().sync_all().unwrap();
    mounted.kill();
    // The mount of the server that was killed is dead, and the next server removes it.
    let refused = errno(fs::metadata(at(&mounted, "a")));
    assert!(matches!(refused, Errno::NOTCONN | Errno::CONNABORTED), "{refused}");
    mounted.start_server().unwrap();
    assert_eq!(fs::read_to_string(at(&mounted, "a")).unwrap(), "new");
    assert!(!at(&mounted, "a.new").exists());
}

// ---- Topics, and the past ----

#[test]
fn f44_one_program_has_a_hundred_moments_of_a_file_open() {
    let Some(mounted) = mount::start("a hundred moments", &[]) else { return };
    create_topic(&mounted, "t");
    let path = mounted.path("files/a");
    let mut open = Vec::new();
    for nth in 0..100_u32 {
        fs::write(&path, format!("{nth}").repeat(10)).unwrap();
        let moment = moment();
        let name = if nth % 2 == 0 {
            mounted.path(&format!(".at/{moment}/files/a"))
        } else {
            mounted.path(&format!("files/a@{moment}"))
        };
        open.push((nth, File::open(name).unwrap()));
    }
    fs::remove_file(&path).unwrap();
    for (nth, mut file) in open.into_iter().rev() {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("{nth}").repeat(10));
    }
}

#[test]
fn f43_programs_read_topics_as_files_now_and_then() {
    let Some(mounted) = mount::start("topics as files", &[]) else { return };
    create_topic(&mounted, "orders");
    produce(&mounted, "orders", &lines(0..500));
    let before = moment();
    produce(&mounted, "orders", &lines(500..700));
    let root = mounted.path("");
    let count = |path: &str| shell(&root, &format!("wc -l < '{path}'")).trim().to_owned();
    assert_eq!(count("topics/orders/0.values"), "700");
    assert_eq!(count(&format!(".at/{before}/topics/orders/0.values")), "500");
    assert_eq!(count(&format!("topics/orders@{before}/0.jsonl")), "500");
    assert_eq!(count(&format!("topics/orders/0.values@{before}")), "500");
    let grep = format!("grep -r -h '^{{.*n.*:49.}}' .at/{before}/topics/orders/0.values | wc -l");
    assert_eq!(shell(&root, &grep).trim(), "10");
    let sum = shell(&root, "awk -F'[:}]' '{ sum += $2 } END { print sum }' topics/orders/0.values");
    assert_eq!(sum.trim(), (0..700).sum::<u32>().to_string());
    let difference = format!("diff -r .at/{before}/topics topics | grep -c '^> ' || true");
    assert_eq!(shell(&root, &difference).trim(), "400");
    // A moment shows the same for ever.
    let after = moment();
    produce(&mounted, "orders", &lines(700..710));
    shell(&root, &format!("diff -r .at/{after}/topics/orders/0.log topics/orders@{after}/0.log"));
    if is_installed("sqlite3") {
        let script = format!(
            "sqlite3 :memory: 'create table j(l text)' \
             '.import \"|cat topics/orders/0.values@{before}\" j' \
             \"select sum(json_extract(l, '$.n')) from j\""
        );
        assert_eq!(shell(&root, &script).trim(), (0..500).sum::<u32>().to_string());
    } else {
        print_notice("SKIPPED sqlite3 on JSON lines: it is not installed");
    }
}

#[test]
fn a_growing_partition_is_followed() {
    let Some(mounted) = mount::start("tail -f", &[]) else { return };
    create_topic(&mounted, "t");
    produce(&mounted, "t", "first\n");
    let mut command = Command::new("tail");
    command.args(["-n", "+1", "-s", "0.05", "-f"]).arg(mounted.path("topics/t/0.values"));
    let mut tail = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(tail.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(next(), "first\n");
    let mut held = File::open(mounted.path("topics/t/0.values")).unwrap();
    assert_eq!(held.seek(SeekFrom::End(0)).unwrap(), 6);
    for nth in 0..5 {
        produce(&mounted, "t", &format!("line {nth}\n"));
        assert_eq!(next(), format!("line {nth}\n"));
        let mut more = String::new();
        held.read_to_string(&mut more).unwrap();
        assert_eq!(more, format!("line {nth}\n"));
        assert_eq!(held.metadata().unwrap().len(), 13 + 7 * nth);
    }
    tail.kill().unwrap();
    tail.wait().unwrap();
}

#[test]
fn all_but_files_of_the_present_is_read_only() {
    let Some(mounted) = mount::start("read only", &[]) else { return };
    create_topic(&mounted, "t");
    produce(&mounted, "t", "x\n");
    fs::write(mounted.path("files/a"), "a").unwrap();
    let moment = moment();
    let past = format!(".at/{moment}/files");
    for directory in ["", "topics", "topics/t", &past] {
        let new = mounted.path(directory).join("new");
        assert_eq!(errno(File::create(&new)), Errno::ROFS, "{directory}");
        assert_eq!(errno(fs::create_dir(&new)), Errno::ROFS, "{directory}");
        let moved = fs::rename(mounted.path("files/a"), &new);
        assert!(matches!(errno(moved), Errno::ROFS | Errno::XDEV), "{directory}");
    }
    for file in ["topics/t/0.log", &format!("{past}/a"), &format!("files/a@{moment}")] {
        let path = mounted.path(file);
        assert_eq!(errno(OpenOptions::new().write(true).open(&path)), Errno::ROFS, "{file}");
        assert_eq!(errno(fs::remove_file(&path)), Errno::ROFS, "{file}");
        let mode = fs::Permissions::from_mode(0o777);
        assert_eq!(errno(fs::set_permissions(&path, mode)), Errno::ROFS, "{file}");
    }
    for (name, refused) in [
        (".at/soon", Errno::INVAL),
        (".at/s99999999999999", Errno::RANGE),
        ("files/b@s5", Errno::NOENT),
        ("topics/nope", Errno::NOENT),
    ] {
        assert_eq!(errno(fs::metadata(mounted.path(name))), refused, "{name}");
    }
}

// ---- Mounting ----

fn assert_refused(mounted: &TestMount, words: &[&str]) -> String {
    let ended = mounted.run_command(words);
    assert_eq!(ended.code, Some(1), "{words:?}: {}", ended.stderr);
    ended.stderr
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_mount_point_that_will_not_do_is_refused_and_why_is_said() {
    let Some(mounted) = mount::start("mount points", &[]) else { return };
    let beside = |name: &str| mounted.outside_path(name);
    fs::create_dir_all(beside("full/x")).unwrap();
    fs::write(beside("file"), "").unwrap();
    let (at, full, file, missing) =
        (mounted.path(""), beside("full"), beside("file"), beside("no"));
    for (path, why) in [
        (text(&at), "is mounted at"),
        (text(&full), "not empty"),
        (text(&file), "not a directory"),
        (text(&missing), "does not exist"),
        (text(&mounted.data_dir()), "lie in each other"),
        (text(&mounted.data_dir().join("journal")), "lie in each other"),
        (text(&mounted.outside_path("")), "lie in each other"),
    ] {
        let said = assert_refused(&mounted, &["mount", path]);
        assert!(said.contains(why), "{path}: {said}");
    }
    assert!(assert_refused(&mounted, &["umount", text(&full)]).contains("has nothing mounted at"));
    let ended = testkit::process::run(&["mount", text(&full), "--data-dir", text(&full)], "");
    assert!(ended.stderr.contains("no server runs"), "{}", ended.stderr);
    let mode = fs::metadata(mounted.data_dir().join("control.sock")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner can ask");
}

#[test]
fn several_mounts_show_the_same_and_are_unmounted_on_request() {
    let Some(mut mounted) = mount::start("several mounts", &[]) else { return };
    let (other, first) = (mounted.outside_path("other"), mounted.path("files"));
    fs::create_dir(&other).unwrap();
    let ended = mounted.run_command(&["mount", text(&other)]);
    assert_eq!((ended.code, ended.stdout().trim()), (Some(0), text(&other)));
    assert_eq!(mounted.run_command(&["mount"]).stdout().lines().count(), 2);
    // Both have looked up names, and cache them until they are invalidated.
    let second = other.join("files");
    fs::write(first.join("a"), "one").unwrap();
    wait_until("the other sees a new file", || {
        fs::read(second.join("a")).ok() == Some(b"one".into())
    });
    fs::write(second.join("a"), "two, and longer").unwrap();
    wait_until("a change", || fs::read(first.join("a")).unwrap() == b"two, and longer");
    OpenOptions::new().append(true).open(first.join("a")).unwrap().write_all(b"!").unwrap();
    wait_until("more", || fs::read(second.join("a")).unwrap() == b"two, and longer!");
    fs::remove_file(second.join("a")).unwrap();
    wait_until("that it is gone", || !first.join("a").exists());

    let held = File::create(second.join("held")).unwrap();
    assert!(assert_refused(&mounted, &["umount", text(&other)]).contains("in use"));
    assert_eq!(mounted.run_command(&["umount", "--lazy", text(&other)]).code, Some(0));
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    held.write_at(b"goes on", 0).unwrap();
    assert_eq!(fs::read(first.join("held")).unwrap(), b"goes on");
    drop(held);
    mounted.stop();
    assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0, "it is unmounted");
    assert!(!mounted.data_dir().join("control.sock").exists());
}

/// Of one mount: four that serve the kernel, one that waits for them, and one that sends
/// invalidations to the kernel.
const THREADS: usize = 6;

#[test]
fn a_mount_that_somebody_else_takes_away_leaves_nothing_behind_in_the_server() {
    let Some(mounted) = mount::start("taken away by others", &[]) else { return };
    if !rustix::process::geteuid().is_root() {
        return print_notice("SKIPPED taken away by others: only root can");
    }
    let process = format!("/proc/{}", mounted.server().pid());
    let count = |directory: &str, is_it: &dyn Fn(&Path) -> bool| {
        let entries = fs::read_dir(format!("{process}/{directory}")).unwrap();
        entries.filter(|entry| is_it(&entry.as_ref().unwrap().path())).count()
    };
    let threads = || {
        count("task", &|task| {
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            name.starts_with("mount") || name.starts_with("fuser")
        })
    };
    let devices =
        || count("fd", &|fd| fs::read_link(fd).is_ok_and(|path| path == Path::new("/dev/fuse")));
    // A thread has its name once it runs.
    wait_until("all threads of a mount run", || threads() == THREADS);
    let (of_one, other) = ((threads(), devices()), mounted.outside_path("other"));
    fs::create_dir(&other).unwrap();
    for _ in 0..3 {
        assert_eq!(mounted.run_command(&["mount", text(&other)]).code, Some(0));
        fs::write(mounted.path("files/a"), "told to both").unwrap();
        assert!(threads() > of_one.0 && devices() > of_one.1);
        rustix::mount::unmount(&other, rustix::mount::UnmountFlags::DETACH).unwrap();
        wait_until("it is gone", || (threads(), devices()) == of_one);
        assert_eq!(mounted.run_command(&["mount"]).stdout().lines().count(), 1);
    }
}

#[test]
fn a_mount_says_whose_it_is_when_it_is_taken_away() {
    let Some(mounted) = mount::start("a mount's server", &[]) else { return };
    let (other, link) = (mounted.outside_path("an other"), mounted.outside_path("link"));
    fs::create_dir(&other).unwrap();
    symlink(&other, &link).unwrap();
    for by in [&other, &link] {
        assert_eq!(mounted.run_command(&["mount", text(&other)]).code, Some(0));
        let ended = testkit::process::run(&["umount", text(by)], "");
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(mounted.run_command(&["mount"]).stdout().lines().count(), 1);
    }
    let ended = testkit::process::run(&["umount", text(&other)], "");
    assert!(ended.code == Some(1) && ended.stderr.contains("--data-dir"), "{}", ended.stderr);
    let nowhere = mounted.outside_path("nowhere");
    let ended = testkit::process::run(&["mount", text(&other), "--data-dir", text(&nowhere)], "");
    assert!(ended.code == Some(1) && ended.stderr.contains("there is no data directory"));
}

#[test]
fn who_waits_for_a_moment_keeps_nobody_else_waiting() {
    // A moment that comes soon makes readers wait; more of them than there are threads.
    let Some(mounted) = mount::start("waiting", &[]) else { return };
    fs::write(mounted.path("files/a"), "x").unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    // The tree waits for five seconds at most.
    let soon = now.as_millis() + 4500;
    let waiting: Vec<_> = (0..12)
        .map(|nth| {
            let path = mounted.path(&format!(".at/s{}/files/a", soon + nth));
            std::thread::spawn(move || (fs::read(path), std::time::Instant::now()))
        })
        .collect();
    let mut served = std::time::Instant::now();
    for nth in 0..50 {
        let path = mounted.path(&format!("files/{nth}"));
        fs::write(&path, "y").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"y");
        served = std::time::Instant::now();
    }
    for waited in waiting {
        let (read, when) = waited.join().unwrap();
        assert_eq!(read.unwrap(), b"x");
        assert!(when > served, "all others were served while this one waited");
    }
    let mut options = OpenOptions::new();
    options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    assert_eq!(
        options.read(true).open(mounted.path("files/a")).unwrap().metadata().unwrap().len(),
        1
    );
}
