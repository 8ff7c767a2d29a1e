//! kafka-records
