//! The one binary, `freezeframe`.
fn main() {}
