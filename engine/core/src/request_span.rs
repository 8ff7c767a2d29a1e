//! The spans of requests: each request of a client has one, with the waits inside it as children.
//!
//! They are of the level trace and have a target of their own, so that they cost a comparison where
//! nobody collects them. Their fields have the names of OpenTelemetry's semantic conventions.

/// The target of the spans.
pub const REQUEST_TARGET: &str = "freezeframe::request";

/// The most bytes of a name in a span. Clients choose names, and a collector is sent many spans at
/// once.
const TEXT_BYTES_MAX: usize = 200;

/// The beginning of a client's text that a span has room for.
pub fn span_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(span_text("console-producer"), "console-producer");
        let long = "ü".repeat(TEXT_BYTES_MAX);
        assert_eq!(span_text(&long), "ü".repeat(TEXT_BYTES_MAX / 2));
        assert_eq!(span_text(&format!("-{long}")).len(), TEXT_BYTES_MAX - 1);
    }
}
