//! Extracts one field of a JSON document, without building the document.
//!
//! Parsing stops at the field: the rest is not parsed. Of two members of the same name the first
//! counts.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::number::from_text;
use crate::{ExtractError, TimeUnit, text};

/// The longest string that is parsed: a time with every character escaped is shorter.
const STRING_BYTES_MAX: usize = 512;
const MISSING_VALUE: ExtractError = ExtractError::Missing("value at the pointer");

/// The time at `pointer`, the parts of a JSON pointer.
pub(crate) fn extract_time(
    document: &[u8],
    pointer: &[String],
    unit: TimeUnit,
) -> Result<i64, ExtractError> {
    let mut value = None;
    let mut reader = serde_json::Deserializer::from_slice(document);
    let seek = PointerVisitor { pointer, unit, found: &mut value };
    match (seek.deserialize(&mut reader), value) {
        (_, Some(time)) => time,
        (Ok(()), None) => Err(MISSING_VALUE),
        // For example, a number where the pointer continues.
        (Err(error), None) if error.is_data() => Err(MISSING_VALUE),
        (Err(error), None) => Err(ExtractError::Json(error.to_string())),
    }
}

/// Follows the pointer, and parses the value there.
struct PointerVisitor<'p> {
    pointer: &'p [String],
    unit: TimeUnit,
    found: &'p mut Option<Result<i64, ExtractError>>,
}

impl<'de> DeserializeSeed<'de> for PointerVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if !self.pointer.is_empty() {
            return deserializer.deserialize_any(self);
        }
        let value: &RawValue = serde::Deserialize::deserialize(deserializer)?;
        *self.found = Some(parse_time(value.get(), self.unit));
        // The rest is not needed: an error ends the parser.
        Err(D::Error::custom("found"))
    }
}

impl<'de> Visitor<'de> for PointerVisitor<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((name, rest)) = self.pointer.split_first() else { return Ok(()) };
        while let Some(is_it) = map.next_key_seed(MemberNameMatcher(name))? {
            if is_it {
                map.next_value_seed(PointerVisitor { pointer: rest, ..self })?;
                return Err(A::Error::custom("not there"));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((index, rest)) = self.pointer.split_first() else { return Ok(()) };
        let Some(index) = index_of(index) else { return Err(A::Error::custom("no index")) };
        for _ in 0..index {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        match list.next_element_seed(PointerVisitor { pointer: rest, ..self })? {
            Some(()) => Err(A::Error::custom("not there")),
            None => Ok(()),
        }
    }
}

/// An array index by RFC 6901: digits, without a leading zero.
fn index_of(text: &str) -> Option<usize> {
    let is_index = text == "0" || !text.starts_with(['0', '+']);
    if is_index { text.parse().ok() } else { None }
}

/// Matches members of this name.
struct MemberNameMatcher<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for MemberNameMatcher<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for MemberNameMatcher<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

fn parse_time(value: &str, unit: TimeUnit) -> Result<i64, ExtractError> {
    let bytes = value.as_bytes();
    match bytes.first() {
        Some(b'"') if bytes.len() > STRING_BYTES_MAX => {
            Err(ExtractError::not_a_time("a number or a date was expected", bytes))
        }
        Some(b'"') => {
            let string: String = serde_json::from_str(value)
                .map_err(|error| ExtractError::Json(error.to_string()))?;
            text::parse_time(string.as_bytes(), unit)
        }
        Some(b'-' | b'0'..=b'9') => from_text(bytes, unit),
        _ => Err(ExtractError::not_a_time("a number or a string was expected", bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(document: &str, pointer: &[&str]) -> Result<i64, ExtractError> {
        let pointer: Vec<String> = pointer.iter().map(|token| (*token).to_owned()).collect();
        extract_time(document.as_bytes(), &pointer, TimeUnit::Seconds)
    }

    #[test]
    fn a_field_is_found_wherever_it_stands() {
        let document =
            r#" {"a":[1,{"x":{}}],"m/n":{"~t":[0,[],"2023-11-14T22:13:20.5Z",1.7e9]},"t":-0.001}"#;
        assert_eq!(of(document, &["t"]), Ok(-1));
        assert_eq!(of(document, &["m/n", "~t", "2"]), Ok(1_700_000_000_500));
        assert_eq!(of(document, &["m/n", "~t", "3"]), Ok(1_700_000_000_000));
        assert_eq!(of("1700000000.25", &[]), Ok(1_700_000_000_250));
        assert_eq!(of(r#"{"":{"t":"17"}}"#, &["", "t"]), Ok(17_000));
        assert_eq!(of(r#"{"\u0074":"\u0031"}"#, &["t"]), Ok(1000));
    }

    #[test]
    fn the_first_of_one_name_counts_and_nothing_behind_it() {
        assert_eq!(of(r#"{"t":1,"t":2}"#, &["t"]), Ok(1000));
        assert_eq!(of(r#"{"t":1,this is no JSON"#, &["t"]), Ok(1000));
    }

    #[test]
    fn where_there_is_no_such_field_it_says_so() {
        let document = r#"{"a":[1,2],"n":5,"s":"x"}"#;
        for pointer in
            [&["b"][..], &["a", "2"], &["a", "x"], &["a", "01"], &["a", "+1"], &["n", "0"]]
        {
            assert_eq!(of(document, pointer), Err(MISSING_VALUE), "{pointer:?}");
        }
    }

    #[test]
    fn what_is_no_time_or_no_json_is_an_error() {
        for document in [r#"{"t":null}"#, r#"{"t":{}}"#, r#"{"t":"soon"}"#, r#"{"t":true}"#] {
            let verdict = of(document, &["t"]);
            assert!(
                matches!(verdict, Err(ExtractError::NotATime { .. })),
                "{document}: {verdict:?}"
            );
        }
        for document in ["", "{", r#"{"t":"#, r#"{"a" 1}"#, "\u{1}", r#"{"t":1e}"#] {
            let verdict = of(document, &["t"]);
            assert!(matches!(verdict, Err(ExtractError::Json(_))), "{document}: {verdict:?}");
        }
        let invalid = extract_time(b"{\"\xff\":1,\"t\":2}", &["t".to_owned()], TimeUnit::Millis);
        assert!(matches!(invalid, Err(ExtractError::Json(_))), "{invalid:?}");
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = format!("{{\"a\":{}{},\"t\":7}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(of(&deep, &["t"]), Ok(7000));
        let long = format!("{{\"t\":\"{}\"}}", "1".repeat(1 << 20));
        assert!(of(&long, &["t"]).is_err());
    }
}
