//! Lists of names and patterns: `orders,payments-*`.

/// Names, and patterns in which `*` is any text and `?` any character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamePatterns(Vec<String>);

impl NamePatterns {
    /// Parses a list with commas between. `all` is every name.
    pub(crate) fn parse(text: &str) -> Result<NamePatterns, String> {
        let names = text.split(',').map(str::trim);
        let names: Vec<String> = names
            .map(|name| if name == "all" { "*".to_owned() } else { name.to_owned() })
            .collect();
        if names.iter().any(String::is_empty) {
            return Err("give names or patterns with commas between: orders,payments-*".to_owned());
        }
        Ok(NamePatterns(names))
    }

    /// Returns true if a name is in the list, or a pattern of it fits.
    pub(crate) fn admits(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| fits(pattern.as_bytes(), name.as_bytes()))
    }

    /// Returns true if a name is in the list itself.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| pattern == name)
    }

    /// The names in the list, without the patterns.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).filter(|name| !name.contains(['*', '?']))
    }
}

/// Compares in a time of at most the product of both lengths.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut name_at) = (0, 0);
    // The position of the last `*`, and the end of what it matches in the name.
    let mut star: Option<(usize, usize)> = None;
    while name_at < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, name_at));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[name_at] => {
                at += 1;
                name_at += 1;
            }
            _ => {
                let Some((star_at, reach)) = star else { return false };
                star = Some((star_at, reach + 1));
                at = star_at + 1;
                name_at = reach + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name, is_fit) in [
            ("*", "", true),
            ("*", "orders", true),
            ("all", "orders", true),
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("pay*", "payments", true),
            ("*ments", "payments", true),
            ("p*y*s", "payments", true),
            ("p?yments", "payments", true),
            ("p*x", "payments", false),
            ("?", "", false),
            ("a,b*", "bc", true),
            ("a.c", "abc", false),
            ("*aab", "aaaab", true),
        ] {
            let patterns = NamePatterns::parse(pattern).unwrap();
            assert_eq!(patterns.admits(name), is_fit, "{pattern} {name}");
        }
        let long = "a".repeat(10_000);
        assert!(!fits(format!("{}b", "*a".repeat(100)).as_bytes(), long.as_bytes()));
    }

    #[test]
    fn a_list_has_no_empty_names() {
        assert!(NamePatterns::parse("").is_err() && NamePatterns::parse("a,,b").is_err());
        let patterns = NamePatterns::parse("a, b*,c?").unwrap();
        assert_eq!(patterns.names().collect::<Vec<_>>(), ["a"]);
        assert!(patterns.has_name("a") && !patterns.has_name("b"));
    }
}
