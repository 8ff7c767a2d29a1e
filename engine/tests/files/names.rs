//! Names and attributes, present and past.

use testkit::directory::TestDirectory;

use super::*;

#[tokio::test]
async fn b13_g16_names_are_resolved_at_the_moment_and_deleted_files_are_found_by_it() {
    let fixture = EngineFixture::new();
    let files = fixture.engine.files();
    let nothing = moment(&fixture);
    files.mkdir("/d", 0o755).await.unwrap();
    let first = filled(files, "/d/a", b"first").await;
    let earlier = moment(&fixture);
    files.rename("/d/a", "/d/b").await.unwrap();
    filled(files, "/d/a", b"second").await;
    write(&first, 0, b"FIRST").await;
    let two = moment(&fixture);
    files.unlink("/d/a").await.unwrap();
    files.rename("/d/b", "/c").await.unwrap();
    files.rmdir("/d").await.unwrap();
    let three = moment(&fixture);
    filled(files, "/d", b"a file").await;
    let four = moment(&fixture);
    let check = |files: &FileSystem| {
        assert_eq!(names(files, "/", nothing), [""; 0]);
        assert_eq!(errno(files.stat("/d", nothing)), ENOENT);
        assert_eq!(names(files, "/d", earlier), ["a"]);
        assert_eq!(text(files, "/d/a", earlier).unwrap(), "first");
        assert_eq!(names(files, "/d", two), ["a", "b"]);
        assert_eq!(text(files, "/d/a", two).unwrap(), "second");
        assert_eq!(text(files, "/d/b", two).unwrap(), "FIRST");
        assert_eq!(names(files, "/", three), ["c"]);
        assert_eq!(text(files, "/d/b", three), Err(ENOENT));
        assert_eq!(text(files, "/c", three).unwrap(), "FIRST");
        assert_eq!(names(files, "/", four), ["c", "d"]);
        assert_eq!(text(files, "/d", four).unwrap(), "a file");
        assert_eq!(text(files, "/d/a", four), Err(ENOTDIR));
        assert_eq!(text(files, "/d", Cut::ALL).unwrap(), "a file");
    };
    check(files);
    drop(first);
    let fixture = fixture.restart();
    check(fixture.engine.files());
    let ahead = Cut::before(SysTime(START + 60_000));
    assert_eq!(errno(fixture.engine.files().open_at("/d", ahead)), EAGAIN, "it may still change");
}

#[tokio::test]
async fn a_file_goes_on_without_its_name_and_a_name_can_be_one_of_many() {
    let fixture = EngineFixture::new();
    let files = fixture.engine.files();
    let file = filled(files, "/a", b"1").await;
    files.link("/a", "/b").await.unwrap();
    assert_eq!(files.stat("/b", Cut::ALL).unwrap().links, 2);
    assert_eq!(files.resolve("/a", Cut::ALL).unwrap(), files.resolve("/b", Cut::ALL).unwrap());
    // By POSIX, a rename between two names of one file does nothing.
    files.rename("/a", "/b").await.unwrap();
    assert_eq!(names(files, "/", Cut::ALL), ["a", "b"]);
    files.unlink("/a").await.unwrap();
    files.unlink("/b").await.unwrap();
    assert_eq!(files.stat_inode(file.inode(), Cut::ALL).unwrap().links, 0);
    write(&file, 1, b"2").await;
    assert_eq!(file.read_at(Cut::ALL, 0, 9).unwrap(), &b"12"[..]);
    filled(files, "/x", b"x").await;
    filled(files, "/y", b"y").await;
    files.rename("/x", "/y").await.unwrap();
    assert_eq!(text(files, "/y", Cut::ALL).unwrap(), "x", "one takes the other's place");
    assert_eq!(names(files, "/", Cut::ALL), ["y"]);
    files.symlink(b"../y", "/s", 0o777).await.unwrap();
    assert_eq!(files.read_link("/s", Cut::ALL).unwrap(), b"../y");
    let link = files.stat("/s", Cut::ALL).unwrap();
    assert_eq!((link.kind, link.size), (FileKind::Symlink, 4));
}

#[tokio::test]
async fn attributes_are_as_they_were_set_and_as_writes_make_them() {
    let fixture = EngineFixture::new();
    let files = fixture.engine.files();
    let file = filled(files, "/a", b"1").await;
    let (inode, old) = (file.inode(), FileTime { seconds: 5, nanoseconds: 6 });
    let before = moment(&fixture);
    let set =
        AttributeUpdate { modified: Some(old), mode: Some(0o600), ..AttributeUpdate::default() };
    files.set_attributes(inode, set).await.unwrap();
    files.set_xattr(inode, b"user.k", Some(b"v")).await.unwrap();
    let after = moment(&fixture);
    write(&file, 0, b"234").await;
    let set = AttributeUpdate { uid: Some(7), ..AttributeUpdate::default() };
    files.set_attributes(inode, set).await.unwrap();
    files.set_xattr(inode, b"user.k", None).await.unwrap();
    let check = |files: &FileSystem| {
        let [first, second, third] =
            [before, after, Cut::ALL].map(|cut| files.stat_inode(inode, cut).unwrap());
        assert_eq!((first.mode, first.size, first.uid), (0o644, 1, 0));
        assert!(first.born <= first.modified && first.modified < second.changed);
        assert_eq!((second.mode, second.size, second.modified), (0o600, 1, old));
        assert_eq!((third.mode, third.size, third.uid), (0o600, 3, 7));
        assert!(third.modified > second.changed, "a write is later than what was set");
        let extended = |cut| files.get_xattr(inode, b"user.k", cut).unwrap();
        assert_eq!([before, after, Cut::ALL].map(extended), [None, Some(b"v".to_vec()), None]);
        assert_eq!(files.list_xattrs(inode, after).unwrap(), [b"user.k".to_vec()]);
        let root = [before, Cut::ALL].map(|cut| files.stat("/", cut).unwrap());
        assert_eq!(root[0], root[1], "no name in it has changed");
    };
    check(files);
    let fixture = fixture.restart();
    check(fixture.engine.files());
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_posix_numbers() {
    let fixture = EngineFixture::new();
    let files = fixture.engine.files();
    let file = filled(files, "/f", b"1").await;
    files.mkdir("/d", 0o755).await.unwrap();
    files.mkdir("/d/e", 0o755).await.unwrap();
    assert_eq!(errno(files.create("/f", 0).await), EEXIST);
    assert_eq!(errno(files.mkdir("/d", 0).await), EEXIST);
    assert_eq!(errno(files.create("/no/f", 0).await), ENOENT);
    assert_eq!(errno(files.create("/f/x", 0).await), ENOTDIR);
    assert_eq!(errno(files.open("/f/")), ENOTDIR);
    assert_eq!(errno(files.open("/d")), EISDIR);
    assert_eq!(errno(files.unlink("/d").await), EISDIR);
    assert_eq!(errno(files.rmdir("/f").await), ENOTDIR);
    assert_eq!(errno(files.rmdir("/d").await), ENOTEMPTY);
    assert_eq!(errno(files.rmdir("/").await), EINVAL);
    assert_eq!(errno(files.rename("/d", "/d/e/g").await), EINVAL);
    assert_eq!(errno(files.rename("/f", "/d").await), EISDIR);
    assert_eq!(errno(files.rename("/d", "/f").await), ENOTDIR);
    files.mkdir("/x", 0o755).await.unwrap();
    assert_eq!(errno(files.rename("/x", "/d").await), ENOTEMPTY);
    files.rename("/d", "/x").await.unwrap();
    assert_eq!(
        files.resolve("/x/e/../..", Cut::ALL).unwrap(),
        files.resolve("/", Cut::ALL).unwrap()
    );
    assert_eq!(errno(files.create(&format!("/{}", "n".repeat(256)), 0).await), ENAMETOOLONG);
    assert_eq!(errno(files.open(&"/".repeat(4097))), ENAMETOOLONG);
    assert_eq!(errno(files.create("/a\0b", 0).await), EINVAL);
    assert_eq!(errno(files.create("/..", 0).await), EINVAL);
    let long = Bytes::from(vec![0; WRITE_BYTES_MAX + 1]);
    assert_eq!(errno(file.write_at(0, long, Durability::Written).await), EFBIG);
    for offset in [1 << 62, u64::MAX] {
        let byte = Bytes::from_static(b"1");
        assert_eq!(errno(file.write_at(offset, byte, Durability::Written).await), EFBIG);
    }
    assert_eq!(errno(file.truncate((1 << 62) + 1, Durability::Written).await), EFBIG);
    // By directory and name, as a mount does.
    let x = files.resolve("/x", Cut::ALL).unwrap();
    let owner = FilePermissions { mode: 0o640, uid: 7, gid: 8 };
    let file = files.create((x, &b"in"[..]), owner).await.unwrap();
    let stat = files.stat((x, &b"in"[..]), Cut::ALL).unwrap();
    assert_eq!((stat.inode, stat.mode, stat.uid, stat.gid), (file.inode(), 0o640, 7, 8));
    assert_eq!(errno(files.create((x, &b"a/b"[..]), 0).await), EINVAL);
    assert_eq!(errno(files.link("/x", "/y").await), EPERM);
    files.rename((x, &b"in"[..]), "/out").await.unwrap();
    files.unlink("/out").await.unwrap();
    assert_eq!(errno(files.link_inode(file.inode(), "/again").await), ENOENT);
    files.rmdir("/x/e").await.unwrap();
    files.rmdir("/x").await.unwrap();
    assert_eq!(errno(files.create((x, &b"in"[..]), 0).await), ENOENT, "it was removed");
    // Names are bytes, not text.
    let name = [b'/', 0xff, 0xfe, 1, 2, 0x80];
    files.create(&name, 0).await.unwrap();
    assert_eq!(files.list("/", Cut::ALL).unwrap().last().unwrap().name, &name[1..]);
    let fixture = fixture.restart();
    fixture.engine.files().open(&name).unwrap();
}

#[tokio::test]
async fn names_are_read_on_from_where_the_catalog_stopped_and_from_the_start_where_it_knows_too_much()
 {
    let directory = TestDirectory::new();
    let catalog = || Some(directory.path().to_owned());
    let options = || EngineOptions {
        core: CoreOptions { catalog: catalog(), ..CoreOptions::default() },
        ..EngineOptions::default()
    };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), Arc::clone(&clock), options());
    filled(fixture.engine.files(), "/a", b"1").await;
    let EngineFixture { disk, engine, .. } = fixture;
    engine.close();
    drop(engine);
    let early = disk.after_kill();
    for name in ["/b", "/c"] {
        let fixture = EngineFixture::with(disk.clone(), Arc::clone(&clock), options());
        filled(fixture.engine.files(), name, b"2").await;
    }
    let fixture = EngineFixture::with(disk, Arc::clone(&clock), options());
    assert_eq!(names(fixture.engine.files(), "/", Cut::ALL), ["a", "b", "c"]);
    assert_eq!(fixture.engine.files().stat("/b", Cut::ALL).unwrap().links, 1, "applied once");
    drop(fixture);
    // A journal that was restored from a backup is older than the catalog.
    let fixture = EngineFixture::with(early, clock, options());
    assert_eq!(names(fixture.engine.files(), "/", Cut::ALL), ["a"]);
    assert_eq!(text(fixture.engine.files(), "/a", Cut::ALL).unwrap(), "1");
}

/// The position is cleared first, then the keys: a crash in between leaves keys without a position.
#[tokio::test]
async fn an_interrupted_rebuild_of_the_names_leaves_none_that_the_journal_has_not() {
    let directory = TestDirectory::new();
    let catalog = || Some(directory.path().to_owned());
    let options = || EngineOptions {
        core: CoreOptions { catalog: catalog(), ..CoreOptions::default() },
        ..EngineOptions::default()
    };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), Arc::clone(&clock), options());
    filled(fixture.engine.files(), "/a", b"1").await;
    let EngineFixture { disk, engine, .. } = fixture;
    engine.close();
    drop(engine);
    let early = disk.after_kill();
    let fixture = EngineFixture::with(disk, Arc::clone(&clock), options());
    filled(fixture.engine.files(), "/lost", b"2").await;
    let lost = moment(&fixture);
    fixture.engine.close();
    drop(fixture);
    let catalog = storage::catalog::Catalog::open(&directory.path().join("1")).unwrap();
    catalog.remove_log(b"no key begins with this", storage::LogId(u64::MAX)).unwrap();
    drop(catalog);
    // The journal was restored from a backup.
    let fixture = EngineFixture::with(early, clock, options());
    fixture.advance_clock(10_000);
    assert_eq!(names(fixture.engine.files(), "/", Cut::ALL), ["a"]);
    assert_eq!(names(fixture.engine.files(), "/", lost), ["a"]);
}

#[tokio::test]
async fn topics_and_files_share_a_journal_and_nothing_else() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 3).await;
    filled(fixture.engine.files(), "/f", b"1").await;
    fixture.append(&topic, 2, &[1, 2]).await.unwrap();
    let larger = fixture.topic("u", 3).await;
    fixture.append(&larger, 2, &[3]).await.unwrap();
    let fixture = fixture.restart();
    assert_eq!(text(fixture.engine.files(), "/f", Cut::ALL).unwrap(), "1");
    let ends =
        ["t", "u"].map(|name| fixture.engine.topics().named(name).unwrap().partitions[2].end().0);
    assert_eq!(ends, [2, 1]);
}

#[tokio::test]
async fn a_rename_can_refuse_to_replace_or_exchange_two_names() {
    use engine::files::RenameMode::{Exchange, NoReplace};
    let fixture = with(FileOptions::default());
    let files = fixture.engine.files();
    filled(files, "/a", b"a").await;
    filled(files, "/b", b"b").await;
    files.mkdir("/d", 0o755).await.unwrap();
    files.mkdir("/d/e", 0o755).await.unwrap();
    assert_eq!(errno(files.rename_to("/a", "/b", NoReplace).await), EEXIST);
    assert_eq!(errno(files.rename_to("/a", "/c", Exchange).await), ENOENT);
    assert_eq!(errno(files.rename_to("/a", "/d/e/a", Exchange).await), ENOENT);
    assert_eq!(errno(files.rename_to("/d", "/d/e", Exchange).await), 22);
    let before = moment(&fixture);
    files.rename_to("/a", "/d/e", Exchange).await.unwrap();
    assert_eq!(text(files, "/d/e", Cut::ALL), Ok("a".into()));
    assert_eq!(names(files, "/a", Cut::ALL), Vec::<String>::new());
    assert_eq!(text(files, "/a", before), Ok("a".into()));
    let links = |path, cut| files.stat(path, cut).unwrap().links;
    assert_eq!((links("/d", Cut::ALL), links("/d", before)), (2, 3));
    assert_eq!((links("/", Cut::ALL), links("/", before), links("/a", Cut::ALL)), (4, 3, 2));
    files.rename_to("/b", "/c", NoReplace).await.unwrap();
    assert_eq!(text(files, "/c", Cut::ALL), Ok("b".into()));
}

#[tokio::test]
async fn a_directory_has_as_many_links_as_posix_says_also_after_a_restart() {
    let options = EngineOptions::default();
    let fixture = on_new(options.clone());
    let files = fixture.engine.files();
    for path in ["/d", "/d/a", "/d/b", "/x"] {
        files.mkdir(path, 0o755).await.unwrap();
    }
    files.create("/d/file", 0o644).await.unwrap();
    files.rmdir("/d/a").await.unwrap();
    files.rename("/x", "/d/x").await.unwrap();
    files.mkdir("/y", 0o755).await.unwrap();
    files.rename("/y", "/d/b").await.unwrap();
    let directory = files.mkdir("/gone", 0o755).await.unwrap();
    files.rmdir("/gone").await.unwrap();
    let fixture = reopen(fixture, options);
    let files = fixture.engine.files();
    let links = |path| files.stat(path, Cut::ALL).unwrap().links;
    assert_eq!((links("/"), links("/d"), links("/d/b"), links("/d/x")), (3, 4, 2, 2));
    assert_eq!(files.stat_inode(directory, Cut::ALL).unwrap().links, 0);
}

#[tokio::test]
async fn what_is_touched_now_is_younger_than_all_that_was_written() {
    let fixture = with(FileOptions::default());
    let files = fixture.engine.files();
    let old = filled(files, "/old", b"a").await;
    let written = filled(files, "/written", b"a").await;
    let now = engine::files::TouchTimes { modified: true, accessed: false };
    files
        .set_attributes_and_times(
            old.inode(),
            AttributeUpdate { mode: Some(0o600), ..Default::default() },
            now,
        )
        .await
        .unwrap();
    let [touched, unchanged] =
        [&old, &written].map(|file| files.stat_inode(file.inode(), Cut::ALL).unwrap());
    assert!(touched.modified > unchanged.modified, "{touched:?} {unchanged:?}");
    assert_eq!((touched.mode, touched.modified), (0o600, touched.changed));
}
