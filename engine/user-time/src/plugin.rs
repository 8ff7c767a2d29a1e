//! Plug-ins: WebAssembly modules that extract a record's user time.
//!
//! A module exports
//!
//! ```text
//! memory
//! alloc(length: i32) -> i32                returns a buffer of that size; the previous one is free again
//! user_time(key: i32, key_length: i32, value: i32, value_length: i32, timestamp: i64) -> i64
//! ```
//!
//! and imports nothing: it sees the record, and neither clock nor file. The result is milliseconds
//! since 1970, or the smallest number for "none". A length of -1 stands for null; a timestamp of -1
//! for none.
//!
//! It is interpreted, with limited fuel for each record, so it always ends. Its memory lives for
//! one batch: what it remembers of a record cannot change its result for another batch. But it can
//! change the result for later records of the same batch. So a batch must not lose records that a
//! plug-in has seen: compacted topics cannot have plug-ins.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use wasmi::{
    Config, Engine, ExternType, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder,
    TrapCode, TypedFunc, ValType,
};

use crate::ExtractError;

/// The maximum length of a module.
pub const MODULE_BYTES_MAX: usize = 480 << 10;
/// The maximum memory of an instance.
const MEMORY_BYTES_MAX: usize = 16 << 20;
const TABLE_ELEMENTS_MAX: usize = 1 << 16;
/// The maximum length of a name.
const NAME_BYTES_MAX: usize = 64;
/// The fuel for a record; about one unit for each instruction.
const FUEL_PER_RECORD: u64 = 200_000;
/// The additional fuel for each byte of the record.
pub(crate) const FUEL_PER_BYTE: u64 = 100;
/// The fuel for a batch, besides [`FUEL_PER_BYTE`] for each of its bytes.
pub(crate) const FUEL_PER_BATCH: u64 = 50_000_000;
/// The fuel for the start, before the first record.
const START_FUEL_MAX: u64 = 1_000_000;
/// The cost of a start, besides the fuel that it consumes.
const START_FUEL_COST: u64 = 20_000;
/// The bytes of initial memory that add one unit to the cost of a start.
const BYTES_PER_FUEL: u64 = 4;
/// The most instances at once. Further ones wait, because each may use its full memory.
const INSTANCES_MAX: usize = 16;
/// The result for "the record has none".
const NO_TIME: i64 = i64::MIN;

/// The reason that a module is not a valid plug-in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    #[error(
        "{0:?} is not a plug-in's name: give 1 to 64 letters, digits, '.', '_' and '-', without a leading dot"
    )]
    Name(String),
    #[error("the module is too long, with {0} bytes of {MODULE_BYTES_MAX}: strip it")]
    TooLong(usize),
    /// It is not a usable WebAssembly module.
    #[error(
        "it is no WebAssembly module that can be used: build it for wasm32-unknown-unknown. {0}"
    )]
    Invalid(String),
    #[error(
        "the module imports {0}, and plug-ins are given nothing: build it for wasm32-unknown-unknown"
    )]
    Import(String),
    /// It lacks a required export.
    #[error("the module does not export {0}")]
    Export(&'static str),
    /// It fails before the first record.
    #[error("the module cannot be started: it {0}")]
    Start(String),
}

/// Checks that a name is a valid plug-in name.
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

/// A compiled module.
#[derive(Clone)]
pub struct Plugin(Arc<PluginModule>);

struct PluginModule {
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
    /// Checks and compiles a module, and starts it once to see that it starts.
    ///
    /// # Errors
    /// It is not a valid plug-in.
    pub fn new(name: &str, module: &[u8]) -> Result<Plugin, PluginError> {
        check_plugin_name(name)?;
        if module.len() > MODULE_BYTES_MAX {
            return Err(PluginError::TooLong(module.len()));
        }
        let mut config = Config::default();
        config.consume_fuel(true);
        config.wasm_multi_memory(false);
        let engine = Engine::new(&config);
        let module =
            Module::new(&engine, module).map_err(|error| PluginError::Invalid(one_line(&error)))?;
        check_module(&module)?;
        let linker = Linker::new(&engine);
        let plugin = Plugin(Arc::new(PluginModule { name: name.to_owned(), module, linker }));
        plugin.start().map_err(|broken| PluginError::Start(broken.to_string()))?;
        Ok(plugin)
    }

    /// An instance for the records of one batch.
    pub(crate) fn instance(&self) -> Result<PluginInstance<'_>, ExtractError> {
        self.start().map_err(|broken| self.extract_error(broken))
    }

    fn start(&self) -> Result<PluginInstance<'_>, PluginFailure> {
        let limits = StoreLimitsBuilder::new()
            .instances(1)
            .memories(1)
            .memory_size(MEMORY_BYTES_MAX)
            .tables(1)
            .table_elements(TABLE_ELEMENTS_MAX)
            .build();
        let turn = InstancePermit::acquire();
        let loaded = &self.0;
        let mut store = Store::new(loaded.module.engine(), limits);
        store.limiter(|limits| limits);
        store.set_fuel(START_FUEL_MAX).expect("work is counted");
        let instance = loaded.linker.instantiate_and_start(&mut store, &loaded.module);
        let instance = instance.map_err(|error| into_failure(&error))?;
        let lacks = |export| move |_| PluginFailure::Failed(format!("does not export {export}"));
        let memory = instance.get_memory(&store, "memory").ok_or(()).map_err(lacks("memory"))?;
        let alloc =
            instance.get_typed_func(&store, "alloc").map_err(|_| ()).map_err(lacks("alloc"))?;
        let user_time = instance
            .get_typed_func(&store, "user_time")
            .map_err(|_| ())
            .map_err(lacks("user_time"))?;
        let worked = START_FUEL_MAX - store.get_fuel().unwrap_or(0);
        let spent = worked + START_FUEL_COST + memory.data_size(&store) as u64 / BYTES_PER_FUEL;
        let room = (0, 0);
        Ok(PluginInstance {
            plugin: self,
            store,
            memory,
            alloc,
            user_time,
            guest_buffer: room,
            fuel_spent: spent,
            _permit: turn,
        })
    }

    fn extract_error(&self, broken: PluginFailure) -> ExtractError {
        let plugin = self.0.name.clone();
        match broken {
            PluginFailure::OutOfFuel => ExtractError::PluginOutOfFuel { plugin },
            PluginFailure::Failed(why) => ExtractError::Plugin { plugin, why },
        }
    }

    /// The error for a batch that exceeds its fuel.
    pub(crate) fn fuel_error(&self, failed: Option<&ExtractError>) -> ExtractError {
        let plugin = self.0.name.clone();
        match failed {
            Some(ExtractError::Plugin { why, .. }) => ExtractError::Plugin {
                plugin,
                why: format!("{why}, and is started again for each such record: fix it"),
            },
            _ => ExtractError::BatchOutOfFuel { plugin },
        }
    }
}

fn check_module(module: &Module) -> Result<(), PluginError> {
    if let Some(import) = module.imports().next() {
        return Err(PluginError::Import(format!("{}.{}", import.module(), import.name())));
    }
    let is_memory =
        matches!(module.get_export("memory"), Some(ExternType::Memory(memory)) if !memory.is_64());
    if !is_memory {
        return Err(PluginError::Export("memory"));
    }
    use ValType::{I32, I64};
    for (name, signature, takes, gives) in [
        ("alloc", "alloc(i32) -> i32", &[I32][..], I32),
        ("user_time", "user_time(i32, i32, i32, i32, i64) -> i64", &[I32, I32, I32, I32, I64], I64),
    ] {
        let is_there = matches!(
            module.get_export(name),
            Some(ExternType::Func(func)) if func.params() == takes && func.results() == [gives]
        );
        if !is_there {
            return Err(PluginError::Export(signature));
        }
    }
    Ok(())
}

/// The error message has several lines; joins them into one.
fn one_line(error: &wasmi::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The reason that a call of a plug-in failed.
enum PluginFailure {
    OutOfFuel,
    /// It failed for another reason.
    Failed(String),
}

impl fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PluginFailure::OutOfFuel => "was stopped, because it works too long: does it loop?",
            PluginFailure::Failed(why) => why,
        })
    }
}

fn into_failure(error: &wasmi::Error) -> PluginFailure {
    match error.as_trap_code() {
        Some(TrapCode::OutOfFuel) => PluginFailure::OutOfFuel,
        Some(TrapCode::UnreachableCodeReached) => PluginFailure::Failed("panicked".to_owned()),
        Some(code) => PluginFailure::Failed(format!("failed: {code}")),
        None => PluginFailure::Failed(format!("failed: {error}")),
    }
}

struct InstancePermit;

static INSTANCE_COUNT: Mutex<usize> = Mutex::new(0);
static INSTANCE_DROPPED: Condvar = Condvar::new();

impl InstancePermit {
    /// Waits for a permit. The holder of a permit waits for nothing else, so the wait ends.
    fn acquire() -> InstancePermit {
        let count = INSTANCE_COUNT.lock().unwrap_or_else(PoisonError::into_inner);
        let count = INSTANCE_DROPPED.wait_while(count, |count| *count >= INSTANCES_MAX);
        *count.unwrap_or_else(PoisonError::into_inner) += 1;
        InstancePermit
    }
}

impl Drop for InstancePermit {
    fn drop(&mut self) {
        *INSTANCE_COUNT.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        INSTANCE_DROPPED.notify_one();
    }
}

/// The address and length of a key or a value in the guest's memory.
type GuestSlice = (i32, i32);

/// An instance of a plug-in for the records of one batch.
pub(crate) struct PluginInstance<'a> {
    plugin: &'a Plugin,
    store: Store<StoreLimits>,
    memory: Memory,
    alloc: TypedFunc<i32, i32>,
    user_time: TypedFunc<(i32, i32, i32, i32, i64), i64>,
    /// The address and size of the last buffer from `alloc`.
    guest_buffer: (u32, usize),
    /// The fuel of the last record; before the first record, the cost of the start.
    fuel_spent: u64,
    _permit: InstancePermit,
}

impl fmt::Debug for PluginInstance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("plugin", self.plugin).finish_non_exhaustive()
    }
}

impl PluginInstance<'_> {
    /// The fuel of the last record; before the first record, the cost of the start.
    pub(crate) fn fuel_spent(&self) -> u64 {
        self.fuel_spent
    }

    pub(crate) fn user_time(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp: i64,
    ) -> Result<i64, ExtractError> {
        let bytes = key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
        let allowance = FUEL_PER_RECORD + FUEL_PER_BYTE * bytes as u64;
        self.store.set_fuel(allowance).expect("work is counted");
        let answer = self.call(key, value, timestamp, bytes);
        self.fuel_spent = allowance - self.store.get_fuel().unwrap_or(0).min(allowance);
        match answer.map_err(|broken| self.plugin.extract_error(broken))? {
            NO_TIME => Err(ExtractError::NoTime { plugin: self.plugin.0.name.clone() }),
            ms => Ok(ms),
        }
    }

    fn call(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp: i64,
        bytes: usize,
    ) -> Result<i64, PluginFailure> {
        self.ensure_buffer(bytes)?;
        let start = self.guest_buffer.0;
        let key_place = self.copy_to_guest(start, key)?;
        let value_place = self.copy_to_guest(start + key.map_or(0, <[u8]>::len) as u32, value)?;
        let arguments = (key_place.0, key_place.1, value_place.0, value_place.1, timestamp);
        self.user_time.call(&mut self.store, arguments).map_err(|error| into_failure(&error))
    }

    fn ensure_buffer(&mut self, bytes: usize) -> Result<(), PluginFailure> {
        if bytes <= self.guest_buffer.1 && self.guest_buffer.1 > 0 {
            return Ok(());
        }
        const ROOM_MIN: usize = 4096;
        let capacity = bytes.next_power_of_two().max(ROOM_MIN);
        let too_large =
            || PluginFailure::Failed(format!("has no room for a record of {bytes} bytes"));
        if capacity > MEMORY_BYTES_MAX {
            return Err(too_large());
        }
        let at = self.alloc.call(&mut self.store, capacity as i32);
        let at = at.map_err(|error| into_failure(&error))?.cast_unsigned();
        let end = (at as usize).checked_add(capacity);
        if at == 0 || end.is_none_or(|end| end > self.memory.data_size(&self.store)) {
            return Err(too_large());
        }
        self.guest_buffer = (at, capacity);
        Ok(())
    }

    fn copy_to_guest(
        &mut self,
        at: u32,
        bytes: Option<&[u8]>,
    ) -> Result<GuestSlice, PluginFailure> {
        let Some(bytes) = bytes else { return Ok((0, -1)) };
        let written = self.memory.write(&mut self.store, at as usize, bytes);
        written.map_err(|_| PluginFailure::Failed("gave room outside of its memory".to_owned()))?;
        Ok((at.cast_signed(), bytes.len() as i32))
    }
}
