//! The fuzzer: libFuzzer at the door that `FREEZEFRAME_FUZZ_DOOR` names. `run.sh` builds and runs
//! it.

#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
static DOOR: std::sync::OnceLock<&fuzz::Door> = std::sync::OnceLock::new();

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("FREEZEFRAME_FUZZ_DOOR").expect("FREEZEFRAME_FUZZ_DOOR names a door");
        let door = fuzz::door(&name).expect("FREEZEFRAME_FUZZ_DOOR names a door");
        assert!(DOOR.set(door).is_ok(), "it begins once");
    },
    |bytes: &[u8]| (DOOR.get().expect("it has begun").run)(bytes)
);

/// Without the fuzzer it writes the seeds of a door: `freezeframe-fuzz DOOR DIR`.
#[cfg(not(feature = "libfuzzer"))]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, directory] = &arguments[..] else {
        eprintln!("usage: freezeframe-fuzz DOOR DIR, with one of these doors:");
        fuzz::DOORS.iter().for_each(|door| eprintln!("{}", door.name));
        std::process::exit(2);
    };
    let Some(door) = fuzz::door(name) else {
        eprintln!("there is no door {name}");
        std::process::exit(2);
    };
    std::fs::create_dir_all(directory).expect("the directory can be made");
    for (nth, seed) in (door.seeds)().iter().enumerate() {
        std::fs::write(format!("{directory}/seed-{nth}"), seed).expect("a seed is written");
    }
}
