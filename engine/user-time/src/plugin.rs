//! Plug-ins: WebAssembly modules that find a record's user time.
//!
//! A module exports
//!
//! ```text
//! memory
//! alloc(length: i32) -> i32                room for so many bytes; what it gave before is free again
//! user_time(key: i32, key_length: i32, value: i32, value_length: i32, timestamp: i64) -> i64
//! ```
//!
//! and imports nothing: it sees the record, and neither clock nor file. The answer is milliseconds since
//! 1970, or the smallest number for "none". A length of -1 stands for null; a timestamp of -1 for none.
//!
//! It is interpreted, with an allowance of work for each record, and so ends whatever it does. Its memory
//! lives for a batch: what it keeps of a record cannot change what it says about another batch. So no batch
//! may lose records that a plug-in has seen: topics that are compacted have none.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use wasmi::{
    Config, Engine, ExternType, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder,
    TrapCode, TypedFunc, ValType,
};

use crate::ExtractError;

/// The longest module.
pub const MODULE_BYTES_MAX: usize = 480 << 10;
/// The most memory that a module may have.
const MEMORY_BYTES_MAX: usize = 16 << 20;
const TABLE_ELEMENTS_MAX: usize = 1 << 16;
/// The longest name.
const NAME_BYTES_MAX: usize = 64;
/// What it may work for a record: about an instruction each, …
const WORK_RECORD: u64 = 200_000;
/// … and for each byte of it.
pub(crate) const WORK_BYTE: u64 = 100;
/// What it may work for a batch, and for each byte of it besides.
pub(crate) const WORK_BATCH: u64 = 50_000_000;
/// What it may work to begin with, before the first record.
const WORK_START: u64 = 1_000_000;
/// What a start costs, beside what it works: …
const WORK_OF_START: u64 = 20_000;
/// … and one for so many bytes of memory.
const BYTES_A_UNIT: u64 = 4;
/// How many may be at work at once. More wait: each may have its memory.
const AT_WORK_MAX: usize = 16;
/// "It has none."
const NONE: i64 = i64::MIN;

/// Why a module cannot be a plug-in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// The name cannot be one.
    #[error(
        "a plug-in's name has 1 to 64 letters, digits, '.', '_' and '-', and does not begin with a dot. name={0:?}"
    )]
    Name(String),
    /// It is too long.
    #[error("the module is too long: strip it. bytes={0}, most={MODULE_BYTES_MAX}")]
    Long(usize),
    /// It is no module of WebAssembly.
    #[error(
        "it is no WebAssembly module that can be used: build it for wasm32-unknown-unknown. {0}"
    )]
    Invalid(String),
    /// It wants something from outside.
    #[error(
        "the module imports {0}, and plug-ins are given nothing: build it for wasm32-unknown-unknown"
    )]
    Import(String),
    /// It lacks what is called.
    #[error("the module does not export {0}")]
    Export(&'static str),
    /// It fails before the first record.
    #[error("the module cannot be started: it {0}")]
    Start(String),
}

/// Whether a plug-in can have that name.
///
/// # Errors
/// [`PluginError::Name`].
pub fn check_plugin_name(name: &str) -> Result<(), PluginError> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let length = 1..=NAME_BYTES_MAX;
    if length.contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_fit) {
        return Ok(());
    }
    Err(PluginError::Name(name.to_owned()))
}

/// A module, ready to run.
#[derive(Clone)]
pub struct Plugin(Arc<Loaded>);

struct Loaded {
    name: String,
    module: Module,
    linker: Linker<StoreLimits>,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Plugin").field(&self.0.name).finish()
    }
}

impl Plugin {
    /// Checks a module, and starts it once to see that it can be.
    ///
    /// # Errors
    /// It cannot be a plug-in.
    pub fn new(name: &str, module: &[u8]) -> Result<Plugin, PluginError> {
        check_plugin_name(name)?;
        if module.len() > MODULE_BYTES_MAX {
            return Err(PluginError::Long(module.len()));
        }
        let mut config = Config::default();
        config.consume_fuel(true);
        config.wasm_multi_memory(false);
        let engine = Engine::new(&config);
        let module =
            Module::new(&engine, module).map_err(|error| PluginError::Invalid(one_line(&error)))?;
        check(&module)?;
        let linker = Linker::new(&engine);
        let plugin = Plugin(Arc::new(Loaded { name: name.to_owned(), module, linker }));
        plugin.start().map_err(|broken| PluginError::Start(broken.to_string()))?;
        Ok(plugin)
    }

    /// One for the records of a batch.
    pub(crate) fn instance(&self) -> Result<Instance<'_>, ExtractError> {
        self.start().map_err(|broken| self.failed(broken))
    }

    fn start(&self) -> Result<Instance<'_>, Broken> {
        let limits = StoreLimitsBuilder::new()
            .instances(1)
            .memories(1)
            .memory_size(MEMORY_BYTES_MAX)
            .tables(1)
            .table_elements(TABLE_ELEMENTS_MAX)
            .build();
        let turn = Turn::wait();
        let loaded = &self.0;
        let mut store = Store::new(loaded.module.engine(), limits);
        store.limiter(|limits| limits);
        store.set_fuel(WORK_START).expect("work is counted");
        let instance = loaded.linker.instantiate_and_start(&mut store, &loaded.module);
        let instance = instance.map_err(|error| describe(&error))?;
        let lacks = |what| move |_| Broken::Failed(format!("does not export {what}"));
        let memory = instance.get_memory(&store, "memory").ok_or(()).map_err(lacks("memory"))?;
        let alloc =
            instance.get_typed_func(&store, "alloc").map_err(|_| ()).map_err(lacks("alloc"))?;
        let user_time = instance
            .get_typed_func(&store, "user_time")
            .map_err(|_| ())
            .map_err(lacks("user_time"))?;
        let worked = WORK_START - store.get_fuel().unwrap_or(0);
        let spent = worked + WORK_OF_START + memory.data_size(&store) as u64 / BYTES_A_UNIT;
        let room = (0, 0);
        Ok(Instance { plugin: self, store, memory, alloc, user_time, room, spent, _turn: turn })
    }

    fn failed(&self, broken: Broken) -> ExtractError {
        let plugin = self.0.name.clone();
        match broken {
            Broken::TooLong => ExtractError::PluginTooLong { plugin },
            Broken::Failed(why) => ExtractError::Plugin { plugin, why },
        }
    }

    /// Records of one batch cost more than a batch may.
    pub(crate) fn overworked(&self, failed: Option<&ExtractError>) -> ExtractError {
        let plugin = self.0.name.clone();
        match failed {
            Some(ExtractError::Plugin { why, .. }) => ExtractError::Plugin {
                plugin,
                why: format!("{why}, and is started again for each such record: mend it"),
            },
            _ => ExtractError::PluginBatch { plugin },
        }
    }
}

fn check(module: &Module) -> Result<(), PluginError> {
    if let Some(import) = module.imports().next() {
        return Err(PluginError::Import(format!("{}.{}", import.module(), import.name())));
    }
    let is_memory =
        matches!(module.get_export("memory"), Some(ExternType::Memory(memory)) if !memory.is_64());
    if !is_memory {
        return Err(PluginError::Export("memory"));
    }
    use ValType::{I32, I64};
    for (name, spelled, takes, gives) in [
        ("alloc", "alloc(i32) -> i32", &[I32][..], I32),
        ("user_time", "user_time(i32, i32, i32, i32, i64) -> i64", &[I32, I32, I32, I32, I64], I64),
    ] {
        let is_there = matches!(
            module.get_export(name),
            Some(ExternType::Func(func)) if func.params() == takes && func.results() == [gives]
        );
        if !is_there {
            return Err(PluginError::Export(spelled));
        }
    }
    Ok(())
}

/// What is wrong with a module is told in several lines.
fn one_line(error: &wasmi::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How a plug-in came to no answer.
enum Broken {
    /// It was stopped.
    TooLong,
    /// It failed by itself.
    Failed(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::TooLong => "was stopped, for it works too long: does it loop?",
            Broken::Failed(why) => why,
        })
    }
}

fn describe(error: &wasmi::Error) -> Broken {
    match error.as_trap_code() {
        Some(TrapCode::OutOfFuel) => Broken::TooLong,
        Some(TrapCode::UnreachableCodeReached) => Broken::Failed("panicked".to_owned()),
        Some(code) => Broken::Failed(format!("failed: {code}")),
        None => Broken::Failed(format!("failed: {error}")),
    }
}

/// One of those that may be at work.
struct Turn;

static AT_WORK: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

impl Turn {
    /// Whoever has one waits for nothing else, and so the wait ends.
    fn wait() -> Turn {
        let count = AT_WORK.lock().unwrap_or_else(PoisonError::into_inner);
        let count = ENDED.wait_while(count, |count| *count >= AT_WORK_MAX);
        *count.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *AT_WORK.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

/// Room for a key and a value, and what they are there.
type Place = (i32, i32);

/// A plug-in at work on the records of one batch.
pub(crate) struct Instance<'a> {
    plugin: &'a Plugin,
    store: Store<StoreLimits>,
    memory: Memory,
    alloc: TypedFunc<i32, i32>,
    user_time: TypedFunc<(i32, i32, i32, i32, i64), i64>,
    /// What `alloc` gave last: where, and how much.
    room: (u32, usize),
    /// Of the last record, and before the first of the start.
    spent: u64,
    _turn: Turn,
}

impl fmt::Debug for Instance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("plugin", self.plugin).finish_non_exhaustive()
    }
}

impl Instance<'_> {
    /// How much the last record cost.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    pub(crate) fn user_time(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp: i64,
    ) -> Result<i64, ExtractError> {
        let bytes = key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
        let allowance = WORK_RECORD + WORK_BYTE * bytes as u64;
        self.store.set_fuel(allowance).expect("work is counted");
        let answer = self.ask(key, value, timestamp, bytes);
        self.spent = allowance - self.store.get_fuel().unwrap_or(0).min(allowance);
        match answer.map_err(|broken| self.plugin.failed(broken))? {
            NONE => Err(ExtractError::NoTime { plugin: self.plugin.0.name.clone() }),
            ms => Ok(ms),
        }
    }

    fn ask(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp: i64,
        bytes: usize,
    ) -> Result<i64, Broken> {
        self.make_room(bytes)?;
        let start = self.room.0;
        let key_place = self.put(start, key)?;
        let value_place = self.put(start + key.map_or(0, <[u8]>::len) as u32, value)?;
        let arguments = (key_place.0, key_place.1, value_place.0, value_place.1, timestamp);
        self.user_time.call(&mut self.store, arguments).map_err(|error| describe(&error))
    }

    fn make_room(&mut self, bytes: usize) -> Result<(), Broken> {
        if bytes <= self.room.1 && self.room.1 > 0 {
            return Ok(());
        }
        const ROOM_MIN: usize = 4096;
        let wanted = bytes.next_power_of_two().max(ROOM_MIN);
        let too_large = || Broken::Failed(format!("has no room for a record of {bytes} bytes"));
        if wanted > MEMORY_BYTES_MAX {
            return Err(too_large());
        }
        let at = self.alloc.call(&mut self.store, wanted as i32);
        let at = at.map_err(|error| describe(&error))?.cast_unsigned();
        let end = (at as usize).checked_add(wanted);
        if at == 0 || end.is_none_or(|end| end > self.memory.data_size(&self.store)) {
            return Err(too_large());
        }
        self.room = (at, wanted);
        Ok(())
    }

    fn put(&mut self, at: u32, bytes: Option<&[u8]>) -> Result<Place, Broken> {
        let Some(bytes) = bytes else { return Ok((0, -1)) };
        let written = self.memory.write(&mut self.store, at as usize, bytes);
        written.map_err(|_| Broken::Failed("gave room outside of its memory".to_owned()))?;
        Ok((at.cast_signed(), bytes.len() as i32))
    }
}
