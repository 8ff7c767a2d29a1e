//! hlc
