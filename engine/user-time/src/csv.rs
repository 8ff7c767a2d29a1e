//! Extracts one field of a line of comma-separated values (RFC 4180).
//!
//! Only the first line counts, and nothing after the requested field is parsed.

use std::borrow::Cow;

use crate::ExtractError;

/// Field `column` of the first line, counted from 1.
pub(crate) fn field(
    line: &[u8],
    column: usize,
    separator: u8,
) -> Result<Cow<'_, [u8]>, ExtractError> {
    let mut rest = line;
    for _ in 1..column {
        rest = after_field(rest, separator)?;
    }
    match rest {
        [b'"', quoted @ ..] => {
            let (field, behind) = unquote(quoted)?;
            let is_over = behind.first().is_none_or(|byte| is_end(*byte, separator));
            if is_over { Ok(field) } else { Err(invalid_quote(rest)) }
        }
        _ => {
            let end = rest.iter().position(|byte| is_end(*byte, separator));
            Ok(Cow::Borrowed(&rest[..end.unwrap_or(rest.len())]))
        }
    }
}

fn is_end(byte: u8, separator: u8) -> bool {
    byte == separator || byte == b'\n' || byte == b'\r'
}

fn invalid_quote(rest: &[u8]) -> ExtractError {
    ExtractError::not_a_time("a quoted field does not end where it should", rest)
}

/// The rest of the line after the first field and its separator.
fn after_field(line: &[u8], separator: u8) -> Result<&[u8], ExtractError> {
    let end = match line {
        [b'"', quoted @ ..] => line.len() - unquote(quoted)?.1.len(),
        _ => line.iter().position(|byte| is_end(*byte, separator)).unwrap_or(line.len()),
    };
    match line[end..].split_first() {
        Some((byte, rest)) if *byte == separator => Ok(rest),
        Some((byte, _)) if !is_end(*byte, separator) => Err(invalid_quote(line)),
        _ => Err(ExtractError::Missing("column of that number")),
    }
}

/// A field after its opening quote, with each doubled quote as one; and the rest after its closing
/// quote.
fn unquote(quoted: &[u8]) -> Result<(Cow<'_, [u8]>, &[u8]), ExtractError> {
    let mut field: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    let mut from = 0;
    loop {
        let quote = quoted[from..].iter().position(|byte| *byte == b'"');
        let quote = from + quote.ok_or_else(|| invalid_quote(quoted))?;
        let is_doubled = quoted.get(quote + 1) == Some(&b'"');
        let piece = &quoted[from..quote + usize::from(is_doubled)];
        if field.is_empty() {
            field = Cow::Borrowed(piece);
        } else {
            field.to_mut().extend_from_slice(piece);
        }
        from = quote + 1 + usize::from(is_doubled);
        if !is_doubled {
            return Ok((field, &quoted[from..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(line: &str, column: usize) -> Result<String, ExtractError> {
        let field = field(line.as_bytes(), column, b',')?;
        Ok(String::from_utf8(field.into_owned()).unwrap())
    }

    #[test]
    fn quotes_commas_and_lines_within_quotes_belong_to_the_field() {
        let line = "a,\"b,\"\"c\"\"\nd\",,\"\",5\r\nx,y";
        let fields: Vec<_> = (1..=5).map(|column| of(line, column).unwrap()).collect();
        assert_eq!(fields, ["a", "b,\"c\"\nd", "", "", "5"]);
        assert_eq!(of(line, 6), Err(ExtractError::Missing("column of that number")));
        assert_eq!(of("", 1).unwrap(), "");
        assert_eq!(field(b"1;2\t3", 2, b'\t').unwrap(), &b"3"[..]);
    }

    #[test]
    fn quotes_that_do_not_end_where_a_field_does_are_an_error() {
        for line in ["\"a", "\"a\"b,c", "\"\"\"", "\""] {
            assert!(of(line, 1).is_err(), "{line}");
            assert!(of(line, 2).is_err(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_line_that_was_written_reads_back(fields in prop::collection::vec("[a\",\r\n]{0,5}", 1..6)) {
            let quoted: Vec<_> = fields.iter().map(|f| format!("\"{}\"", f.replace('"', "\"\""))).collect();
            let line = quoted.join(",");
            for (column, field) in (1..).zip(&fields) {
                prop_assert_eq!(&of(&line, column).unwrap(), field);
            }
            prop_assert!(of(&line, fields.len() + 1).is_err());
        }
    }
}
