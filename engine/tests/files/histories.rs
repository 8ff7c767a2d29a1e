//! Random histories against a model, over restarts and crashes.

use engine::CoreOptions;
use testkit::directory::TestDirectory;
use testkit::rng::SeededRng;

use super::*;

/// The model: names of files, and their bytes.
#[derive(Clone, Debug, Default, PartialEq)]
struct FileHistoryModel {
    names: BTreeMap<String, usize>,
    bytes: Vec<Vec<u8>>,
}

impl FileHistoryModel {
    fn check(&self, files: &FileSystem, cut: Cut) {
        let mut entries = BTreeMap::new();
        for directory in ["", "d/"] {
            for entry in files.list(&format!("/{directory}"), cut).unwrap() {
                let path = format!("{directory}{}", String::from_utf8(entry.name).unwrap());
                if entry.kind == FileKind::File {
                    entries.insert(path, entry.inode);
                }
            }
        }
        assert!(
            entries.keys().eq(self.names.keys()),
            "{:?} {:?}",
            entries.keys(),
            self.names.keys()
        );
        for (path, file) in &self.names {
            let file_bytes = &self.bytes[*file];
            let view = if cut == Cut::ALL {
                files.open(path).unwrap().view_at(cut).unwrap()
            } else {
                files.open_at(path, cut).unwrap()
            };
            assert_eq!(view.length(), file_bytes.len() as u64, "{path}");
            assert!(view.read(0, 1 << 20).unwrap() == *file_bytes, "bytes of {path} at {cut:?}");
            assert_eq!(files.stat(path, cut).unwrap().inode, entries[path]);
        }
    }
}

const PATHS: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];

/// One random operation on both.
async fn step(random: &mut SeededRng, files: &FileSystem, model: &mut FileHistoryModel, nth: u64) {
    let path = PATHS[random.below(6) as usize];
    let Some(&file) = model.names.get(path) else {
        files.create(path, 0o644).await.unwrap();
        model.bytes.push(Vec::new());
        model.names.insert(path.to_owned(), model.bytes.len() - 1);
        return;
    };
    let bytes = &mut model.bytes[file];
    match random.below(16) {
        0 => {
            files.unlink(path).await.unwrap();
            model.names.remove(path);
        }
        1 | 2 => {
            let to = PATHS[random.below(6) as usize];
            files.rename(path, to).await.unwrap();
            // A rename between two names of one file does nothing.
            if model.names.get(to) != Some(&file) {
                model.names.remove(path);
                model.names.insert(to.to_owned(), file);
            }
        }
        3 => {
            let to = PATHS[random.below(6) as usize];
            let linked = files.link(path, to).await;
            assert_eq!(linked.is_ok(), !model.names.contains_key(to));
            model.names.entry(to.to_owned()).or_insert(file);
        }
        4 => {
            let length = random.below(3000);
            let opened = files.open(path).unwrap();
            opened.truncate(length, Durability::Written).await.unwrap();
            bytes.resize(length as usize, 0);
        }
        _ => {
            let (at, length) = (random.below(2500) as usize, 1 + random.below(400) as usize);
            write(&files.open(path).unwrap(), at as u64, &vec![nth as u8; length]).await;
            bytes.resize(bytes.len().max(at + length), 0);
            bytes[at..at + length].fill(nth as u8);
        }
    }
}

#[tokio::test]
async fn ga_g16_random_histories_match_a_model_at_every_moment_over_restarts() {
    for seed in 0..12 {
        println!("seed {seed}");
        let (mut random, mut model) = (SeededRng::new(seed), FileHistoryModel::default());
        let mut fixture = on_new(tight());
        fixture.engine.files().mkdir("d", 0o755).await.unwrap();
        let mut moments: Vec<(Cut, FileHistoryModel)> = Vec::new();
        for nth in 0..400 {
            step(&mut random, fixture.engine.files(), &mut model, nth).await;
            match random.below(40) {
                0 => fixture = reopen(fixture, tight()),
                1..6 => moments.push((moment(&fixture), model.clone())),
                6 => model.check(fixture.engine.files(), Cut::ALL),
                7 if !moments.is_empty() => {
                    let (cut, model) = &moments[random.below(moments.len() as u64) as usize];
                    model.check(fixture.engine.files(), *cut);
                }
                _ => fixture.advance_clock(random.below(3)),
            }
        }
        model.check(fixture.engine.files(), Cut::ALL);
        for (cut, model) in &moments {
            model.check(fixture.engine.files(), *cut);
        }
        let files = fixture.engine.files();
        assert!(get(&files.counters().checkpoints) > 0 || get(&files.counters().roots_read) > 0);
    }
}

#[tokio::test]
async fn a_crash_leaves_all_that_was_synced_and_a_moment_that_there_was() {
    for seed in 0..20 {
        println!("seed {seed}");
        let (mut random, mut model) = (SeededRng::new(seed), FileHistoryModel::default());
        // A catalog that outlives the crash has events that the journal has lost.
        let catalog = TestDirectory::new();
        let directory = (seed % 2 == 1).then(|| catalog.path().to_owned());
        let options = || EngineOptions {
            core: CoreOptions { catalog: directory.clone(), ..tight().core },
            ..tight()
        };
        let mut fixture = on_new(options());
        fixture.engine.files().mkdir("d", 0o755).await.unwrap();
        for life in 0..4 {
            fixture.engine.files().sync().await.unwrap();
            let mut states = vec![model.clone()];
            let synced = random.below(60);
            for nth in 0..60 {
                step(&mut random, fixture.engine.files(), &mut model, nth).await;
                states.push(model.clone());
                if nth == synced {
                    fixture.engine.files().sync().await.unwrap();
                    states.drain(..states.len() - 1);
                }
            }
            let mut choices = SeededRng::new(seed * 10 + life);
            let disk = fixture.disk.after_crash(|count| choices.below(count as u64) as usize);
            let clock = Arc::clone(&fixture.clock);
            drop(fixture);
            fixture = EngineFixture::with(disk, clock, options());
            // The newest state that matches: every state before the last sync is too old.
            let files = fixture.engine.files();
            let state = states.iter().rev().find(|state| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    state.check(files, Cut::ALL);
                }))
                .is_ok()
            });
            model = state.expect("a crash leaves a moment that there was").clone();
        }
    }
}
