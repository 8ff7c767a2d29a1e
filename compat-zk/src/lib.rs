//! compat-zk
