//! Distinguished names as Java writes them (`X500Principal.getName()`): RFC 2253, the last part
//! first. Access control lists have them.

use std::fmt::Write as _;

use x509_cert::Certificate;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::{Decode, Encode, Tag, Tagged};

/// The attributes that RFC 2253 has names for.
const NAMES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// The subject of a certificate in DER; `None` if it does not read.
pub fn subject_name(certificate: &[u8]) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let mut names = Vec::new();
    for name in certificate.tbs_certificate().subject().iter_rdn() {
        let attributes: Option<Vec<String>> = name.iter().map(attribute).collect();
        names.push(attributes?.join("+"));
    }
    names.reverse();
    Some(names.join(","))
}

fn attribute(attribute: &AttributeTypeAndValue) -> Option<String> {
    let oid = attribute.oid.to_string();
    let name = NAMES.iter().find(|(known, _)| *known == oid).map(|(_, name)| name);
    let value = &attribute.value;
    let is_text = matches!(
        value.tag(),
        Tag::Utf8String
            | Tag::PrintableString
            | Tag::Ia5String
            | Tag::TeletexString
            | Tag::BmpString
            | Tag::GeneralString
    );
    match name {
        Some(name) if is_text => {
            Some(format!("{name}={}", escape(&String::from_utf8_lossy(value.value()))))
        }
        _ => {
            let mut shown = format!("{}=#", name.map_or(&*oid, |name| name));
            for byte in value.to_der().ok()? {
                let _ = write!(shown, "{byte:02x}");
            }
            Some(shown)
        }
    }
}

/// Escapes what separates names, and blanks at both ends.
fn escape(value: &str) -> String {
    let inner = value.trim_matches([' ', '\r']);
    let begin = value.len() - value.trim_start_matches([' ', '\r']).len();
    let mut escaped = String::new();
    for (place, letter) in value.char_indices() {
        let is_inside = place >= begin && place < begin + inner.len();
        match letter {
            '\0' => escaped.push_str("\\00"),
            letter => {
                if !is_inside || ",=+<>#;\"\\".contains(letter) {
                    escaped.push('\\');
                }
                escaped.push(letter);
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_separates_names_is_escaped_as_java_does() {
        for (value, expected) in [
            ("plain name", "plain name"),
            ("a,b+c=d", "a\\,b\\+c\\=d"),
            (" both ends ", "\\ both ends\\ "),
            ("#1 \"x\" <y>; \\", "\\#1 \\\"x\\\" \\<y\\>\\; \\\\"),
            ("  ", "\\ \\ "),
            ("Zoë", "Zoë"),
        ] {
            assert_eq!(escape(value), expected);
        }
    }
}
