//! Access control of a tree. The tree asks, and its caller decides.

use super::TreeError;

/// A place that a guard permits or refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardedPlace<'a> {
    /// The directory of all topics.
    Topics,
    /// The name and metadata of a topic, without its records.
    Topic(&'a str),
    /// The records of a topic, and their keys.
    Records(&'a str),
    /// The directory of all groups.
    Groups,
    /// The name of a group, and its committed offsets.
    Group(&'a str),
    /// The names of pins, and their moments.
    Pins,
    /// The names and attributes of files and znodes.
    Names,
    /// The bytes of a file or a znode.
    Contents,
}

/// The access control of one user. The tree asks it before any lookup, so a refusal does not reveal
/// whether the name exists.
pub trait TreeGuard: Send + Sync + 'static {
    /// # Errors
    /// [`TreeError::NotPermitted`].
    fn check(&self, place: GuardedPlace<'_>) -> Result<(), TreeError>;
}
