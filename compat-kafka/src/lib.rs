//! compat-kafka
